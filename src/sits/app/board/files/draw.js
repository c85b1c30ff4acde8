// Elements by hand, and the chart of a window: latency over time above, traffic below, one time axis, a cursor by pointer and by keys.
import * as say from './words.js';
const NS = 'http://www.w3.org/2000/svg';

export function make(tag, attributes, ...inside) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value !== false && value !== undefined && value !== null) node.setAttribute(name, value);
  node.append(...inside.flat().filter(one => one !== null && one !== undefined && one !== false));
  return node;
}
export function shape(tag, attributes, text) {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
// A bar of a share of its place, 0..1; its width is set as a property because the page allows no style attributes.
export function fill(part, kind, title) {
  const node = make('span', {class: `fill ${kind}`, title});
  node.style.width = `${Math.max(0, Math.min(100, part * 100)).toFixed(2)}%`;
  return node;
}
export function niceTicks(high, about) {
  const raw = high / about, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(one => one * power).reduce((a, b) => Math.abs(a - raw) < Math.abs(b - raw) ? a : b);
  const ticks = [];
  for (let at = 0; at <= high * 1.0001; at += step) ticks.push(at);
  return ticks;
}
function lines(values, x, y) {
  let d = '', on = false;
  values.forEach((value, i) => {
    if (!say.known(value)) { on = false; return; }
    d += `${on ? 'L' : 'M'}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    on = true;
  });
  return d;
}
const lone = (values, i) => say.known(values[i]) && !say.known(values[i - 1]) && !say.known(values[i + 1]);

export function spark(values) {
  const svg = shape('svg', {class: 'spark', viewBox: '0 0 200 26', preserveAspectRatio: 'none', 'aria-hidden': 'true'});
  const high = Math.max(...values.filter(say.known), 1e-9), last = Math.max(1, values.length - 1);
  svg.append(shape('path', {d: lines(values, i => i / last * 200, value => 24 - value / high * 21), 'vector-effect': 'non-scaling-stroke'}));
  return svg;
}

export class Chart {
  constructor(svg, reading) {
    this.svg = svg; this.reading = reading; this.cursor = -1; this.told = null; this.marks = [];
    svg.addEventListener('keydown', event => this.key(event));
    svg.addEventListener('pointermove', event => this.point(event));
    svg.addEventListener('pointerleave', () => this.move(-1));
    svg.addEventListener('blur', () => this.move(-1));
    new ResizeObserver(() => this.draw()).observe(svg.parentElement);
  }
  show(told) { this.told = told; this.draw(); }
  mark(changes) { this.marks = changes; this.draw(); }
  move(to) { if (this.told && to !== this.cursor) { this.cursor = to; this.draw(); } }
  key(event) {
    const n = this.told ? this.told.window.steps : 0, at = this.cursor < 0 ? n - 1 : this.cursor;
    const to = {ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 10, PageDown: at + 10, Home: 0, End: n - 1, Escape: -1}[event.key];
    if (to === undefined || !n) return;
    event.preventDefault();
    this.move(event.key === 'Escape' ? -1 : Math.max(0, Math.min(n - 1, to)));
  }
  point(event) {
    if (!this.told) return;
    const box = this.svg.getBoundingClientRect(), part = (event.clientX - box.left - this.left) / (box.width - this.left - this.right);
    this.move(Math.max(0, Math.min(this.told.window.steps - 1, Math.floor(part * this.told.window.steps))));
  }
  draw() {
    const {svg, told} = this;
    if (!told) return;
    const w = Math.max(260, svg.parentElement.clientWidth), h = w < 520 ? 290 : 340, foot = 24, low = 52, gap = 22;
    const left = this.left = 56, right = this.right = 8, top = 12, bottom = h - foot - low - gap;
    svg.setAttribute('viewBox', `0 0 ${w} ${h}`); svg.setAttribute('height', h);
    svg.replaceChildren();
    const of = told.latency[told.objective.metric], goal = told.objective.p99_ms, steps = told.window.steps;
    const x = i => left + (i + 0.5) / steps * (w - left - right);
    const high = Math.max(goal * 1.15, Math.max(0, ...of.p99.filter(say.known)) * 1.06), y = ms => bottom - ms / high * (bottom - top);
    const add = (tag, attributes, text) => { const node = shape(tag, attributes, text); svg.append(node); return node; };
    for (const tick of niceTicks(high, 5)) {
      add('line', {class: tick ? 'grid' : 'zero', x1: left, x2: w - right, y1: y(tick), y2: y(tick)});
      if (Math.abs(y(tick) - y(goal)) > 13) add('text', {x: left - 8, y: y(tick) + 4, 'text-anchor': 'end'}, say.round(tick));
    }
    add('line', {class: 'goal', x1: left, x2: w - right, y1: y(goal), y2: y(goal)});
    add('text', {class: 'goal-text', x: left - 8, y: y(goal) + 4, 'text-anchor': 'end'}, say.round(goal));
    for (const name of ['p50', 'p95', 'p99']) {
      add('path', {class: name, d: lines(of[name], x, y)});
      of[name].forEach((value, i) => lone(of[name], i) && add('circle', {class: `${name} dot`, cx: x(i), cy: y(value), r: 3}));
    }
    this.changed(add, x, top - 4, h - foot);
    this.traffic(add, x, w, h, foot, low);
    this.times(add, x, w, h);
    if (this.cursor >= 0) add('line', {class: 'cursor', x1: x(this.cursor), x2: x(this.cursor), y1: top, y2: h - foot});
    this.read(of);
  }
  // What changed: a line down both plots where it did, one for all of a moment, of the worst of them.
  changed(add, x, top, base) {
    const {window: win} = this.told, at = new Map();
    for (const one of this.marks) {
      const place = Math.round(x((one.at_ms - win.since_ms) / 1000 / win.step_s - 0.5));
      if (one.at_ms < win.since_ms || one.at_ms > win.until_ms) continue;
      at.set(place, [...(at.get(place) || []), one]);
    }
    for (const [place, some] of at) {
      const kind = `change ${some.some(one => one.level !== 'info') ? 'bad' : 'plain'}`, node = add('g', {class: kind});
      node.append(shape('line', {x1: place, x2: place, y1: top, y2: base}), shape('path', {d: `M${place - 4} ${top}h8l-4 6z`}), shape('title', {}, some.map(one => `${say.moment(one.at_ms, false)} ${one.text}`).join('\n')));
    }
  }
  traffic(add, x, w, h, foot, low) {
    const told = this.told, {window: win} = told, wide = (w - this.left - this.right) / win.steps;
    const lasted = i => Math.max(1, Math.min(win.step_s, (win.until_ms - win.since_ms) / 1000 - i * win.step_s));
    const perSecond = values => values.map((value, i) => value / lasted(i)), n = perSecond(told.requests.n), most = Math.max(1e-9, ...n);
    const base = h - foot, tall = value => value / most * (low - 8);
    add('text', {x: this.left - 8, y: base - low + 12, 'text-anchor': 'end'}, `${say.rate(most)}/s`);
    n.forEach((value, i) => value && add('rect', {class: 'traffic', x: x(i) - wide * 0.42, width: wide * 0.84, y: base - tall(value), height: tall(value)}));
    perSecond(told.requests.bad).forEach((value, i) => value && add('rect', {class: 'wrong', x: x(i) - wide * 0.42, width: wide * 0.84, y: base - Math.max(2, tall(value)), height: Math.max(2, tall(value))}));
    add('line', {class: 'zero', x1: this.left, x2: w - this.right, y1: base, y2: base});
  }
  times(add, x, w, h) {
    const {window: win} = this.told, minutes = (win.until_ms - win.since_ms) / 60000;
    const every = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080].find(one => minutes / one <= Math.max(2, (w - 60) / 92)) * 60000;
    const shift = new Date(win.since_ms).getTimezoneOffset() * 60000, long = minutes > 1440;
    for (let at = Math.ceil((win.since_ms - shift) / every) * every + shift; at <= win.until_ms; at += every) {
      const place = x((at - win.since_ms) / 1000 / win.step_s - 0.5);
      if (place < this.left + 14 || place > w - 20) continue;
      add('text', {x: place, y: h - 7, 'text-anchor': 'middle'}, say.clock(at, long));
    }
  }
  read(of) {
    const {window: win, requests} = this.told;
    this.reading.setAttribute('aria-live', this.cursor < 0 ? 'off' : 'polite');  // read aloud what a hand asks for, not every look
    let i = this.cursor < 0 ? win.steps - 1 : this.cursor;
    if (this.cursor < 0) while (i > 0 && !requests.n[i]) i -= 1;
    const s = Math.min(win.step_s, Math.max(1, (win.until_ms - win.since_ms) / 1000 - i * win.step_s));
    const text = requests.n[i]
      ? `${say.clock(win.since_ms + i * win.step_s * 1000, win.steps * win.step_s > 86400)}: P99 ${say.time(of.p99[i])}, P95 ${say.time(of.p95[i])}, P50 ${say.time(of.p50[i])}; ${say.rate(requests.n[i] / s)} requests/s, ${requests.bad[i] ? `${say.count(requests.bad[i])} went wrong` : 'none went wrong'}.`
      : `${say.clock(win.since_ms + i * win.step_s * 1000, win.steps * win.step_s > 86400)}: no requests.`;
    const then = this.cursor < 0 ? [] : this.marks.filter(one => Math.floor((one.at_ms - win.since_ms) / 1000 / win.step_s) === i);
    const whole = then.length ? `${text} Then: ${then.slice(0, 3).map(one => one.text).join('; ')}${then.length > 3 ? `; and ${then.length - 3} more` : ''}.` : text;
    if (this.reading.textContent !== whole) this.reading.textContent = whole;
  }
}
