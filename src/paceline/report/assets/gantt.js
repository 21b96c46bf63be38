// What every worker did, when, and why it waited. Drag to move, wheel or pinch to zoom, arrow keys and + - as well.
// A pixel shows the shares of its time; so the picture of a million iterations costs no more than its width.

const LANE = 26, GAP = 6, HEAD = 30, LABELS = 74, A_FEW = 38;
const KINDS = { compute: '--computing', wait: '--waiting', unused: '--discarded', lost: '--failed', open: '--unfinished' };

function placeName(row) {
  const ids = [...new Set(row.workers.map((entry) => entry[1]))];
  return ids.length > 2 ? `worker ${ids[0]} … ${ids[ids.length - 1]}` : `worker ${ids.join(', ')}`;
}

class Gantt {
  constructor(host, run) {
    this.host = host;
    this.course = run.course;
    this.total = Math.max(run.course.end / run.course.tick, 1);
    this.from = 0;
    this.to = this.total;
    this.pointers = new Map();
    this.controls();
    this.canvas = html('canvas', '', host);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute('role', 'img');
    this.canvas.setAttribute('aria-label', 'When each worker computed and when it waited');
    this.tip = new Tip(host);
    this.pointer = null; // where it points
    this.listen();
    this.scheduled = false;
    whenSized(host, (width) => { this.width = width; this.size(); });
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
  }

  // The same run, told anew from its beginning: its end is looked at, if it was before, else the same seconds.
  retell(course) {
    const ticks = this.course.tick / course.tick, all = this.from <= 0 && this.to >= this.total, atTheEnd = this.to >= this.total;
    const from = this.from * ticks, span = (this.to - this.from) * ticks;
    this.course = course;
    this.total = Math.max(course.end / course.tick, 1);
    const begin = all ? 0 : atTheEnd ? this.total - span : from;
    this.show(begin, all ? this.total : begin + span);
    this.size();
    if (this.pointer) this.tell(...this.pointer);
  }

  controls() {
    const row = html('div', 'controls', this.host);
    const button = (name, act) => html('button', '', row, name).addEventListener('click', act);
    button('zoom in', () => this.zoom(0.5));
    button('zoom out', () => this.zoom(2));
    button('a few rounds', () => this.show(this.total / 2, this.total / 2 + Math.min(this.total / 2, this.few())));
    button('the latest', () => this.show(this.total - this.few(), this.total));
    button('whole run', () => this.show(0, this.total));
    html('span', 'hint', row, 'Drag to move, ctrl + wheel or two fingers to zoom; a tap or the pointer tells why.');
    const names = [['computing', 'computes'], ['waiting', 'waits'], ['discarded', 'not used'], ['failed', 'lost'], ['unfinished', 'no fate yet']];
    const list = html('ul', 'legend', this.host);
    for (const [kind, text] of names) {
      const entry = html('li', '', list);
      svg('rect', { width: 12, height: 12, rx: 2, class: kind }, svg('svg', { width: 12, height: 12 }, entry));
      entry.append(text);
    }
    html('li', '', list, '│ all go on together');
    html('li', '', list, '▾ joins, leaves, other policies');
  }

  // So many ticks are a few rounds.
  few() {
    return A_FEW * (this.course.usual || this.course.end) / this.course.tick;
  }

  // The course has grown. Whoever looks at its end goes on doing so.
  update() {
    const before = this.total, atTheEnd = this.to >= before;
    this.total = Math.max(this.course.end / this.course.tick, 1);
    if (atTheEnd) {
      this.from += this.from > 0 ? this.total - before : 0;
      this.to = this.total;
    }
    if (this.lanes === this.course.rows.length) this.draw(); else this.size();
    if (this.pointer) this.tell(...this.pointer);
  }

  size() {
    if (!this.width) return;
    this.lanes = this.course.rows.length;
    this.height = HEAD + this.lanes * (LANE + GAP) + 8;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = this.width * ratio;
    this.canvas.height = this.height * ratio;
    this.canvas.style.height = `${this.height}px`;
    this.draw();
  }

  // -- moving --

  show(from, to) {
    const span = Math.min(Math.max(to - from, 8), this.total);
    this.from = Math.max(0, Math.min(from, this.total - span));
    this.to = this.from + span;
    this.tip.hide();
    this.draw();
  }

  zoom(factor, centre = (this.from + this.to) / 2) {
    const span = (this.to - this.from) * factor, part = (centre - this.from) / (this.to - this.from);
    this.show(centre - part * span, centre - part * span + span);
  }

  at(x) {
    return this.from + (x - LABELS) / (this.width - LABELS) * (this.to - this.from);
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener('wheel', (event) => {
      if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
      event.preventDefault();
      if (event.ctrlKey) this.zoom(Math.exp(event.deltaY / 200), this.at(event.offsetX));
      else this.pan((event.deltaX || event.deltaY) / this.width);
    }, { passive: false });
    canvas.addEventListener('pointerdown', (event) => {
      this.pointers.set(event.pointerId, event.offsetX);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointermove', (event) => this.moved(event));
    for (const end of ['pointerup', 'pointercancel']) canvas.addEventListener(end, (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener('pointerleave', () => { this.pointer = null; this.tip.hide(); });
    canvas.addEventListener('click', (event) => this.tell(event.offsetX, event.offsetY));
    canvas.addEventListener('keydown', (event) => {
      const act = { ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), '+': () => this.zoom(0.5), '-': () => this.zoom(2), Home: () => this.show(0, this.total) }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
  }

  pan(share) {
    const by = share * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  moved(event) {
    const before = this.pointers.get(event.pointerId);
    this.pointer = [event.offsetX, event.offsetY];
    if (before === undefined) { this.tell(event.offsetX, event.offsetY); return; }
    if (this.pointers.size === 1) {
      this.pan((before - event.offsetX) / (this.width - LABELS));
    } else {
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
      const was = Math.max(Math.abs(before - other), 10), is = Math.max(Math.abs(event.offsetX - other), 10);
      this.zoom(was / is, this.at(other));
    }
    this.pointers.set(event.pointerId, event.offsetX);
  }

  // -- telling --

  tell(x, y) {
    const text = this.said(x, y);
    if (text) this.tip.show(x, this.canvas.offsetTop + y, text); else this.tip.hide();
  }

  said(x, y) {
    const moment = this.at(x);
    if (x < LABELS || moment < 0) return '';
    if (y < HEAD) return this.markNear(x);
    const number = Math.floor((y - HEAD) / (LANE + GAP)), row = this.course.rows[number];
    if (!row) return '';
    return this.doing(row, moment);
  }

  markNear(x) {
    const near = this.course.marks.filter(([at]) => Math.abs(this.px(at / this.course.tick) - x) < 7);
    return near.slice(0, 8).map(([at, , text]) => `${this.time(at)}: ${text}`).join('\n');
  }

  time(seconds) {
    return clock(seconds, (this.to - this.from) * this.course.tick);
  }

  doing(row, moment) {
    const tick = this.course.tick, i = countUpTo(row.begins, moment) - 1;
    const who = row.workers.filter((entry) => entry[0] <= moment * tick + 1e-9).pop();
    const name = who ? `worker ${who[1]}` : placeName(row);
    if (i < 0 || moment >= Math.max(row.ends[i], row.pushes[i])) return `${name} is not there`;
    if (moment >= row.pushes[i]) {
      const reason = this.course.reasons[row.reasons[i]] || 'waits';
      const by = row.until[i], until = by === NOBODY ? '' : by <= LEFT ? `\nuntil worker ${LEFT - by} left` : `\nuntil worker ${by} pushed`;
      return `${name} waits ${this.lasts(row.ends[i] - row.pushes[i])}, from ${this.time(row.pushes[i] * tick)}\n${reason}${until}`;
    }
    const fate = ['', '\nits gradient was not used', '\nthe work was lost', '\nits gradient has no fate yet'][row.fates[i]];
    return `${name} computes for ${this.lasts(row.pushes[i] - row.begins[i])}, from ${this.time(row.begins[i] * tick)}${fate}`;
  }

  lasts(ticks) {
    const seconds = ticks * this.course.tick;
    return seconds < 1 ? `${+(1000 * seconds).toPrecision(3)} ms` : `${+seconds.toPrecision(3)} s`;
  }

  // -- drawing --

  px(moment) {
    return LABELS + (moment - this.from) / (this.to - this.from) * (this.width - LABELS);
  }

  draw() {
    if (this.scheduled || !this.width) return;
    this.scheduled = true;
    requestAnimationFrame(() => { this.scheduled = false; this.paint(); });
  }

  paint() {
    const ratio = window.devicePixelRatio || 1, pen = this.pen = this.canvas.getContext('2d');
    const styles = getComputedStyle(document.documentElement), colour = (name) => styles.getPropertyValue(name).trim();
    this.colours = Object.fromEntries(Object.entries(KINDS).map(([kind, name]) => [kind, colour(name)]));
    this.ink = { dim: colour('--dim'), line: colour('--line'), ink: colour('--ink'), panel: colour('--panel') };
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = '12px system-ui, sans-serif';
    this.paintTime();
    this.course.rows.forEach((row, number) => this.paintRow(row, HEAD + number * (LANE + GAP)));
    this.paintMoments(this.course.barriers, this.ink.ink, HEAD - 4, this.height - 8, 24);
    this.paintMoments(this.course.updates, this.ink.dim, HEAD - 5, HEAD - 1, 4);
    this.paintMarks();
  }

  paintTime() {
    const { pen } = this, tick = this.course.tick, span = (this.to - this.from) * tick;
    pen.textBaseline = 'alphabetic';
    for (const seconds of niceSteps(this.from * tick, this.to * tick, Math.max(2, this.width / 140))) {
      const x = this.px(seconds / tick), text = clock(seconds, span);
      pen.fillStyle = this.ink.line;
      pen.fillRect(x, HEAD - 6, 1, this.height - HEAD);
      pen.fillStyle = this.ink.dim;
      pen.textAlign = x > this.width - 30 ? 'right' : x < LABELS + 20 ? 'left' : 'center';
      pen.fillText(text, x, 12);
    }
  }

  paintRow(row, top) {
    const { pen } = this;
    pen.fillStyle = this.ink.ink;
    pen.textAlign = 'left';
    pen.textBaseline = 'middle';
    pen.fillText(placeName(row), 0, top + LANE / 2, LABELS - 6);
    pen.fillStyle = this.ink.panel;
    pen.fillRect(LABELS, top, this.width - LABELS, LANE);
    const first = Math.max(0, countUpTo(row.begins, this.from) - 1), last = countUpTo(row.begins, this.to);
    if (last - first > (this.width - LABELS) / 3) this.paintShares(row, top); else this.paintSpans(row, top, first, last);
  }

  paintSpans(row, top, first, last) {
    const kinds = ['compute', 'unused', 'lost', 'open'], room = this.pxPerTick();
    for (let i = first; i < last; i++) {
      this.span(row.begins[i], row.pushes[i], top, this.colours[kinds[row.fates[i]]]);
      if (row.ends[i] > row.pushes[i]) this.span(row.pushes[i], row.ends[i], top, this.colours.wait);
      if ((row.ends[i] - row.begins[i]) * room > 4) {
        this.pen.fillStyle = this.ink.panel;
        this.pen.fillRect(this.px(row.ends[i]) - 0.75, top, 0.75, LANE);
      }
    }
  }

  pxPerTick() {
    return (this.width - LABELS) / (this.to - this.from);
  }

  span(begin, end, top, colour) {
    const left = Math.max(LABELS, this.px(begin)), right = Math.min(this.width, this.px(end));
    this.pen.fillStyle = colour;
    if (right > left) this.pen.fillRect(left, top, right - left, LANE);
  }

  // Of each pixel the part that was computed, from below, and the part that was waited, from above.
  paintShares(row, top) {
    const step = 1 / this.pxPerTick();
    let before = spentUpTo(row, this.from);
    for (let x = LABELS; x < this.width; x++) {
      const now = spentUpTo(row, this.from + (x - LABELS + 1) * step);
      const waited = (now[0] - before[0]) / step * LANE, computed = (now[1] - before[1]) / step * LANE;
      before = now;
      this.pen.fillStyle = this.colours.wait;
      this.pen.fillRect(x, top, 1, waited);
      this.pen.fillStyle = this.colours.compute;
      this.pen.fillRect(x, top + waited, 1, computed);
    }
  }

  paintMoments(moments, colour, top, bottom, room) {
    const first = countUpTo(moments, this.from), last = countUpTo(moments, this.to);
    if (last - first > (this.width - LABELS) / room) return;
    this.pen.fillStyle = colour;
    for (let i = first; i < last; i++) this.pen.fillRect(this.px(moments[i]) - 0.5, top, 1, bottom - top);
  }

  paintMarks() {
    const { pen } = this;
    pen.textAlign = 'center';
    pen.textBaseline = 'middle';
    for (const [at, kind] of this.course.marks) {
      const x = this.px(at / this.course.tick);
      if (x < LABELS - 1 || x > this.width + 1) continue;
      pen.fillStyle = { join: this.colours.compute, leave: this.colours.lost, switch: this.ink.ink, note: this.colours.wait }[kind];
      pen.fillText('▾', x, HEAD - 10);
      if (kind === 'switch') pen.fillRect(x - 1, HEAD - 6, 2, this.height - HEAD);
    }
  }
}
