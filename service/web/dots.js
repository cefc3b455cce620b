// Numbers with their intervals around zero, a row each: what orders gain over a reference.
/* global d3 */

import { h, svg, textWidth } from "./dom.js";
import { tools } from "./figures.js";
import { valueTicks } from "./ticks.js";

const ROW = 46;
const TALL = 62;
const TOP = 10;
const BOTTOM = 40;
const MARGIN = 14;

export class DotChart {
  constructor(container) {
    this.given = null;
    this.width = 0;
    this.plot = h("div", { class: "plot", role: "img", "aria-label": "no data yet" });
    this.tools = tools({
      picture: () => this.plot.firstElementChild,
      rows: () => this.given.table,
      name: () => this.given.name,
      file: () => this.given.file,
    });
    container.classList.add("chart");
    container.replaceChildren(this.plot, this.tools.bar, this.tools.box);
    new ResizeObserver(() => this.plot.clientWidth !== this.width && this.paint()).observe(this.plot);
  }

  /**
   * given: {name, file, rows: [{label, text, value, low, high, outer: [low, high] | null}], zero,
   *         xLabel, format, table: {columns, rows}}. `outer` is a wider interval, drawn thinner.
   */
  draw(given) {
    this.given = given;
    this.plot.setAttribute("aria-label", `${given.name}. ${given.rows.map(({ label, text }) => `${label}: ${text}`).join("; ")}`);
    this.tools.renew();
    this.paint();
  }

  paint() {
    const { given } = this;
    const width = this.plot.clientWidth;
    this.width = width;
    if (!given || width === 0) return;
    this.tall = given.rows.some(({ label, text }) => textWidth(`${label}  ${text}`) > width - 2 * MARGIN);
    const step = this.tall ? TALL : ROW;
    const height = TOP + step * given.rows.length + BOTTOM;
    const ends = given.rows.flatMap(({ value, low, high, outer }) => [value, low, high, ...(outer ?? [])]).filter(Number.isFinite);
    const [low, high] = [Math.min(0, ...ends), Math.max(0, ...ends)];
    const room = (high - low) * 0.06 || 0.01;
    const x = d3.scaleLinear([low - room, high + room], [MARGIN, width - MARGIN]);
    const bottom = height - BOTTOM;
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    for (const tick of valueTicks(x.domain(), false, (width - 2 * MARGIN) / 2)) {
      picture.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: TOP, y2: bottom }), words("tick", x(tick), bottom + 15, given.format(tick), "middle"));
    }
    picture.append(svg("line", { class: "axis", x1: x(0), x2: x(0), y1: TOP, y2: bottom }));
    picture.append(words("label", width - MARGIN, bottom + 32, given.xLabel, "end"));
    for (const [at, row] of given.rows.entries()) picture.append(...this.row(row, TOP + step * at, x, width));
    this.plot.style.height = `${height}px`;
    this.plot.replaceChildren(picture);
  }

  row({ label, text, value, low, high, outer }, top, x, width) {
    const y = top + (this.tall ? 48 : 32);
    const line = (kind, from, to) => svg("line", { class: kind, x1: x(from), x2: x(to), y1: y, y2: y });
    return [
      words("name plain halo", MARGIN, top + 18, label, "start"),
      this.tall ? words("note halo", MARGIN, top + 34, text, "start") : words("note halo", width - MARGIN, top + 18, text, "end"),
      ...(outer ? [line("whisker outer", ...outer)] : []),
      ...(Number.isFinite(low) ? [line("whisker", low, high)] : []),
      ...(Number.isFinite(value) ? [svg("circle", { class: "dot m", cx: x(value), cy: y, r: 6 })] : []),
    ];
  }
}

function words(kind, x, y, text, anchor) {
  const made = svg("text", { class: kind, x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}
