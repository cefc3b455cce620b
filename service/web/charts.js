// Line charts on d3's scales and shapes, as SVG: a band around a curve, a shaded zone, labels beside
// the curves, and a reading of values by mouse, finger or keyboard, also for people who do not see
// the picture.
/* global d3 */

import { h, number, svg, textWidth } from "./dom.js";
import { tools } from "./figures.js";
import { pick, valueTicks } from "./ticks.js";

const LEFT = 52;
const BOTTOM = 38;
const LINE = 17;
const WIDE = 620;
const DECADES = 3;
const HINT = "Point at or tap the curve, or use the arrow keys, to read its values.";
/** Beyond these, numbers have no room for arithmetic: they are drawn at the edge. */
const [SMALLEST, LARGEST] = [1e-290, 1e290];

/** The class that gives a curve its colour and dashes, by its place; -1 is the measured curve. */
export const look = (place) => (place < 0 ? "m" : `c${place % 8}`);

/**
 * A chart in a container.
 *
 * draw({name, x, xRange, zone: {from, to, label, short}, zero: {value, label},
 *       threshold: {value, label}, xLabel, log, fromZero, format,
 *       xText, wholeTicks, file,
 *       series: [{label, values, place, points, stepped, faint, band: {low, high, label}}]}) draws it again. Curves share `x`, which rises. A value that is null or
 * not finite is a gap. On a logarithmic axis a curve is drawn down to three decades below its highest
 * point, since a collapsed curve has zeros.
 */
export class Chart {
  constructor(container, { height = 260 } = {}) {
    this.height = height;
    this.given = null;
    this.at = 0;
    this.touched = false;
    this.width = 0;
    this.plot = h("div", { class: "plot", role: "img", "aria-label": "no data yet" });
    this.plot.style.height = `${height}px`;
    this.read = h("p", { class: "read" });
    this.tools = tools({
      picture: () => this.plot.firstElementChild,
      rows: () => this.rows(),
      name: () => this.given.name,
      file: () => this.given.file ?? "lacuna-chart",
    });
    container.classList.add("chart");
    container.replaceChildren(this.plot, this.read, this.tools.bar, this.tools.box);
    new ResizeObserver(() => this.resize()).observe(this.plot);
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerdown", (event) => this.point(event));
  }

  draw(given) {
    this.given = given;
    this.at = Math.max(0, Math.min(this.at, given.x.length - 1));
    this.tools.renew();
    const about = { role: "slider", "aria-label": `${given.name}: read values with the arrow keys`, "aria-valuemin": 0, "aria-valuemax": given.x.length - 1 };
    for (const [name, value] of Object.entries(about)) this.plot.setAttribute(name, value);
    this.plot.tabIndex = 0;
    this.paint();
    this.say(this.at);
  }

  resize() {
    const width = this.plot.clientWidth;
    if (this.given && width > 0 && width !== this.width) this.paint();
  }

  paint() {
    const width = this.plot.clientWidth;
    this.width = width;
    if (width === 0) return;
    const { given, height } = this;
    const beside = given.series.length > 1 && width >= WIDE;
    const legend = legendRows(given, width, !beside);
    const right = beside ? Math.min(0.3 * width, 14 + Math.max(...given.series.map(({ label }) => textWidth(label)))) : 12;
    const frame = { left: LEFT, right: width - right, top: 10 + legend.length * LINE, bottom: height - BOTTOM };
    this.x = d3.scaleLinear(range(given), [frame.left, frame.right]);
    this.y = valueScale(given, [frame.bottom, frame.top]);
    this.frame = frame;
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    picture.append(...this.zone(), ...this.axes(), ...this.threshold(), ...this.zero());
    for (const item of given.series) if (item.band) picture.append(this.band(item));
    for (const item of given.series) picture.append(...this.curve(item));
    picture.append(...(beside ? this.besideLabels() : legend.flatMap((row, at) => legendLine(row, at, width))));
    this.cursor = svg("g");
    picture.append(this.cursor);
    this.plot.replaceChildren(picture);
    this.mark(this.at);
  }

  zone() {
    const { given: { zone }, x, frame } = this;
    if (!zone) return [];
    const [from, to] = [x(zone.from), x(zone.to)].map((value) => Math.min(frame.right, Math.max(frame.left, value)));
    const box = svg("rect", { class: "zone", x: from, y: frame.top, width: Math.max(1, to - from), height: frame.bottom - frame.top });
    const label = [zone.label, zone.short].find((one) => one && to - from >= textWidth(one) + 8);
    return label ? [box, text("note", (from + to) / 2, frame.top + 15, label, "middle")] : [box];
  }

  axes() {
    const { given, frame, x, y } = this;
    const parts = [];
    for (const tick of valueTicks(y.domain(), given.log && y.base !== undefined, frame.bottom - frame.top)) {
      const at = y(tick);
      if (!(at >= frame.top - 1 && at <= frame.bottom + 1)) continue;
      parts.push(svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: at, y2: at }));
      parts.push(text("tick", frame.left - 6, at + 4, (given.format ?? number)(tick), "end"));
    }
    const wanted = Math.max(2, Math.min(10, Math.floor((frame.right - frame.left) / 70)));
    for (const tick of x.ticks(wanted).filter((value) => !given.wholeTicks || Number.isInteger(value))) {
      parts.push(svg("line", { class: "axis", x1: x(tick), x2: x(tick), y1: frame.bottom, y2: frame.bottom + 4 }));
      parts.push(text("tick", x(tick), frame.bottom + 16, number(tick), "middle"));
    }
    parts.push(svg("line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }));
    parts.push(text("label", frame.right, frame.bottom + 31, given.xLabel, "end"));
    return parts;
  }

  /** The line of the threshold; its label stands above the chart, clear of the curve. */
  threshold() {
    const { given, frame, y } = this;
    if (!hasThreshold(given)) return [];
    const at = y(given.threshold.value);
    return [svg("line", { class: "threshold", x1: frame.left, x2: frame.right, y1: at, y2: at })];
  }

  zero() {
    const { given, frame, y } = this;
    const { zero } = given;
    const at = zero ? y(zero.value) : NaN;
    if (!(at >= frame.top && at <= frame.bottom)) return [];
    const line = svg("line", { class: "zero", x1: frame.left, x2: frame.right, y1: at, y2: at });
    // The label stands above or below the line, where all curves are farthest from it.
    const half = textWidth(zero.label) / 2;
    const [first, last] = [frame.left + half + 2, frame.right - half - 2];
    const height = (values, left) => {
      const after = Math.max(1, d3.bisectLeft(given.x, left));
      const [from, to] = [after - 1, after].map((i) => (Number.isFinite(values[i]) ? y(this.within(values[i])) : NaN));
      return from + ((to - from) * (left - given.x[after - 1])) / (given.x[after] - given.x[after - 1]);
    };
    const away = ([middle, base]) => Math.min(...given.series.flatMap(({ values }) => [-1, -0.5, 0, 0.5, 1].map((off) => {
      const found = Math.abs(height(values, this.x.invert(middle + off * half)) - (base - 4));
      return Number.isFinite(found) ? found : Infinity;
    })));
    const bases = [at - 5, at + 14].filter((base) => base > frame.top + 12 && base < frame.bottom - 2);
    const spots = [0.08, 0.3, 0.5, 0.7, 0.92].flatMap((share) => bases.map((base) => [first + share * (last - first), base]));
    const [middle, base] = d3.greatest(spots, (one, other) => away(one) - away(other)) ?? [first, at - 5];
    return [line, text("note halo", middle, base, zero.label, "middle")];
  }

  band({ band, place }) {
    const { given, x, y } = this;
    const indices = pick([band.low, band.high], this.width);
    const area = d3.area((i) => x(given.x[i]), (i) => y(this.within(band.low[i])), (i) => y(this.within(band.high[i])))
      .defined((i) => Number.isFinite(band.low[i]) && Number.isFinite(band.high[i]));
    return svg("path", { class: `band ${look(place)}`, d: area(indices) ?? "" });
  }

  curve({ values, place, points, stepped, faint }) {
    const { given, x, y } = this;
    const indices = pick([values], this.width);
    // What leaves the axis is drawn down to its edge, so that a fall is seen.
    const at = indices.filter((i, k) => Number.isFinite(values[i]) && [i, indices[k - 1], indices[k + 1]].some((one) => this.drawn(values[one])));
    const on = new Set(at);
    const line = d3.line((i) => x(given.x[i]), (i) => y(this.within(values[i]))).defined((i) => on.has(i));
    if (stepped) line.curve(d3.curveStepAfter);
    const parts = [svg("path", { class: `curve ${look(place)}${faint ? " faint" : ""}`, d: line(indices) ?? "" })];
    if (!points && values.length > 1) return parts;
    for (const i of indices.filter((at) => this.drawn(values[at]))) {
      parts.push(svg("circle", { class: `dot ${look(place)}`, cx: x(given.x[i]), cy: y(this.within(values[i])), r: 3.5 }));
    }
    return parts;
  }

  /** Whether a value is one that the axis has: below a logarithmic one a curve is not drawn. */
  drawn(value) {
    return Number.isFinite(value) && (this.y.base === undefined || value >= this.y.domain()[0]);
  }

  /** A value, or the nearest that the axis has. */
  within(value) {
    const [low, high] = this.y.domain();
    return Math.min(high, Math.max(low, value));
  }

  besideLabels() {
    const { given, frame, y } = this;
    const ends = given.series.map((item) => ({ item, at: y(this.within(item.values.findLast(Number.isFinite) ?? y.domain()[0])) }));
    ends.sort((one, other) => one.at - other.at);
    // From top to bottom each keeps a line's distance; what is pushed out at the bottom moves all up.
    ends.forEach((one, i) => (one.at = Math.max(one.at, i ? ends[i - 1].at + LINE - 2 : frame.top + 4)));
    const over = Math.max(0, (ends.at(-1)?.at ?? 0) - frame.bottom);
    return ends.map(({ item, at }) => text(`name ${look(item.place)}`, frame.right + 8, at - over + 4, cut(item.label, this.width - frame.right - 10), "start"));
  }

  point(event) {
    if (!this.given || !this.x) return;
    const left = event.clientX - this.plot.getBoundingClientRect().left;
    this.touched = true;
    this.say(d3.bisectCenter(this.given.x, this.x.invert(left)));
  }

  key(event) {
    if (!this.given) return;
    const last = this.given.x.length - 1;
    const page = Math.max(1, Math.round(last / 10));
    const at = this.at;
    const moves = {
      ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1,
      PageDown: at - page, PageUp: at + page, Home: 0, End: last,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.touched = true;
    this.say(Math.min(last, Math.max(0, moves[event.key])));
  }

  say(index) {
    this.at = index;
    const { given } = this;
    const format = given.format ?? number;
    const values = given.series.map(({ label, values: all, band }) => {
      const ends = band && Number.isFinite(band.low[index]) ? ` (${format(band.low[index])} to ${format(band.high[index])})` : "";
      return `${label} ${format(all[index])}${ends}`;
    });
    const reading = `${given.xText(index)}: ${values.join(", ")}`;
    this.read.textContent = this.touched ? reading : this.first() ? HINT : "";
    this.plot.setAttribute("aria-valuenow", index);
    this.plot.setAttribute("aria-valuetext", reading);
    this.mark(index);
  }

  /** Whether no chart of the same view stands before this one: the hint is given once. */
  first() {
    const seen = [...this.plot.closest("section")?.querySelectorAll(".chart:has(.read)") ?? []].find((one) => !one.closest("section [hidden]"));
    return !seen || seen.contains(this.plot);
  }

  mark(index) {
    if (!this.cursor || !this.touched) return;
    const { given, x, y, frame } = this;
    const at = x(given.x[index]);
    const dots = given.series.filter(({ values }) => this.drawn(values[index]))
      .map(({ values, place }) => svg("circle", { class: `dot ${look(place)}`, cx: at, cy: y(this.within(values[index])), r: 4 }));
    this.cursor.replaceChildren(svg("line", { class: "cursor", x1: at, x2: at, y1: frame.top, y2: frame.bottom }), ...dots);
  }

  rows() {
    const { x, xLabel, series } = this.given;
    const columns = [xLabel];
    const lists = [x];
    for (const { label, values, band } of series) {
      columns.push(label, ...(band ? [`${label}, low`, `${label}, high`] : []));
      lists.push(values, ...(band ? [band.low, band.high] : []));
    }
    return { columns, rows: x.map((_, at) => lists.map((list) => list[at])) };
  }
}

const text = (kind, x, y, words, anchor) => {
  const made = svg("text", { class: kind, x, y, "text-anchor": anchor });
  made.textContent = words;
  return made;
};

/** Labels above a chart, as many a row as fit: of curves, unless they stand beside them, of bands and the threshold. */
function legendRows(given, width, curves) {
  const { series, threshold } = given;
  const entries = [
    ...(curves ? series : []),
    ...series.filter(({ band }) => band?.label).slice(0, 1).map(({ band, place }) => ({ label: band.label, place, shade: true })),
    ...(hasThreshold(given) ? [{ label: threshold.label, kind: "threshold" }] : []),
  ];
  const rows = entries.length ? [[]] : [];
  let used = LEFT;
  for (const item of entries) {
    const needs = 36 + textWidth(item.label);
    if (used + needs > width && rows.at(-1).length) {
      rows.push([]);
      used = LEFT;
    }
    rows.at(-1).push({ item, x: used });
    used += needs;
  }
  return rows;
}

const legendLine = (row, at, width) =>
  row.flatMap(({ item, x }) => [
    item.shade
      ? svg("rect", { class: `band ${look(item.place)}`, x, y: at * LINE + 3, width: 20, height: 11 })
      : svg("line", { class: item.kind ?? `curve ${look(item.place)}${item.faint ? " faint" : ""}`, x1: x, x2: x + 20, y1: at * LINE + 9, y2: at * LINE + 9 }),
    text("name plain", x + 25, at * LINE + 13, cut(item.label, width - x - 30), "start"),
  ]);

/** A label, cut where it has no more room. */
function cut(label, room) {
  let kept = label;
  while (kept.length > 1 && textWidth(kept) > room) kept = `${kept.slice(0, kept.endsWith("…") ? -2 : -1)}…`;
  return kept;
}

/** Whether there is a threshold that the value axis reaches. */
function hasThreshold(given) {
  const [low, high] = valueScale(given, [1, 0]).domain();
  return Boolean(given.threshold) && given.threshold.value >= low && given.threshold.value <= high;
}

function range({ x, xRange }) {
  const [from, to] = xRange ?? [x[0], x.at(-1)];
  return to > from ? [from, to] : [from - 0.5, from + 0.5];
}

function valueScale(given, ends) {
  let [low, high] = [Infinity, -Infinity];
  for (const { values, band } of given.series) {
    const floor = given.log ? highest([values, band?.high ?? []]) / 10 ** DECADES : -Infinity;
    for (const list of [values, band?.low ?? [], band?.high ?? []]) {
      for (const value of list) {
        if (!Number.isFinite(value) || (given.log && value <= 0)) continue;
        low = Math.min(low, Math.max(value, floor, -LARGEST));
        high = Math.max(high, Math.min(value, LARGEST));
      }
    }
  }
  if (given.log && low > SMALLEST && high >= low) return d3.scaleLog([low / 1.15, high * 1.15], ends);
  if (!(high >= low)) [low, high] = [0, 1];
  if (given.fromZero) [low, high] = [Math.min(0, low), Math.max(0, high)];
  const spread = high - low > SMALLEST ? (high - low) * 0.06 : Math.abs(high) * 0.1;
  const room = spread > SMALLEST ? spread : 1;
  return d3.scaleLinear([given.fromZero && low === 0 ? 0 : low - room, high + room], ends);
}

function highest(lists) {
  let found = 0;
  for (const list of lists) for (const value of list) if (Number.isFinite(value) && value > found) found = value;
  return found;
}
