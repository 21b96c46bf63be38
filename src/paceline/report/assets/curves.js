// Lines over time, samples or updates, and bars of how often a value came up.

const MARGIN = { left: 52, right: 12, top: 10, bottom: 34 };

// series: [{name, x: [...], y: [...]}]; options: {height, across, up, marks: [[x, text]], steps, tellAt(i, x)}
function lineChart(host, series, options) {
  const tip = new Tip(host);
  let drawn = null;
  whenSized(host, (width) => { if (drawn) drawn.remove(); drawn = drawLines(host, tip, series, options, width); });
}

function drawLines(host, tip, series, options, width) {
  const height = options.height || 240;
  const inner = { width: Math.max(20, width - MARGIN.left - MARGIN.right), height: height - MARGIN.top - MARGIN.bottom };
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': `${options.up} over ${options.across}` }, host);
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const line of series) {
    line.x.forEach((x, i) => {
      const y = line.y[i];
      if (y === null || !Number.isFinite(y)) return;
      x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y);
    });
  }
  if (!Number.isFinite(x0)) { svg('text', { x: 8, y: 24 }, root, 'nothing was measured'); return root; }
  x0 = Math.min(x0, options.from ?? x0);
  if (options.fromZero) y0 = Math.min(0, y0);
  if (y1 === y0) { y1 += Math.abs(y1) * 0.1 || 1; y0 -= options.fromZero ? 0 : Math.abs(y0) * 0.1 || 1; }
  if (x1 === x0) x1 = x0 + 1;
  const px = (x) => MARGIN.left + (x - x0) / (x1 - x0) * inner.width;
  const py = (y) => MARGIN.top + (1 - (y - y0) / (y1 - y0)) * inner.height;
  axes(root, { x0, x1, y0, y1 }, px, py, width, height, options);
  for (const [x, text] of options.marks || []) {
    if (x < x0 || x > x1) continue;
    const line = svg('line', { class: 'mark', x1: px(x), x2: px(x), y1: MARGIN.top, y2: height - MARGIN.bottom }, root);
    svg('title', {}, line, text);
  }
  series.forEach((line, number) => {
    let path = '', last = null;
    line.x.forEach((x, i) => {
      const y = line.y[i];
      if (y === null || !Number.isFinite(y)) { last = null; return; }
      if (last !== null && options.steps) path += `H${px(x).toFixed(1)}`;
      path += `${last === null ? 'M' : 'L'}${px(x).toFixed(1)} ${py(y).toFixed(1)}`;
      last = y;
    });
    svg('path', { class: `curve s${(line.colour ?? number) % 8}`, d: path, 'stroke-dasharray': number > 7 ? '5 3' : 'none' }, root);
    if (line.x.length === 1 && last !== null) svg('circle', { class: `s${number % 8}`, cx: px(line.x[0]), cy: py(line.y[0]), r: 3 }, root);
  });
  const cursor = svg('line', { class: 'mark', y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: 'hidden' }, root);
  root.addEventListener('pointermove', (event) => {
    const box = root.getBoundingClientRect();
    const x = x0 + (event.clientX - box.left - MARGIN.left) / inner.width * (x1 - x0);
    const said = series.filter((line) => line.x.length).map((line) => {
      const i = nearest(line.x, x);
      const more = options.tellAt ? `\n${options.tellAt(i)}` : '';
      return `${line.name}: ${short(line.y[i])} at ${options.tellX ? options.tellX(line.x[i]) : short(line.x[i])}${more}`;
    });
    for (const name of ['x1', 'x2']) cursor.setAttribute(name, Math.max(MARGIN.left, Math.min(px(x), width - MARGIN.right)));
    cursor.setAttribute('visibility', 'visible');
    tip.show(event.clientX - box.left, event.clientY - box.top, said.slice(0, 12).join('\n'));
  });
  root.addEventListener('pointerleave', () => { tip.hide(); cursor.setAttribute('visibility', 'hidden'); });
  return root;
}

function nearest(sorted, value) {
  const after = Math.min(countUpTo(sorted, value), sorted.length - 1);
  const before = Math.max(after - 1, 0);
  return value - sorted[before] <= sorted[after] - value ? before : after;
}

function axes(root, range, px, py, width, height, options) {
  for (const y of niceSteps(range.y0, range.y1, 4)) {
    svg('line', { class: 'grid', x1: MARGIN.left, x2: width - MARGIN.right, y1: py(y), y2: py(y) }, root);
    svg('text', { x: MARGIN.left - 6, y: py(y) + 4, 'text-anchor': 'end' }, root, short(y));
  }
  const steps = niceSteps(range.x0, range.x1, Math.max(3, Math.floor(width / 95)));
  for (const x of steps) svg('text', { x: px(x), y: height - 18, 'text-anchor': 'middle' }, root, short(x));
  svg('text', { x: width - MARGIN.right, y: height - 3, 'text-anchor': 'end' }, root, options.across);
}

// counts: [[value, how often], ...], ascending. Many values are put together.
function histogram(host, counts, what) {
  const tip = new Tip(host);
  let drawn = null;
  whenSized(host, (width) => { if (drawn) drawn.remove(); drawn = drawBars(host, tip, counts, what, width); });
}

function drawBars(host, tip, counts, what, width) {
  const height = 190, most = Math.max(4, Math.floor((width - MARGIN.left) / 14));
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': what }, host);
  if (!counts.length) { svg('text', { x: 8, y: 24 }, root, 'there were none'); return root; }
  const last = counts[counts.length - 1][0], wide = Math.max(1, Math.ceil((last + 1) / most));
  const bars = new Array(Math.floor(last / wide) + 1).fill(0);
  let total = 0;
  for (const [value, count] of counts) { bars[Math.floor(value / wide)] += count; total += count; }
  const top = Math.max(...bars), step = (width - MARGIN.left - MARGIN.right) / bars.length;
  const py = (share) => MARGIN.top + (1 - share * total / top) * (height - MARGIN.top - MARGIN.bottom);
  for (const share of niceSteps(0, top / total, 3)) {
    svg('line', { class: 'grid', x1: MARGIN.left, x2: width - MARGIN.right, y1: py(share), y2: py(share) }, root);
    svg('text', { x: MARGIN.left - 6, y: py(share) + 4, 'text-anchor': 'end' }, root, `${+(share * 100).toFixed(1)}%`);
  }
  const every = Math.max(1, Math.ceil((`${last}`.length * 8 + 8) / step));
  bars.forEach((count, i) => {
    const name = wide === 1 ? `${i}` : `${i * wide} to ${i * wide + wide - 1}`;
    const y = py(count / total), x = MARGIN.left + i * step;
    const size = Math.min(step - 2, 48);
    svg('rect', { class: 's0', x: x + (step - size) / 2, width: size, y, height: Math.max(0, height - MARGIN.bottom - y), rx: 1.5 }, root);
    if (i % every === 0) svg('text', { x: x + step / 2, y: height - 18, 'text-anchor': 'middle' }, root, `${i * wide}`);
    const area = svg('rect', { x, width: step, y: 0, height: height - MARGIN.bottom, fill: 'transparent' }, root);
    area.addEventListener('pointermove', (event) => {
      const box = root.getBoundingClientRect();
      tip.show(event.clientX - box.left, event.clientY - box.top, `${name}: ${count.toLocaleString('en')} gradients, ${(100 * count / total).toFixed(1)}%`);
    });
  });
  root.addEventListener('pointerleave', () => tip.hide());
  svg('text', { x: width - MARGIN.right, y: height - 3, 'text-anchor': 'end' }, root, what);
  return root;
}

// -- what a run measured --

function learningCurves(host, runs) {
  const several = runs.length > 1;
  const panels = html('div', 'panels');
  const over = { time: 'seconds', samples: 'samples', updates: 'updates' };
  const label = (run) => several ? `${run.policy} (${run.name})` : run.policy;
  function draw(across) {
    panels.replaceChildren();
    const panel = (title, series) => {
      const shown = series.filter((line) => line.x.length);
      if (!shown.length) return;
      const box = html('div', '', panels);
      html('h4', '', box, title);
      const chart = html('div', 'chart', box);
      const marks = several || across !== 'seconds' ? [] : runs[0].course.marks.filter((mark) => mark[1] === 'switch').map(([at, , text]) => [at, text]);
      lineChart(chart, shown, { across, up: title, from: 0, marks });
    };
    const one = (run, found) => ({ name: label(run), x: found?.[across] || [], y: found?.values || [], colour: runs.indexOf(run) });
    const figures = new Set(runs.flatMap((run) => Object.keys(run.curves.figures || {})));
    panel('training loss', runs.map((run) => one(run, run.curves.measured)));
    for (const name of figures) panel(name, runs.map((run) => one(run, run.curves.figures?.[name])));
    const logged = new Set(runs.flatMap((run) => Object.keys(run.curves.logged || {})));
    for (const name of logged) {
      panel(`${name} (logged)`, runs.flatMap((run) => Object.entries(run.curves.logged?.[name] || {}).map(
        ([worker, found]) => ({ name: `${several ? label(run) + ', ' : ''}worker ${worker}`, x: found[across], y: found.values }))));
    }
    if (!panels.children.length) html('p', 'dim', panels, 'Nothing was measured on the way.');
  }
  choice(host, 'over', Object.keys(over), (name) => draw(over[name]));
  host.append(panels);
  if (several) legend(host, runs.map(label));
}

const MOST_PACES = 16;

function paceChart(host, run) {
  const end = run.course.end, bins = run.course.pace[0]?.length || 1;
  const x = Array.from({ length: bins }, (_, i) => (i + 0.5) * end / bins);
  const busy = run.course.rows.map((row, i) => ({ name: placeName(row), x, y: run.course.pace[i] }));
  const shown = busy.slice(0, MOST_PACES);
  lineChart(host, shown, { across: 'seconds', up: 'samples per second', fromZero: true, from: 0, height: 190 });
  legend(host, shown.map((line) => line.name));
  if (busy.length > shown.length) html('p', 'dim', host, `and ${busy.length - shown.length} more, which are not drawn`);
}

function choicesChart(host, run) {
  const found = run.curves.choices;
  const list = (values, i) => (values[i] || []).map(short).join('  ');
  lineChart(host, [{ name: 'k', x: found.seconds, y: found.k }], {
    across: 'seconds', up: 'gradients in the next update', steps: true, fromZero: true, from: 0,
    tellAt: (i) => `expected gain of 1, 2, ...: ${list(found.gain, i)}\nexpected time: ${list(found.time, i)}`
      + `\nvariance ${short(found.variance[i])}, |gradient|² ${short(found.squared_norm[i])}, `
      + (found.slope[i] == null ? `smoothness ${short(found.smoothness[i])}` : `slope of the loss ${short(found.slope[i])}`),
  });
}
