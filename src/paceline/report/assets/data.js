// Reads what the charts are drawn from: compressed JSON, in which moments are differences in ticks.

const USED = 0, UNUSED = 1, LOST = 2, OPEN = 3;

async function readData() {
  const bytes = Uint8Array.from(atob(document.getElementById('data').textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  const runs = JSON.parse(await new Response(stream).text());
  for (const run of runs) {
    const course = run.course;
    course.rows = course.rows.map((row) => readRow(row));
    course.updates = summed(course.updates);
    course.barriers = summed(course.barriers);
  }
  return runs;
}

function summed(differences) {
  const found = new Float64Array(differences.length);
  let at = 0;
  for (let i = 0; i < differences.length; i++) found[i] = at += differences[i];
  return found;
}

// Per iteration: when it began, was pushed, and when the wait after it ended. `waited` and `computed` are sums up to its
// end, so that the share of any stretch of time is found without walking through it.
function readRow(row) {
  const count = row.gaps.length;
  const begins = new Float64Array(count), pushes = new Float64Array(count), ends = new Float64Array(count);
  const waited = new Float64Array(count + 1), computed = new Float64Array(count + 1);
  const fates = new Uint8Array(count), reasons = new Int32Array(count), until = new Int32Array(count).fill(-1);
  let at = 0;
  for (let i = 0; i < count; i++) {
    begins[i] = at += row.gaps[i];
    pushes[i] = at += row.computes[i];
    ends[i] = at += row.waits[i];
    waited[i + 1] = waited[i] + row.waits[i];
    computed[i + 1] = computed[i] + row.computes[i];
  }
  let number = 0;
  row.waited.forEach((step, i) => { number += step; reasons[number] = row.reasons[i]; until[number] = row.until[i]; });
  number = 0;
  row.odd.forEach((step, i) => { number += step; fates[number] = row.fates[i]; });
  return { workers: row.workers, begins, pushes, ends, waited, computed, fates, reasons, until };
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
