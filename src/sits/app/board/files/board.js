// The board: what is looked at is in the address, figures come by one stream, what is dear is asked for when it is needed.
import * as say from './words.js';
import * as panels from './panels.js';
import {Chart, make} from './draw.js';
const $ = id => document.getElementById(id);
const form = $('look'), field = name => form.elements.namedItem(name);
const DEAR_MS = {'15m': 5000, '1h': 10000, '6h': 30000, '24h': 60000, custom: 0};
const LATE_MS = 12000, HIDDEN_MS = 10000;
let retry = 0, hidden = 0, glance = 0, away = false;
let stream = null, heardMs = 0, told = null, dear = 0, round = 0, shiftAt = 0, opener = '';
const chart = new Chart($('chart'), $('reading'));
$('chart').after(panels.latencyKey());

function look() {
  const asked = new URLSearchParams({window: field('window').value});
  for (const name of ['model', 'engine', 'tenant']) if (field(name).value) asked.set(name, field(name).value);
  if (field('window').value === 'custom') for (const name of ['since', 'until']) asked.set(name, String(Date.parse(field(name).value)));
  return asked;
}
const only = () => ({model: field('model').value, engine: field('engine').value, tenant: field('tenant').value});
function local(ms) { const at = new Date(ms - new Date(ms).getTimezoneOffset() * 60000); return at.toISOString().slice(0, 16); }

class Refused extends Error {}
async function ask(what, asked) {
  return read(await fetch(`api/${what}?${asked}`, {headers: {accept: 'application/json'}, cache: 'no-store'}));
}
async function read(answer) {
  if (answer.status === 401) { location.assign(`/login?ended=1&next=${encodeURIComponent(location.pathname + location.search)}`); }
  const body = await answer.json();
  if (!answer.ok) throw new Refused(`${body.error.message}${body.error.hint ? `. ${body.error.hint}` : ''}`);
  return body;
}
function trouble(title, text) {
  $('trouble').hidden = !title;
  if (title) $('trouble').replaceChildren(make('b', {}, title), text || '');
}

function failure(title, error) {
  const refused = error instanceof Refused;
  trouble(refused ? title : 'The admin process does not answer', refused ? error.message : 'It is being started again, or the way there is broken; traffic does not pass there. This page tries again by itself, and what is shown is the last that was known.');
}

function overview(next) {
  told = next; heardMs = Date.now();
  trouble('');
  panels.headline(told); panels.figures(told);
  $('filled').hidden = told.state === 'empty';
  if (told.state !== 'empty') { chart.show(told); panels.stages(told); }
  fresh();
  if (!document.documentElement.dataset.drawn) performance.mark('drawn');
  document.documentElement.dataset.drawn = '1';
}
async function dearer(mine) {
  if (told && told.state === 'empty') { if (mine === round) dear = setTimeout(() => dearer(mine), 5000); return; }
  for (const [what, show] of [['changes', one => { chart.mark(one.changes); panels.changes(one, told.window); }], ['requests', one => panels.requests(one, open)], ['groups', one => panels.groups(one, narrow)], ['tail', panels.tail], ['matrix', panels.matrix]]) {
    try {
      const one = await ask(what, look());
      if (mine !== round) return;
      show(one);
    } catch (error) { if (mine !== round) return; failure(`The ${what} could not be found`, error); }
  }
  const pause = DEAR_MS[field('window').value];
  if (pause) dear = setTimeout(() => dearer(mine), pause);
}
function fresh() {
  const live = field('window').value !== 'custom', chip = $('chip'), late = Date.now() - heardMs;
  const [kind, text] = !heardMs ? ['waiting', 'waiting'] : !live ? ['still', 'a window of the past'] : stream && stream.readyState === EventSource.OPEN && late < LATE_MS + 1000 * period() ? ['live', 'live'] : late > LATE_MS ? ['stale', `no news for ${say.ago(late)}`] : ['broken', 'connecting again'];
  chip.className = `chip ${kind}`;
  if (chip.textContent !== text) chip.textContent = text;
  $('main').classList.toggle('old', kind === 'stale');
  const title = document.title.replace(/^\(no news\) /, ''), shown = kind === 'stale' ? `(no news) ${title}` : title;
  if (document.title !== shown) document.title = shown;
}
const period = () => ({'6h': 10, '24h': 25}[field('window').value] || 2);

// A browser takes a broken stream up again by itself, but not one that was refused: then it is asked why, and tried again.
function listen(mine, asked) {
  if (stream) stream.close();
  clearTimeout(retry);
  const mineToo = stream = new EventSource(`events?${asked}`), again = () => { if (mine === round && stream === mineToo) listen(mine, asked); };
  const on = (kind, show) => mineToo.addEventListener(kind, event => { if (mine === round) { show(JSON.parse(event.data)); fresh(); } });
  on('overview', one => { const first = !told || told.state === 'empty'; overview(one); if (first && one.state !== 'empty') { clearTimeout(dear); dearer(mine); } });
  on('burn', one => panels.burn(one, only()));
  on('pulse', panels.pulse); on('fleet', one => panels.fleet(one, only()));
  on('trouble', one => trouble(one.of === 'overview' ? 'The store cannot be read' : `No figures of the ${one.of}`, `${one.message}${one.hint ? `. ${one.hint}` : ''}. What is shown is the last that was known.`));
  mineToo.onerror = async () => {
    fresh();
    if (mineToo.readyState !== EventSource.CLOSED || mine !== round) return;
    const leaving = new AbortController();
    try {
      const answer = await fetch(`events?${asked}`, {headers: {accept: 'application/json'}, signal: leaving.signal});
      if (answer.ok) leaving.abort(); else await read(answer);
    } catch (error) { if (mine === round && stream === mineToo) failure('These figures do not move', error); }
    if (mine === round && stream === mineToo) retry = setTimeout(again, 3000 + 2000 * Math.random());
  };
  fresh();
}
// A page that nobody sees gives its stream back: a browser has six connections to us for all its tabs.  Its title stays true.
function seen() {
  clearTimeout(hidden); clearInterval(glance);
  if (!document.hidden) { if (away) { away = false; listen(round, look()); dearer(round); } return; }
  hidden = setTimeout(() => {
    away = true; stream.close(); clearTimeout(retry); clearTimeout(dear);
    if (field('window').value !== 'custom') glance = setInterval(() => ask('overview', look()).then(overview, fresh), 30000);
  }, HIDDEN_MS);
}
document.addEventListener('visibilitychange', seen);

function start() {
  round += 1; clearTimeout(dear);
  const mine = round, asked = look(), custom = field('window').value === 'custom';
  history.replaceState(null, '', `?${asked}`);
  $('custom').hidden = !custom;
  if (stream) stream.close();
  if (custom && !(Date.parse(field('since').value) < Date.parse(field('until').value))) { trouble('The window ends before it begins', 'Choose an end after the beginning.'); return; }
  heardMs = 0; listen(mine, asked);
  told = null;
  const failed = error => { if (mine === round) failure('The figures could not be found', error); };
  const first = ask('overview', asked).then(one => { if (mine === round && !told) { overview(one); dearer(mine); } }).catch(failed);
  if (custom) ask('burn', asked).then(one => mine === round && panels.burn(one, only())).catch(failed);
  return first;
}

// The whole page of one name; the select may not have it yet.
function narrow(kind, name) {
  const select = field(kind);
  if (![...select.options].some(one => one.value === name)) select.append(make('option', {value: name}, name));
  select.value = name; select.focus(); start();
}

async function open(id, at) {
  $('found').textContent = '';
  try {
    const one = await ask('request', new URLSearchParams(at ? {id, at} : {id}));
    $('fall').replaceChildren(...panels.fall(one));
    if (!$('request').open) { opener = document.activeElement?.dataset.id || ''; $('request').showModal(); }
    $('request').scrollTop = 0;
  } catch (error) { $('found').textContent = error.message; }
}
$('search').addEventListener('submit', event => { event.preventDefault(); const id = $('id').value.trim(); if (id) open(id); });
// The list may have been drawn anew while the dialog was open: its button is another one then, and the focus may still be in what is closed.
$('request').addEventListener('close', () => { const at = document.activeElement; if (opener && (at === document.body || $('request').contains(at))) document.querySelector(`[data-id="${CSS.escape(opener)}"]`)?.focus(); });
$('request').addEventListener('click', event => { if (event.target === $('request')) $('request').close(); });

form.addEventListener('submit', event => event.preventDefault());
form.addEventListener('change', event => {
  if (event.target.name === 'since' || event.target.name === 'until') return;
  if (event.target.name === 'window' && event.target.value === 'custom' && !field('since').value) {
    const end = Math.floor(Date.now() / 60000) * 60000;
    field('since').value = local(end - 3600000); field('until').value = local(end);
  }
  start();
});
$('apply').addEventListener('click', start);

async function names() {
  const found = await ask('names', '');
  for (const [name, values] of [['model', found.models], ['engine', found.engines], ['tenant', found.tenants]]) {
    const wanted = field(name).value || new URLSearchParams(location.search).get(name) || '', all = new Set(values);
    if (wanted) all.add(wanted);
    field(name).replaceChildren(make('option', {value: ''}, 'all'), ...[...all].map(one => make('option', {value: one}, one)));
    field(name).value = wanted;
  }
}
async function shift() {
  try {
    const one = await (await fetch('shift.json', {cache: 'no-store'})).json();
    $('shift').textContent = one.error ? '' : one.status === 'none' ? 'no shift is running' : one.headline;
  } catch (error) { $('shift').textContent = ''; }
}
function restore() {
  const asked = new URLSearchParams(location.search), wanted = asked.get('window');
  const there = [...form.querySelectorAll('[name=window]')].find(one => one.value === wanted);
  if (there) there.checked = true;
  for (const name of ['model', 'engine', 'tenant']) if (asked.get(name)) { field(name).append(make('option', {value: asked.get(name)}, asked.get(name))); field(name).value = asked.get(name); }
  for (const name of ['since', 'until']) if (asked.get(name)) field(name).value = local(Number(asked.get(name)));
}
restore();
$('zone').textContent = `times are ${Intl.DateTimeFormat().resolvedOptions().timeZone || 'local'}`;
start().then(names, names);
shift(); setInterval(shift, 10000); setInterval(fresh, 1000);
