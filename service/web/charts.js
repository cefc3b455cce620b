// Line charts by uPlot, with what it lacks: colours of the theme, a dead zone, a band, and a reading
// of values by keyboard for people who use no mouse or do not see the picture.
/* global uPlot */

import { h, number } from "./dom.js";

const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 2], [12, 5], [3, 6]];

/** Colour and dashes by the place of a curve among its siblings; -1 is the measured one, -2 the same unsmoothed. */
export function style(place) {
  if (place === -2) return { color: "--measured", dash: [], width: 0.75 };
  if (place < 0) return { color: "--measured", dash: [], width: 2.5 };
  return { color: `--c${place % 8}`, dash: DASHES[(place + 1) % DASHES.length], width: 1.75 };
}

const resolve = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A piece of line as it is drawn in the chart. */
export function swatch(place) {
  const { color, dash, width } = style(place);
  const canvas = h("canvas", { class: "swatch", width: 52, height: 28, "aria-hidden": "true" });
  const draw = () => {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, 52, 28);
    context.strokeStyle = resolve(color);
    context.lineWidth = width * 2;
    context.setLineDash(dash.map((length) => length * 2));
    context.beginPath();
    context.moveTo(0, 14);
    context.lineTo(52, 14);
    context.stroke();
  };
  draw();
  onTheme(draw);
  return canvas;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
function onTheme(call) {
  dark.addEventListener("change", () => requestAnimationFrame(call));
}

/**
 * A chart in a container of fixed height.
 *
 * draw({x, series: [{label, values, place, points, stepped}], band: {low, high}, zone: [from, to],
 *       xLabel, yLabel, log, name, xText}) draws it again; curves share `x`.
 */
export class Chart {
  constructor(container) {
    this.plot = h("div", { class: "plot" });
    this.read = h("p", { class: "read" });
    container.replaceChildren(this.plot, this.read);
    this.uplot = null;
    this.given = null;
    this.plot.setAttribute("role", "img");
    this.plot.setAttribute("aria-label", "no data yet");
    new ResizeObserver(() => this.resize()).observe(this.plot);
    onTheme(() => this.given && this.draw(this.given));
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  draw(given) {
    this.given = given;
    this.uplot?.destroy();
    const floor = given.log ? lowest(given) : null;
    const clip = (values) => (floor === null ? values : values.map((v) => Math.max(v, floor)));
    const cut = (values) => (floor === null ? values : values.map((v) => (v < floor ? null : v)));
    const band = given.band ? [clip(given.band.low), clip(given.band.high)] : [];
    const data = [given.x, ...given.series.map((item) => cut(item.values)), ...band];
    this.uplot = new uPlot(this.options(given, band.length > 0, floor), data, this.plot);
    Object.assign(this.plot, { tabIndex: 0 });
    for (const [name, value] of Object.entries({
      role: "slider",
      "aria-label": `${given.name}: read values with the arrow keys`,
      "aria-valuemin": 0,
      "aria-valuemax": given.x.length - 1,
    })) {
      this.plot.setAttribute(name, value);
    }
    this.say(0);
  }

  options(given, banded, floor) {
    const text = { stroke: resolve("--muted"), font: "12px system-ui, sans-serif" };
    const grid = { stroke: resolve("--grid"), width: 1 };
    const axis = { ...text, grid, ticks: grid, labelFont: text.font, labelSize: 18, labelGap: 2 };
    const count = given.series.length;
    const series = given.series.map((item) => {
      const { color, dash, width } = style(item.place);
      return {
        label: item.label, stroke: resolve(color), width, dash,
        points: { show: item.points ?? false, size: 6, fill: resolve(color) },
        paths: item.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      };
    });
    const edge = { stroke: "transparent", width: 0, points: { show: false } };
    return {
      width: this.plot.clientWidth, height: this.plot.clientHeight,
      padding: [8, 12, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: {
        x: { time: false, range: given.xRange },
        y: given.log ? { distr: 3, range: (u, low, high) => [Math.max(low / 1.2, floor), high * 1.2] } : {},
      },
      axes: [
        { ...axis, label: given.xLabel, size: 32, values: given.xTicks },
        { ...axis, label: given.yLabel, size: 46, values: (u, ticks) => ticks.map((v) => (v === null ? "" : number(v))) },
      ],
      series: [{}, ...series, ...(banded ? [edge, edge] : [])],
      bands: banded ? [{ series: [count + 2, count + 1], fill: resolve("--band") }] : [],
      hooks: {
        drawClear: [(u) => shade(u, given.zone)],
        setCursor: [(u) => u.cursor.idx !== null && this.say(u.cursor.idx)],
      },
    };
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (this.uplot && width > 0) this.uplot.setSize({ width, height });
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
    const index = Math.min(last, Math.max(0, moves[event.key]));
    this.uplot.setCursor({ left: this.uplot.valToPos(this.given.x[index], "x"), top: 0 }, false);
    this.say(index);
  }

  say(index) {
    this.at = index;
    const { given } = this;
    const values = given.series.map((item) => `${item.label} ${number(item.values[index])}`);
    const reading = `${given.xText(index)}: ${values.join(", ")}`;
    this.read.textContent = reading;
    this.plot.setAttribute("aria-valuenow", index);
    this.plot.setAttribute("aria-valuetext", reading);
  }
}

// A collapsed curve has zeros: no more than three decades below the highest point are drawn.
function lowest({ series, band }) {
  const curves = [...series.map((item) => item.values), ...(band ? [band.high] : [])];
  const highest = Math.max(...curves.map((values) => Math.max(...values)));
  return highest / 1e3;
}

function shade(u, zone) {
  if (!zone) return;
  const [left, right] = zone.map((value) => u.valToPos(value, "x", true));
  u.ctx.save();
  u.ctx.fillStyle = resolve("--zone");
  u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
  u.ctx.restore();
}
