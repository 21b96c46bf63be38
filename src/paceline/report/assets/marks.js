// Small pieces that all charts are made of. Text is only ever set as text, never as markup.

const SVG = 'http://www.w3.org/2000/svg';

function svg(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function html(name, kind, parent, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

// Round numbers between two values, about so many.
function niceSteps(low, high, about) {
  const raw = (high - low) / Math.max(about, 1);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return `${+value.toPrecision(4)}`;
}

// Seconds, as exactly as a picture of this span can show them.
function clock(seconds, span) {
  if (span > 7200) return `${+(seconds / 3600).toFixed(2)} h`;
  if (span > 300) return `${+(seconds / 60).toFixed(1)} min`;
  const digits = Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(span || 1))));
  return `${+seconds.toFixed(digits)} s`;
}

class Tip {
  constructor(host) {
    this.host = host;
    this.box = html('div', 'tip', host);
    this.box.setAttribute('role', 'status');
    this.hide();
  }

  show(x, y, text) {
    this.box.textContent = text;
    this.box.hidden = false;
    const width = this.box.offsetWidth, height = this.box.offsetHeight;
    const left = Math.max(0, Math.min(x + 12, this.host.clientWidth - width));
    const top = y - height - 10 < -40 ? y + 16 : y - height - 10;
    this.box.style.left = `${left}px`;
    this.box.style.top = `${top}px`;
  }

  hide() {
    this.box.hidden = true;
  }
}

// A row of buttons of which one is pressed: the one that was pressed last in such a row, wherever on the page.
const pressed = new Map();

function choice(host, label, names, chosen) {
  const row = html('div', 'controls', host);
  html('span', 'hint', row, label);
  const buttons = names.map((name) => html('button', '', row, name));
  const press = (name) => {
    pressed.set(label, name);
    buttons.forEach((button) => button.setAttribute('aria-pressed', button.textContent === name));
    chosen(name);
  };
  buttons.forEach((button) => button.addEventListener('click', () => press(button.textContent)));
  press(pressed.get(label) ?? names[0]);
}

// Draws now, and again whenever the width has changed.
function whenSized(host, draw) {
  let width = 0;
  const look = () => {
    if (host.clientWidth && host.clientWidth !== width) draw(width = host.clientWidth);
  };
  new ResizeObserver(look).observe(host);
  look();
}

function legend(host, names) {
  const list = html('ul', 'legend', host);
  names.forEach((name, i) => {
    const entry = html('li', '', list);
    const box = svg('svg', { width: 12, height: 12 }, entry);
    svg('rect', { width: 12, height: 12, rx: 2, class: `s${i % 8}` }, box);
    entry.append(name);
  });
}
