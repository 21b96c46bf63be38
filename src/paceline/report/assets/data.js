// What the charts are drawn from: JSON, in which moments are differences in ticks. It comes at once, or piece by piece.

const USED = 0, UNUSED = 1, LOST = 2, OPEN = 3;
const NOBODY = -1, LEFT = -2; // what ended a wait: nobody, the worker of this number by its push, LEFT - worker by leaving

// Of a report: compressed, in the page.
async function readData() {
  const bytes = Uint8Array.from(atob(document.getElementById('data').textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  const runs = JSON.parse(await new Response(stream).text());
  for (const run of runs) run.course = takeCourse(emptyCourse(), run.course);
  return runs;
}

function emptyCourse() {
  return { rows: [], reasons: [], updates: [], barriers: [], marks: [] };
}

// Lists go on where they ended; the rest is as it is told now.
function takeCourse(course, told) {
  told.rows.forEach((row, i) => takeRow(course.rows[i] ??= emptyRow(), row));
  for (const name of ['reasons', 'marks']) for (const entry of told[name]) course[name].push(entry);
  for (const name of ['updates', 'barriers']) addUp(course[name], told[name]);
  for (const name of ['end', 'tick', 'usual', 'pace', 'staleness', 'leads']) course[name] = told[name];
  return course;
}

function addUp(found, differences) {
  let at = found.length ? found[found.length - 1] : 0;
  for (const difference of differences) found.push(at += difference);
}

// Per iteration: when it began, was pushed, and when the wait after it ended. `waited` and `computed` are sums up to its
// end, so that the share of any stretch of time is found without walking through it.
function emptyRow() {
  return { workers: [], begins: [], pushes: [], ends: [], waited: [0], computed: [0], fates: [], reasons: [], until: [] };
}

function takeRow(row, told) {
  const kept = told.kept;
  for (const name of ['begins', 'pushes', 'ends', 'fates', 'reasons', 'until']) row[name].length = kept;
  row.waited.length = row.computed.length = kept + 1;
  row.workers = told.workers;
  let at = kept ? row.ends[kept - 1] : 0;
  for (let i = 0; i < told.gaps.length; i++) {
    row.begins.push(at += told.gaps[i]);
    row.pushes.push(at += told.computes[i]);
    row.ends.push(at += told.waits[i]);
    row.waited.push(row.waited[kept + i] + told.waits[i]);
    row.computed.push(row.computed[kept + i] + told.computes[i]);
    row.fates.push(USED);
    row.reasons.push(0);
    row.until.push(NOBODY);
  }
  let number = kept;
  told.waited.forEach((step, i) => { number += step; row.reasons[number] = told.reasons[i]; row.until[number] = told.until[i]; });
  number = kept;
  told.odd.forEach((step, i) => { number += step; row.fates[number] = told.fates[i]; });
}

// How many of the ascending numbers are at most `value`.
function countUpTo(numbers, value) {
  let low = 0, high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= value) low = middle + 1; else high = middle;
  }
  return low;
}

// Ticks of waiting and of computing up to a moment.
function spentUpTo(row, moment) {
  const begun = countUpTo(row.begins, moment);
  if (!begun) return [0, 0];
  const i = begun - 1;
  const computed = row.computed[i] + Math.min(Math.max(moment - row.begins[i], 0), row.pushes[i] - row.begins[i]);
  const waited = row.waited[i] + Math.min(Math.max(moment - row.pushes[i], 0), row.ends[i] - row.pushes[i]);
  return [waited, computed];
}
