// How figures are written: every one with its unit, as many digits as it is worth, and the same everywhere.
export const DASH = '–', THIN = '\u00a0';
export const known = value => value !== null && value !== undefined && Number.isFinite(value);

// A time in ms as [figure, unit]: 83 µs, 4.2 ms, 640 ms, 1.84 s.
export function split(ms) {
  if (!known(ms)) return [DASH, ''];
  const a = Math.abs(ms);
  if (a === 0) return ['0', 'ms'];
  if (a < 0.0995) return [String(Math.round(ms * 1000)), 'µs'];
  if (a < 0.995) return [ms.toFixed(2), 'ms'];
  if (a < 9.95) return [ms.toFixed(1), 'ms'];
  if (a < 999.5) return [ms.toFixed(0), 'ms'];
  if (a < 9995) return [(ms / 1000).toFixed(2), 's'];
  if (a < 99950) return [(ms / 1000).toFixed(1), 's'];
  return [Math.round(ms / 1000).toLocaleString('en-US'), 's'];
}
export const time = ms => split(ms).filter(Boolean).join(THIN);

// The same without digits that say nothing, for what is round: an objective, a tick.
export const round = ms => { const [figure, unit] = split(ms); return `${figure.includes('.') ? figure.replace(/\.?0+$/, '') : figure}${THIN}${unit}`; };

export function count(n) {
  if (!known(n)) return DASH;
  if (n >= 9.995e5) return `${(n / 1e6).toFixed(n >= 9.995e6 ? 1 : 2)}${THIN}M`;
  return Math.round(n).toLocaleString('en-US');
}
export function rate(n) {
  if (!known(n)) return DASH;
  if (n === 0) return '0';
  return n >= 99.5 ? count(n) : n >= 9.95 ? n.toFixed(1) : n.toFixed(2);
}
// A share: more digits the nearer it is to nothing or to all.
export function percent(part) {
  if (!known(part)) return DASH;
  const edge = Math.min(part, 1 - part) * 100;
  if (edge > 0 && edge < 0.00995) return part < 0.5 ? `<${THIN}0.01${THIN}%` : `>${THIN}99.99${THIN}%`;
  const digits = part <= 0 || part >= 1 || edge >= 9.95 ? 0 : edge >= 0.995 ? 1 : 2;
  return `${(part * 100).toFixed(digits)}${THIN}%`;
}
export function burnt(value) {
  return !known(value) ? DASH : `${value >= 9.95 ? Math.round(value).toLocaleString('en-US') : value.toFixed(value < 0.0995 && value > 0 ? 2 : 1)}×`;
}
export function clock(ms, long) {
  const at = new Date(ms), time = at.toLocaleTimeString('en-GB', {hour: '2-digit', minute: '2-digit'});
  return long ? `${at.toLocaleDateString('en-GB', {day: 'numeric', month: 'short'})} ${time}` : time;
}
export function moment(ms, long) {
  return `${clock(ms, long)}:${String(new Date(ms).getSeconds()).padStart(2, '0')}`;
}
export function ago(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  return s < 120 ? `${s}${THIN}s` : s < 7200 ? `${Math.round(s / 60)}${THIN}min` : s < 172800 ? `${Math.round(s / 3600)}${THIN}h` : `${Math.round(s / 86400)}${THIN}d`;
}
const SAID = {kv: 'KV', ttft: 'TTFT', e2e: 'end to end'};
export const stage = name => name.startsWith('unattributed (') ? name : name.split('_').map(word => SAID[word] || word).join(' ');
export const metric = name => name === 'ttft' ? 'TTFT' : 'End-to-end latency';
// A share in a sentence: two digits are enough there.
export const about = part => part > 0.99 && part < 1 ? `more than 99${THIN}%` : percent(Math.round(part * 100) / 100);
export const plural = (n, one) => `${count(n)} ${one}${n === 1 ? '' : 's'}`;
