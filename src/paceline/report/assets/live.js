// Follows a run, or all of them: what the server tells is put where it belongs, and buttons ask it for something.

const told = document.getElementById('data').textContent;
const token = new URLSearchParams(location.search).get('token') || '';
const page = told === 'run' ? location.pathname.replace(/^\/runs\//, '') : '';
const run = { course: emptyCourse(), curves: {}, name: '', policy: '' };
let build = null;

// -- words --

function place(part) {
  return document.querySelector(`[data-part="${part}"]`);
}

// Markup that the server made, with all text of a run escaped; the security policy lets no script in it run. What
// somebody just presses or marks to copy it stays as it is: its turn comes with the next message.
const late = {};

function inUse(where) {
  const marked = getSelection();
  return where.matches(':active') || (!marked.isCollapsed && where.contains(marked.anchorNode));
}

function setWords(words) {
  for (const [part, markup] of Object.entries({ ...late, ...words })) {
    const where = place(part);
    if (!where) continue;
    if (inUse(where)) { late[part] = markup; continue; }
    delete late[part];
    const evict = where.contains(document.activeElement) ? document.activeElement.dataset.evict : undefined;
    const scrolled = [...where.querySelectorAll('.wide')].map((box) => box.scrollLeft);
    where.innerHTML = markup;
    where.querySelectorAll('.wide').forEach((box, i) => { box.scrollLeft = scrolled[i] || 0; });
    if (evict !== undefined) where.querySelector(`[data-evict="${evict}"]`)?.focus();
    if (part !== 'name' && part !== 'about') (where.closest('[data-section]') || where).hidden = !markup;
  }
}

// -- charts --

let looked = false; // somebody was shown the latest of a run that is longer than that, or chose what to look at

for (const kind of ['pointerdown', 'keydown']) {
  document.addEventListener(kind, (event) => { if (event.target.closest?.('[data-chart=gantt]')) looked = true; });
}

function showCharts(names) {
  for (const host of placesForCharts()) host.closest('[data-section]').hidden = !names.includes(host.dataset.chart);
  document.body.classList.add('drawn');
}

const HOVERS = matchMedia('(hover: hover)').matches; // where one taps, the last place that was tapped stays one that is pointed at
let unseen = false; // something changed while nobody could see the page

function drawCharts(curvesChanged) {
  if (document.hidden) { unseen = true; return; }
  for (const host of placesForCharts()) {
    const kind = host.dataset.chart, ofCurves = kind === 'curves' || kind === 'choices';
    if (host.closest('[data-section]').hidden || (ofCurves && !curvesChanged && host.childElementCount)) continue;
    if (kind !== 'gantt' && HOVERS && host.matches(':hover') && host.childElementCount) continue; // somebody reads there
    drawChart(host, [run]);
    if (kind === 'gantt' && !looked) {
      const chart = host.gantt;
      looked = Boolean(document.querySelector('h1 .running')) && chart.total > 2 * chart.few();
      if (looked) chart.show(chart.total - chart.few(), chart.total);
    }
  }
  document.body.dataset.charts = 'drawn';
}

// -- what the server says --

const QUIET = 60_000; // milliseconds: the server has spoken several times by then
const GONE = 'The connection is lost: is `paceline watch` still running? This page goes on as soon as it answers.';
let feed = null, heard = 0;

function take(message) {
  heard = Date.now();
  if (!Object.keys(message).length) return; // a sign of life
  if (message.build && build && message.build !== build) { location.reload(); return; }
  build = message.build || build;
  say(message.problem || '');
  if (message.whole) {
    for (const where of document.querySelectorAll('[data-part]')) if (!(where.dataset.part in message.words)) message.words[where.dataset.part] = '';
    run.course = emptyCourse();
    [run.name, run.policy] = [message.name, message.policy];
  }
  if (message.words) setWords(message.words);
  if (message.curves) run.curves = message.curves;
  if (message.course) {
    takeCourse(run.course, message.course);
    showCharts(message.charts);
    drawCharts(Boolean(message.curves));
  }
  if ('controls' in message) steerable(message.controls);
  document.body.dataset.messages = Number(document.body.dataset.messages || 0) + 1;
}

function say(problem) {
  const note = document.querySelector('[data-connection]');
  note.textContent = problem;
  note.hidden = !problem;
  document.body.classList.toggle('lost', Boolean(problem)); // what is shown is how it was
}

function listen() {
  feed?.close();
  const mine = feed = new EventSource(`/events/${page}${location.search}`);
  heard = Date.now();
  mine.addEventListener('message', (event) => take(JSON.parse(event.data)));
  mine.addEventListener('error', () => {
    say(GONE);
    if (mine.readyState === EventSource.CLOSED) {
      refusal();
      setTimeout(() => { if (mine === feed) listen(); }, 2000);
    }
  });
}

// A server that is there and says no has a reason: the run is gone, or the token another one.
async function refusal() {
  try {
    const response = await fetch(location.href);
    if (!response.ok) say(`${(await response.text()).trim()}. This page goes on if that changes.`);
  } catch { /* nobody is there, as was said */ }
}

// After a sleep the browser may hold on to a connection that the other side gave up long ago.
setInterval(() => { if (feed && Date.now() - heard > QUIET) { say(GONE); listen(); } }, 5000);

// A browser has six connections with a server: tabs in which nobody looks must not keep the others from theirs.
const AWAY = 20_000; // milliseconds
let leaving = 0;

document.addEventListener('visibilitychange', () => {
  clearTimeout(leaving);
  if (document.hidden) {
    leaving = setTimeout(() => { feed?.close(); feed = null; }, AWAY);
  } else if (!feed) {
    listen();
  } else if (unseen) {
    unseen = false;
    drawCharts(true);
  }
});

setTimeout(() => { if (!build) say('Reading what there is; of a long run that takes some seconds.'); }, 500);

// -- asking for something --

function steerable(controls) {
  const box = document.querySelector('[data-controls]');
  if (!box) return;
  box.hidden = !controls;
  if (!controls) return;
  for (const [name, value] of Object.entries(controls)) {
    const field = box.querySelector(`[name="${name}"]`);
    if (field && field !== document.activeElement && !field.dataset.touched) field.value = value;
  }
}

const SAID_FOR = 30_000; // milliseconds that an answer stays there
let forgetting = 0;

// Returns whether it was done.
async function steer(request) {
  const answer = document.querySelector('[data-answer]');
  clearTimeout(forgetting);
  answer.textContent = 'asking …';
  answer.classList.remove('refused');
  try {
    const response = await fetch(`/steer/${page}`, {
      method: 'POST', body: JSON.stringify(request),
      headers: { 'Authorization': `Bearer ${token}`, 'Content-Type': 'application/json' },
    });
    answer.textContent = await response.text();
    answer.classList.toggle('refused', !response.ok);
    return response.ok;
  } catch {
    answer.textContent = 'Nobody answered: is `paceline watch` still running?';
    answer.classList.add('refused');
    return false;
  } finally {
    forgetting = setTimeout(() => { answer.textContent = ''; }, SAID_FOR);
  }
}

document.addEventListener('input', (event) => { event.target.dataset.touched = 'yes'; });

document.addEventListener('submit', (event) => {
  event.preventDefault();
  const form = event.target, request = { type: form.dataset.steer };
  const fields = [...form.querySelectorAll('input')];
  for (const field of fields) request[field.name] = field.type === 'number' ? Number(field.value) : field.value.trim();
  if (form.dataset.sure && !confirm(form.dataset.sure)) return;
  steer(request).then((done) => { // what was refused may be mended
    for (const field of fields) if (done) delete field.dataset.touched; else field.dataset.touched = 'yes';
  });
});

document.addEventListener('click', (event) => {
  const worker = event.target.dataset?.evict;
  if (worker !== undefined && confirm(`Send worker ${worker} away? What it computes just now is lost, and given to others.`)) {
    steer({ type: 'Evict', worker: Number(worker) });
  }
});

for (const link of document.querySelectorAll('[data-home]')) link.href = `/${location.search}`;
listen();
