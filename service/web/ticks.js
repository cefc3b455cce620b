// Where axes have ticks, and which points of a long curve are drawn.
/* global d3 */

const MOST_DECADES = 12;

/** The power of ten at or below a positive number. */
const decade = (value) => Math.floor(Math.log10(value));

/** Ticks of a value axis that is so many pixels high: 1, 2 and 5 of each decade where it is logarithmic. */
export function valueTicks([low, high], log, height) {
  const most = Math.max(2, Math.floor(height / 34));
  // Numbers so close that nothing lies between them.
  if (!(high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)))) return [low];
  if (!log) return d3.ticks(low, high, Math.min(6, most));
  const found = [];
  const [first, last] = [decade(low), decade(high)];
  const every = Math.ceil((last - first + 1) / MOST_DECADES);
  for (let power = first; power <= last; power += every) {
    for (const digit of every > 1 ? [1] : [1, 2, 5]) {
      const value = Number(`${digit}e${power}`);
      if (value >= low && value <= high) found.push(value);
    }
  }
  if (found.length < 2) return d3.ticks(low, high, Math.min(4, most));
  if (found.length <= most) return found;
  const powers = found.filter((value) => /^1e/.test(value.toExponential()));
  return powers.length >= 2 ? powers : found.filter((_, at) => at % 2 === 0);
}

/**
 * Indices to draw: all of a short curve; else in each bucket of a pixel the lowest and the highest of
 * each list, so that no spike is lost.
 */
export function pick(lists, width) {
  const count = lists[0].length;
  if (count <= 3 * width) return Array.from({ length: count }, (_, at) => at);
  const size = Math.ceil(count / width);
  const found = [0];
  for (let start = 0; start < count; start += size) {
    const chosen = new Set();
    for (const list of lists) {
      let [lowest, highest] = [start, start];
      for (let at = start; at < Math.min(count, start + size); at++) {
        if (list[at] < list[lowest]) lowest = at;
        if (list[at] > list[highest]) highest = at;
      }
      chosen.add(lowest).add(highest);
    }
    for (const at of [...chosen].sort((one, other) => one - other)) if (at > found.at(-1)) found.push(at);
  }
  if (found.at(-1) !== count - 1) found.push(count - 1);
  return found;
}
