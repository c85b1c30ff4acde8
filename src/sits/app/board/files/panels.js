// The panels: each takes what the gateway told and puts it on the page.  Nothing is computed here that could be told.
import * as say from './words.js';
import {make, shape, fill, spark} from './draw.js';
const $ = id => document.getElementById(id);
const REACHED = 'button, summary, a[href], input, select, [tabindex]';
// Whoever is inside with the keyboard stays there, though all of it is drawn again.
const put = (id, ...nodes) => {
  const place = $(id), held = place.contains(document.activeElement) ? [...place.querySelectorAll(REACHED)].indexOf(document.activeElement) : -1;
  place.replaceChildren(...nodes.flat().filter(Boolean));
  if (held >= 0) place.querySelectorAll(REACHED)[held]?.focus({preventScroll: true});
};
const set = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };
const none = text => make('p', {class: 'none'}, text);
const cell = (kind, ...inside) => make('td', {class: kind}, ...inside);
const head = (...names) => make('thead', {}, make('tr', {}, names.map(([name, kind]) => make('th', {scope: 'col', class: kind}, name))));
const swatch = layer => make('i', {class: `swatch ${layer}`, 'aria-hidden': 'true'});

// Rows are written every 2 s.
const QUIET_MS = 30000;

export function headline(told) {
  const {slo, objective, requests, window: win} = told, metric = say.metric(objective.metric);
  $('fleet').textContent = told.fleet;
  set('generation', `generation ${told.generation}`);
  const goal = say.round(objective.p99_ms);
  let text, more;
  if (told.state === 'empty') {
    text = 'No requests in this window';
    more = told.newest_ms ? `The newest request in the store came ${say.ago(told.now_ms - told.newest_ms)} ago. Choose a longer window, or another model, engine or tenant.`
      : 'The store has no requests yet. They show here some seconds after the first one was answered.';
  } else if (slo.state === 'unknown') {
    text = `${say.plural(requests.total, 'request')}, none of them timed`;
    more = 'Nothing completed with its points seen: look at what went wrong, below.';
  } else {
    const off = slo.p99_ms / objective.p99_ms;
    text = slo.state === 'met' ? `${metric} P99 is ${say.time(slo.p99_ms)}, within the objective of ${goal}`
      : slo.state === 'missed' ? `${metric} P99 is ${say.time(slo.p99_ms)}, ${off < 1.995 ? `${say.about(off - 1)} over` : `${off < 9.95 ? off.toFixed(1).replace('.0', '') : say.count(off)} times`} the objective of ${goal}`
      : `${metric} P99 is about ${say.time(slo.p99_ms)}; whether ${goal} holds is not proven yet`;
    more = `${say.count(slo.n)} timed requests; the P99 lies between ${say.time(slo.low_ms)} and ${say.time(slo.high_ms)} (99 % sure). ${say.percent(slo.slow_share)} were slower than the objective; 1 % may be.`;
  }
  if (told.from_rows && told.state !== 'empty') more += ' Counted from single rows.';
  if (told.state !== 'empty' && win.live && told.newest_ms && told.now_ms - told.newest_ms > QUIET_MS) more += ` The newest request in the store came ${say.ago(told.now_ms - told.newest_ms)} ago: there is no traffic, or what is recorded is behind.`;
  if (told.faults.length) more += ` Faults are put into traffic on purpose, as the fleet says (injections): ${told.faults.map(([name, share]) => `${name} (${say.percent(share)})`).join(', ')}.`;
  set('headline', text); set('detail', more);
  document.title = `${slo.p99_ms ? `P99 ${say.time(slo.p99_ms)}` : 'no data'} · ${told.fleet}`;
  set('l-latency', `${metric} by ${win.step_s === 60 ? 'minute' : `${win.step_s / 60} minutes`}, and requests per second below`);
}
export function figures(told) {
  const {slo, objective, requests, window: win} = told, young = win.first_ms, s = Math.max(young ? 60 : 1, (Math.min(told.now_ms, win.until_ms) - (young || win.since_ms)) / 1000);
  const span = young ? `since ${say.clock(young, win.until_ms - young > 864e5)}` : 'in the window';
  const one = (name, [value, unit], sub, kind, id) => make('div', {class: kind}, make('dt', {}, name),
    make('dd', {}, make('span', {id}, value), unit ? make('small', {}, unit) : null), make('span', {class: 'sub', id: id && `${id}-sub`}, sub || '\u00a0'));
  put('figures',
    one(`P99 of ${objective.metric === 'ttft' ? 'TTFT' : 'the whole'}`, say.split(slo.p99_ms), slo.n ? `${say.time(slo.low_ms)} ${say.DASH} ${say.time(slo.high_ms)}` : 'nothing timed', slo.state),
    one('P50', say.split(slo.p50_ms), slo.n ? `of ${say.count(slo.n)} timed` : ''),
    one('Requests', [say.rate(requests.total / s), '/s'], `${say.count(requests.total)} ${span}`),
    one('Went wrong', requests.total ? [say.percent(requests.total_bad / requests.total), ''] : [say.DASH, ''], `${say.plural(requests.total_bad, 'request')}`, requests.total_bad / requests.total > 0.01 ? 'missed' : ''),
    one('Output', [say.rate(requests.total_tokens / s), 'tok/s'], `${say.count(requests.total_tokens)} tokens${young ? ` ${span}` : ''}`),
    one('In flight now', [say.DASH, ''], '', '', 'inflight'));
  if (felt) pulse(felt);
}
let felt = null;
export function pulse(told) {
  felt = told;
  if (!$('inflight')) return;
  $('inflight').textContent = say.count(told.requests);
  $('inflight-sub').textContent = `${say.count(told.tokens)} tokens`;
}
export function latencyKey() {
  const line = (kind, text) => { const svg = shape('svg', {viewBox: '0 0 26 8', 'aria-hidden': 'true'}); svg.append(shape('path', {class: `${kind} key`, d: 'M0 4H26'})); return make('span', {}, svg, text); };
  return make('p', {class: 'legend'}, line('p99', 'P99'), line('p95', 'P95'), line('p50', 'P50'), line('goal', 'objective of the P99'), make('span', {}, square('traffic'), 'requests'), make('span', {}, square('wrong'), 'went wrong'), make('span', {}, moment(), 'something changed'));
}
function moment() {
  const svg = shape('svg', {viewBox: '0 0 8 10', 'aria-hidden': 'true', class: 'square change'}); svg.append(shape('path', {d: 'M0 2h8l-4 6z'})); return svg;
}
function square(kind) {
  const svg = shape('svg', {viewBox: '0 0 10 10', 'aria-hidden': 'true', class: 'square'}); svg.append(shape('rect', {class: kind, width: 10, height: 10})); return svg;
}

export function changes(told, win) {
  const long = win.steps * win.step_s > 86400, some = told.changes, open = $('changes').querySelector('details')?.open;
  const row = one => make('li', {class: one.level === 'info' ? '' : 'bad'}, make('time', {datetime: new Date(one.at_ms).toISOString()}, say.moment(one.at_ms, long)), make('span', {}, one.text));
  const list = rows => make('ul', {class: 'changes'}, rows.map(row)), first = 4;
  put('changes', make('h3', {}, 'What changed'), some.length ? list(some.slice(0, first)) : none('Nothing of the gateway or its engines in this window.'),
    some.length > first ? make('details', {open: open || false}, make('summary', {}, `${say.count(some.length - first)} before`), list(some.slice(first)), told.more ? make('p', {class: 'sub'}, `and ${told.whole ? '' : 'at least '}${say.count(told.more)} more: sitsctl logs has them all`) : null) : null);
}

const spaced = text => text.replace(/(\d)([a-z])/, `$1${say.THIN}$2`).replace(/m$/, 'min');
export function burn(told, only) {
  const hot = told.pairs.filter(pair => pair.burning), seen = told.pairs.some(pair => say.known(pair.long_burn));
  const until = told.until_ms ? `; as of ${say.clock(told.until_ms)}` : '';
  set('l-burn', !seen ? 'Nothing counted in the last three days.' : hot.length ? `Burning ${say.burnt(hot[0].long_burn)} as fast as it may: ${hot[0].then === 'page' ? 'somebody should be up' : 'look at it today'}` + until : `Spent no faster than an alert allows${until}`);
  const most = pair => Math.max(pair.limit * 1.5, pair.short_burn || 0, pair.long_burn || 0);
  const bar = (name, value, pair) => {
    const inside = make('b', {}), limit = make('u', {}), high = most(pair);
    inside.style.width = `${Math.min(100, (value || 0) / high * 100)}%`; limit.style.left = `${pair.limit / high * 100}%`;
    return make('div', {class: say.known(value) && value >= pair.limit ? 'bar hot' : 'bar'}, name, make('i', {'aria-hidden': 'true'}, inside, limit), make('em', {}, say.burnt(value)));
  };
  put('burn', make('ul', {class: 'burns'}, told.pairs.map(pair => make('li', {},
    make('div', {class: 'head'}, make('b', {class: pair.burning ? 'over' : ''}, pair.burning ? `${pair.then}: burning` : `${pair.then}: quiet`), make('span', {class: 'soft'}, `both over ${say.burnt(pair.limit).replace('.0', '')}`)),
    bar(spaced(pair.long), pair.long_burn, pair), bar(spaced(pair.short), pair.short_burn, pair)))),
    only.tenant ? make('p', {class: 'sub'}, 'Of all tenants: figures per minute do not tell them apart.') : null);
}

const EXACT = {measured: 'measured', derived: 'derived', sampled: 'sampled', missing: 'not told'};
const explained = of => of.kind === 'missing' ? 'how exact its times are is not told' : Object.entries(of.shares).filter(([, part]) => part > 0).map(([kind, part]) => `${say.percent(part)} ${kind}`).join(', ') + `; seen in ${say.percent(of.seen)} of requests`;
export function stages(told) {
  const all = told.stages;
  if (!all.length) { put('stages', none('No stage was timed in this window.')); return; }
  const open = $('stages').querySelector('details')?.open, most = Math.max(...all.map(one => one.p99_ms)), large = all.filter(one => one.p99_ms >= most / 100), small = all.filter(one => one.p99_ms < most / 100);
  const row = one => make('tr', {class: `${one.layer} ${one.exactness.kind}`},
    cell('name', swatch(one.layer), say.stage(one.stage)),
    make('td', {class: 'draw'}, fill(one.p99_ms / most, '')),
    cell('num', say.time(one.p99_ms)), cell('num mid soft', say.time(one.p95_ms)), cell('num mid soft', say.time(one.p50_ms)),
    cell('trend', spark(one.p99)), make('td', {class: 'exact', title: explained(one.exactness)}, EXACT[one.exactness.kind]));
  const table = rows => make('table', {class: 'stages'}, head(['Stage', ''], ['', 'draw'], ['P99', 'num'], ['P95', 'num mid'], ['P50', 'num mid'], ['P99 over the window', 'trend'], ['Times are', 'exact']), make('tbody', {}, rows.map(row)));
  put('stages', table(large), small.length ? make('details', {open: open || false}, make('summary', {}, `${small.length} more stages, each under ${say.time(most / 100)}`), table(small)) : null, legend());
}
function legend() {
  const key = (kind, text) => make('span', {class: 'device'}, make('i', {class: `fill ${kind}`}), text);
  return make('p', {class: 'legend'}, ...['http', 'scheduler', 'device', 'result'].map(layer => make('span', {}, swatch(layer), layer === 'http' ? 'HTTP layer' : layer === 'result' ? 'generation' : layer)),
    key('measured', 'measured'), key('derived', 'derived from other times'), key('sampled', 'sampled'), make('span', {class: 'unattributed'}, make('i', {class: 'fill unattributed'}), 'unattributed'));
}

const capital = text => text[0].toUpperCase() + text.slice(1);
export function tail(told) {
  if (!told.stages.length || !told.slow_n) { set('l-tail', 'Mean time by stage: the slowest 1 % against the rest.'); put('tail', none('Not enough timed requests in this window.')); return; }
  const rows = told.stages.map(one => ({...one, more: one.slow_ms - one.rest_ms})).sort((a, b) => b.more - a.more);
  const total = rows.reduce((sum, one) => sum + one.more, 0), shown = rows.filter(one => Math.abs(one.more) >= total / 200).slice(0, 8), most = Math.max(...shown.map(one => Math.max(one.slow_ms, one.rest_ms)));
  const first = shown[0];
  set('l-tail', `${capital(say.stage(first.stage))} makes ${say.about(first.more / total)} of the difference: ${say.plural(told.slow_n, 'slow request')} against ${say.count(told.rest_n)} others`);
  put('tail', make('table', {class: 'tail'}, head(['Stage', ''], ['Mean: slowest 1 % over the rest', 'draw'], ['Slowest', 'num'], ['Rest', 'num'], ['Adds', 'num']),
    make('tbody', {}, shown.map(one => make('tr', {class: one.layer}, cell('name', swatch(one.layer), say.stage(one.stage)),
      make('td', {class: 'draw'}, make('span', {class: 'pairs'}, fill(one.slow_ms / most, ''), fill(one.rest_ms / most, 'rest'))),
      cell('num', say.time(one.slow_ms)), cell('num soft', say.time(one.rest_ms)), cell('num', make('b', {}, `${one.more >= 0 ? '+' : '−'}${say.time(Math.abs(one.more))}`)))))),
    rows.length > shown.length ? make('p', {class: 'sub'}, `${rows.length - shown.length} more stages add ${say.time(total - shown.reduce((sum, one) => sum + one.more, 0)).replace('-', '−')} together.`) : null);
}
// Who is slow: one table of the kind that is chosen; a name narrows the whole page to it.
const WHO = {engine: 'no engine was reached', model: 'no model', arm: 'no arm', tenant: 'no tenant'};
export function groups(told, narrow) {
  const kind = document.querySelector('[name=kind]:checked').value, some = told.by[kind], out = told.stands_out;
  const text = out ? `${capital(out.kind)} ${out.name} has ${say.about(out.bad_share)} of the slow and wrong requests and ${say.about(out.share)} of the traffic` : `No name has more of the slow and wrong requests than its traffic explains`;
  set('l-groups', `${text}. ${told.rows && kind === 'tenant' ? `Counted from the newest ${say.count(told.rows)} requests.` : ''}`);
  document.querySelectorAll('[name=kind]').forEach(one => { one.onchange = () => groups(told, narrow); });
  if (!some.names.length) { put('groups', none('No requests in this window.')); return; }
  const focused = $('groups').contains(document.activeElement) && document.activeElement.dataset.name;
  const name = one => !one.name ? make('span', {class: 'soft'}, WHO[kind]) : kind === 'arm' ? one.name : make('button', {type: 'button', 'data-name': one.name, title: `Show only ${one.name}`}, one.name.length > 90 ? `${one.name.slice(0, 90)}…` : one.name);
  const row = one => make('tr', {class: out && out.kind === kind && out.name === one.name ? 'out' : ''}, cell('name', name(one)), cell('num', say.percent(one.share), make('span', {class: 'sub'}, say.count(one.n))),
    cell(`num${one.p99_ms > told.objective_ms ? ' over' : ''}`, say.time(one.p99_ms)), cell('num wide', say.count(one.slow), make('span', {class: 'sub'}, one.timed ? say.percent(one.slow / one.timed) : say.DASH)), cell('num wide', say.count(one.wrong), make('span', {class: 'sub'}, one.n ? say.percent(one.wrong / one.n) : say.DASH)),
    make('td', {class: 'draw'}, one.bad_share ? fill(one.bad_share, 'bad') : null, make('span', {class: 'hidden'}, `${say.percent(one.bad_share)} of the slow and wrong`)), cell('num', say.percent(one.bad_share)));
  put('groups', make('table', {class: 'list groups'}, head([capital(kind), ''], ['Requests', 'num'], [`P99 ${say.metric(told.metric) === 'TTFT' ? 'TTFT' : 'end to end'}`, 'num'], ['Slower', 'num wide'], ['Went wrong', 'num wide'], ['Of all slow and wrong', 'draw'], ['', 'num']), make('tbody', {}, some.names.map(row))),
    some.more ? make('p', {class: 'sub'}, `${say.count(some.more)} more with fewer.`) : null);
  $('groups').onclick = event => { const button = event.target.closest('button'); if (button) narrow(kind, button.dataset.name); };
  if (focused) $('groups').querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus();
}
const SOFT = {framework: 'frame\u00adwork', infrastructure: 'infra\u00adstructure', unattributed: 'un\u00adattributed'};
export function matrix(told) {
  if (!told.bands.length) { set('l-matrix', 'Share of the time of each latency band.'); put('matrix', none('No timed requests in this window.')); return; }
  set('l-matrix', `Share of each latency band's time, of ${told.newest ? 'the newest ' : ''}${say.plural(told.n, 'request')}`);
  put('matrix', make('table', {class: 'matrix'}, head(['Band', ''], ...told.planes.map(plane => [SOFT[plane] || plane, 'num'])),
    make('tbody', {}, told.bands.map(band => make('tr', {}, make('th', {scope: 'row'}, band.name.replace('<= ', '≤ ').replace('>= ', '≥ ').replace('..', ' – '), make('span', {class: 'sub'}, `${say.time(band.low_ms)} – ${say.time(band.high_ms)}`)),
      band.cells.map(one => {
        if (!one) return cell('num', say.DASH);
        const node = make('td', {class: 'num', title: `between ${say.percent(one.low)} and ${say.percent(one.high)}`}, make('b', {}, say.percent(one.share < 5e-6 ? 0 : one.share)), make('span', {class: 'sub'}, say.time(one.ms < 1e-6 ? 0 : one.ms)));
        node.style.setProperty('--t', (one.share * 0.4).toFixed(3));
        return node;
      }))))));
}

export function requests(told, open) {
  const line = (one, slow) => make('tr', {}, cell('', make('button', {type: 'button', 'data-id': one.id, 'data-at': one.wall_ms, title: one.id}, make('span', {class: 'id'}, one.id.slice(0, 18)))), cell('soft', say.clock(one.wall_ms, false)),
    cell('wide', one.engine || say.DASH), slow ? cell('num', say.time(one.ttft_ms)) : cell('wide soft', one.detail || say.DASH), slow ? cell('num wide', say.time(one.e2e_ms)) : null, cell(slow ? 'num soft' : 'num over', slow ? say.count(one.output_tokens) : `${one.outcome} ${one.status || ''}`));
  const table = (rows, slow) => make('table', {class: 'list'}, slow ? head(['Request', ''], ['Came', ''], ['Engine', 'wide'], ['TTFT', 'num'], ['Whole', 'num wide'], ['Tokens', 'num']) : head(['Request', ''], ['Came', ''], ['Engine', 'wide'], ['Because', 'wide'], ['Ended', 'num']), make('tbody', {}, rows.map(one => line(one, slow))));
  for (const [id, rows, slow, text] of [['slowest', told.slowest, true, 'No completed request in this window.'], ['failed', told.failed, false, 'Nothing went wrong in this window. What callers did wrong themselves, and those who left, are not listed.']]) {
    const focused = $(id).contains(document.activeElement) && document.activeElement.dataset.id;
    put(id, rows.length ? table(rows, slow) : none(text));
    $(id).onclick = event => { const button = event.target.closest('button'); if (button) open(button.dataset.id, button.dataset.at); };
    if (focused) $(id).querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
  }
}
export function fall(told) {
  const whole = told.total_ms || 1, fact = (name, value) => value || value === 0 ? make('span', {}, `${name} `, make('b', {}, String(value))) : null;
  const at = ms => `${(ms / whole * 100).toFixed(3)}%`;
  const row = bar => {
    const lane = make('div', {class: 'lane'}), drawn = fill(bar.ms / whole, `${bar.exactness} ${bar.layer}`, bar.explain);
    drawn.style.left = at(bar.start_ms); lane.append(drawn);
    if (say.known(told.first_token_ms) && told.first_token_ms < whole) { const mark = make('i', {class: 'mark'}); mark.style.left = at(told.first_token_ms); lane.append(mark); }
    return make('tr', {class: bar.layer}, make('td', {title: bar.explain}, swatch(bar.layer), say.stage(bar.stage)), cell('draw', lane), cell('num', say.time(bar.ms)), cell('num wide soft', say.percent(bar.ms / whole)), cell('soft wide', bar.exactness));
  };
  const ticks = make('div', {class: 'scale'}, ...[0, 0.25, 0.5, 0.75, 1].map(part => make('span', {}, say.time(part * whole))));
  return [make('h2', {id: 'r-title'}, `${told.outcome === 'completed' ? 'Completed' : `${told.outcome} ${told.status}`} after ${say.time(told.total_ms)}`), make('p', {class: 'lede'}, make('code', {}, told.id), told.trace_id !== told.id ? ' of trace ' : '', told.trace_id !== told.id ? make('code', {}, told.trace_id) : ''),
    make('p', {class: 'facts'}, fact('TTFT', say.time(told.first_token_ms)), fact('tenant', told.tenant), fact('model', told.model), fact('engine', told.engine), fact('arm', told.arm), fact('adapter', told.adapter), fact('because', told.detail), fact('prompt', `${say.count(told.prompt_tokens)} tokens`), fact('cached', `${say.count(told.cached_tokens)} tokens`), fact('output', `${say.count(told.output_tokens)} tokens`), told.preemptions ? fact('preempted', told.preemptions) : null, fact('came', new Date(told.wall_ms).toLocaleString('en-GB'))),
    make('table', {class: 'fall'}, head(['Stage', ''], ['', 'draw'], ['Took', 'num'], ['Share', 'num wide'], ['Times are', 'wide']), make('tbody', {}, told.bars.map(row)), make('tfoot', {}, make('tr', {}, cell(''), cell('draw', ticks), cell(''), cell('wide'), cell('wide')))), legend(),
    make('p', {class: 'sub'}, 'The dashed line is the first token. Stages and what no stage explains add up to the whole.')];
}

// Of a large fleet first what needs somebody; the others when they are asked for.
const MANY = 24;
let all = false;
const need = one => (one.up ? 0 : 1e9) + (one.known && one.kv_usage >= 0.95 ? 1e8 : 0) + (one.known ? one.requests_waiting * 1e3 : 1e7) + one.requests;
export function fleet(told, only) {
  const engines = told.engines.filter(one => (!only.engine || one.name === only.engine) && (!only.model || one.models.includes(only.model)));
  const down = engines.filter(one => !one.up).length, unknown = engines.filter(one => !one.known).length, many = engines.length > MANY;
  const shown = many && !all ? engines.map((one, i) => [need(one), i, one]).sort((a, b) => b[0] - a[0] || a[1] - b[1]).slice(0, MANY).map(([, , one]) => one) : engines;
  const left = engines.length < told.engines.length ? ` of ${told.engines.length}` : '';
  set('l-fleet', `${say.plural(engines.length, 'engine')}${left}${down ? `, ${down} down` : ', all up'}${unknown ? `; the state of ${unknown} is unknown (no word for ${told.stale_s} s)` : ''}${many && !all ? `. Shown are the ${MANY} that need somebody most: down, no word, KV full, then by what waits and what is in flight.` : ''}`);
  const button = $('more-engines');
  button.hidden = !many;
  button.textContent = all ? `Show the ${MANY} that need somebody most` : `Show all ${say.count(engines.length)} engines`;
  button.setAttribute('aria-expanded', String(all));
  button.onclick = () => { all = !all; fleet(told, only); };
  put('engines', shown.map(one => {
    const kv = make('b', {}), full = say.known(one.kv_usage) && one.kv_usage >= 0.95;
    kv.style.width = `${(one.kv_usage || 0) * 100}%`;
    const row = (name, value) => [make('dt', {}, name), make('dd', {}, value)];
    return make('li', {class: one.up ? '' : 'down'}, make('div', {class: 'head'}, make('span', {}, one.name), make('span', {class: `health ${one.up ? 'up' : 'down'}`}, one.state === 'trying' ? 'down, trying' : one.state)),
      make('span', {class: 'sub'}, [one.kind, one.models.join(', '), one.place].filter(Boolean).join(' · ')),
      make('dl', {}, row('in flight', `${say.count(one.requests)} · ${say.count(one.tokens)} tok`), row('running', one.known ? say.count(one.requests_running) : 'unknown'), row('waiting', one.known ? say.count(one.requests_waiting) : 'unknown'), row('KV in use', one.known ? say.percent(one.kv_usage) : 'unknown'), row('state is', say.known(one.age_ms) ? `${say.ago(one.age_ms)} old` : 'never told')),
      make('div', {class: `kv ${one.known ? full ? 'full' : '' : 'unknown'}`, role: 'img', 'aria-label': one.known ? `KV in use ${say.percent(one.kv_usage)}` : 'KV use unknown'}, kv));
  }));
}
