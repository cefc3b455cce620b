// A prompt as a bar, with the chunks laid under the curve: before, and after. Chunks of the second
// bar can be dragged, or moved with the arrow keys.
/* global d3 */

import { h, number, svg, textWidth } from "./dom.js";
import { tools } from "./figures.js";

const MARGIN = 8;
const CURVE = 84;
const BAR = 46;
const LABEL = 22;
const KEY = 44;
const LEGEND = 58;
const MOST_NAMED = 200;
/** Visibility up to which a chunk has each colour, from hardly heard to heard well. */
const STEPS = [0.5, 0.75, 0.9, 1.1, 1.35, 2, Infinity];
const STEP_NAMES = ["≤ 0.5×", "", "", "1×", "", "", "> 2×"];

export const heard = (visibility) => STEPS.findIndex((end) => visibility <= end);

export class PromptBars {
  /** `move(order)` is called with the ids of a new order, again and again while a chunk is dragged. */
  constructor(container, move) {
    this.move = move;
    this.given = null;
    this.held = null;
    this.width = 0;
    this.plot = h("div", { class: "plot bars" });
    this.read = h("p", { class: "read" }, " ");
    this.tools = tools({
      picture: () => this.plot.firstElementChild,
      rows: () => this.rows(),
      name: () => "Chunks in the prompt, before and after",
      file: () => "placement",
    });
    container.classList.add("chart");
    container.replaceChildren(this.plot, this.read, this.tools.bar, this.tools.box);
    new ResizeObserver(() => this.plot.clientWidth !== this.width && !this.held && this.paint()).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.drag(event));
    for (const type of ["pointerup", "pointercancel"]) this.plot.addEventListener(type, () => this.drop());
  }

  /**
   * given: {tokens, prefix, suffix, separator, curve: {x, density, name}, zone: {start, end, label},
   *         before: {label, placements}, after: {label, placements}}; x and zone in tokens.
   */
  draw(given) {
    this.given = given;
    this.tools.renew();
    if (this.held) this.refresh();
    else this.paint();
  }

  paint() {
    const width = this.plot.clientWidth;
    this.width = width;
    if (!this.given || width === 0) return;
    const focused = document.activeElement?.closest?.(".movable")?.dataset.id;
    const { given } = this;
    this.shared = sharedBeginning(given.before.placements.map((item) => item.id));
    const height = CURVE + 2 * (BAR + LABEL) + KEY + 10;
    this.x = d3.scaleLinear([0, Math.max(1, given.tokens)], [MARGIN, width - MARGIN]);
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "The prompt, before and after; move a chunk of the second bar with the arrow keys" });
    picture.append(...this.zone(height), ...this.curve());
    this.tops = [CURVE + LABEL, CURVE + 2 * LABEL + BAR];
    picture.append(...this.row(given.before, this.tops[0], false), ...this.row(given.after, this.tops[1], true), ...this.legend(height));
    this.plot.style.height = `${height}px`;
    this.plot.replaceChildren(picture);
    if (focused) this.plot.querySelector(`.movable[data-id="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  zone(height) {
    const { given: { zone }, x } = this;
    if (!zone) return [];
    // The label keeps clear of the curve's name, and of the end of the picture.
    const half = textWidth(zone.label) / 2;
    const [from, to] = [MARGIN + textWidth(this.given.curve?.name ?? "") + 12 + half, this.width - MARGIN - half];
    return [
      svg("rect", { class: "zone", x: x(zone.start), y: 0, width: Math.max(1, x(zone.end) - x(zone.start)), height: height - KEY }),
      words("note", Math.max(from, Math.min(to, (x(zone.start) + x(zone.end)) / 2)), 13, zone.label, "middle"),
    ];
  }

  curve() {
    const { given: { curve }, x } = this;
    if (!curve) return [];
    const top = Math.max(...curve.density.filter(Number.isFinite), 1) * 1.1;
    // An attention sink would flatten all the rest: higher than four even shares is cut off.
    const y = d3.scaleLinear([0, Math.min(top, 4)], [CURVE, 16]).clamp(true);
    const line = d3.line((i) => x(curve.x[i]), (i) => y(curve.density[i])).defined((i) => Number.isFinite(curve.density[i]));
    const indices = curve.x.map((_, at) => at);
    return [
      svg("line", { class: "zero", x1: MARGIN, x2: this.width - MARGIN, y1: y(1), y2: y(1) }),
      svg("path", { class: "curve m", d: line(indices) ?? "" }),
      this.even(y),
      words("name m", MARGIN, 12, curve.name, "start"),
    ];
  }

  /** The label of the line of even shares, above or below it, where the curve is farthest away. */
  even(y) {
    const { given: { curve }, x } = this;
    const label = "an even share";
    const half = textWidth(label) / 2;
    const heights = d3.scaleLinear(curve.x.map(x), curve.density.map(y));
    const away = ([at, base]) => Math.min(...d3.range(at - half, at + half, 4).map((left) => Math.abs(heights(left) - (base - 4))));
    const middles = [0, 0.25, 0.5, 0.75, 1].map((share) => MARGIN + half + share * (this.width - 2 * (MARGIN + half)));
    const bases = [y(1) - 4, y(1) + 13].filter((base) => base > 28 && base < CURVE);
    const [at, base] = d3.greatest(middles.flatMap((one) => bases.map((each) => [one, each])), (one, other) => away(one) - away(other));
    return words("note halo", at, base, label, "middle");
  }

  row({ label, placements }, top, movable) {
    const { given, x } = this;
    const parts = [words("name plain", MARGIN, top - 7, label, "start")];
    for (const [from, size, name] of [[0, given.prefix, "before"], [given.tokens - given.suffix, given.suffix, "after"]]) {
      if (!size) continue;
      parts.push(svg("rect", { class: "fixed", x: x(from), y: top, width: x(from + size) - x(from), height: BAR }));
      if (x(from + size) - x(from) > textWidth(name) + 6) parts.push(words("note", x(from + size / 2), top + BAR / 2 + 4, name, "middle"));
    }
    for (const [at, item] of placements.entries()) parts.push(this.chunk(item, at, placements.length, top, movable));
    return parts;
  }

  chunk(item, at, count, top, movable) {
    const group = svg("g", { class: `chunk${movable ? " movable" : ""}`, "data-id": item.id });
    const width = Math.max(1, this.x(item.offset + item.tokens) - this.x(item.offset));
    group.append(svg("rect", { class: `heard h${heard(item.visibility)}`, x: 0, y: 0, width: Math.max(1, width - 1), height: BAR }));
    if (count <= MOST_NAMED) {
      const fits = (text) => width >= textWidth(text) + 6;
      const value = `${number(item.visibility, 2)}×`;
      const short = item.id.slice(this.shared);
      const name = fits(item.id) ? item.id : fits(short) ? short : "";
      if (name) group.append(words(`in h${heard(item.visibility)}`, width / 2, 19, name, "middle"));
      if (fits(value)) group.append(words(`in h${heard(item.visibility)}`, width / 2, 36, value, "middle"));
    }
    group.setAttribute("transform", `translate(${this.x(item.offset)},${top})`);
    const about = aboutChunk(item, at, count);
    group.addEventListener("pointerenter", () => {
      this.read.textContent = about;
    });
    if (movable) this.makeMovable(group, item, about);
    return group;
  }

  makeMovable(group, item, about) {
    for (const [name, value] of Object.entries({ tabindex: 0, role: "button", "aria-label": `${about}; arrow keys move it` })) group.setAttribute(name, value);
    group.addEventListener("focus", () => {
      this.read.textContent = about;
    });
    group.addEventListener("keydown", (event) => this.press(event, item.id));
    group.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      event.preventDefault();
      group.focus({ preventScroll: true });
      // A pointer may be gone by the time that it is captured.
      try {
        this.plot.setPointerCapture(event.pointerId);
      } catch {
        return;
      }
      group.classList.add("held");
      group.parentNode.append(group);
      this.held = { id: item.id, group, grip: event.clientX - this.x(item.offset), tokens: item.tokens };
    });
  }

  press(event, id) {
    const order = this.given.after.placements.map((item) => item.id);
    const at = order.indexOf(id);
    const last = order.length - 1;
    const to = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.reorder(id, Math.min(last, Math.max(0, to)));
  }

  drag(event) {
    if (!this.held) return;
    const { id, group, grip, tokens } = this.held;
    const left = event.clientX - grip;
    group.setAttribute("transform", `translate(${left},${this.tops[1]})`);
    const middle = this.x.invert(left) + tokens / 2;
    const others = this.given.after.placements.filter((item) => item.id !== id);
    this.reorder(id, this.slot(others, middle));
  }

  /** Where among the others, which close ranks, a chunk with this middle belongs. */
  slot(others, middle) {
    let end = this.given.prefix;
    for (const [at, item] of others.entries()) {
      if (middle < end + item.tokens / 2) return at;
      end += item.tokens + this.given.separator;
    }
    return others.length;
  }

  /** Moves a chunk, at once in the picture; what it is worth follows. */
  reorder(id, to) {
    const placements = [...this.given.after.placements];
    const from = placements.findIndex((item) => item.id === id);
    if (from === to) return;
    const [moved] = placements.splice(from, 1);
    placements.splice(to, 0, moved);
    let offset = this.given.prefix;
    this.given.after.placements = placements.map((item) => {
      const placed = { ...item, offset };
      offset += item.tokens + this.given.separator;
      return placed;
    });
    if (this.held) this.refresh();
    else this.paint();
    this.move(placements.map((item) => item.id));
  }

  /** Draws the second bar again, all but the chunk that is held. */
  refresh() {
    const picture = this.plot.firstElementChild;
    const { placements } = this.given.after;
    for (const old of picture.querySelectorAll(".movable:not(.held)")) old.remove();
    for (const [at, item] of placements.entries()) {
      if (item.id !== this.held.id) picture.insertBefore(this.chunk(item, at, placements.length, this.tops[1], true), this.held.group);
    }
  }

  drop() {
    if (!this.held) return;
    this.held.group.classList.remove("held");
    this.held = null;
    this.paint();
  }

  legend(height) {
    const size = Math.min(46, (this.width - 2 * MARGIN - LEGEND - 20) / STEPS.length);
    const top = height - KEY + 12;
    return [
      words("note", MARGIN, top + 10, "visibility", "start"),
      ...STEPS.flatMap((_, at) => [
        svg("rect", { class: `heard h${at}`, x: MARGIN + LEGEND + at * size, y: top, width: size - 2, height: 12 }),
        ...(STEP_NAMES[at] ? [words("note", MARGIN + LEGEND + at * size + (size - 2) / 2, top + 24, STEP_NAMES[at], "middle")] : []),
      ]),
    ];
  }

  rows() {
    const { before, after } = this.given;
    const rows = ({ placements }, name) => placements.map((item, at) => [name, at + 1, item.id, item.offset, item.tokens, item.visibility, item.in_dead_zone ? "yes" : "no"]);
    return {
      columns: ["order", "place", "chunk", "offset (tokens)", "tokens", "visibility (1: an even share)", "dead zone"],
      rows: [...rows(before, "before"), ...rows(after, "after")],
    };
  }
}

/** How many characters all names begin with alike: in a narrow chunk the rest stands for the name. */
function sharedBeginning(names) {
  if (names.length < 2) return 0;
  let length = 0;
  const shortest = Math.min(...names.map((name) => name.length));
  while (length < shortest - 1 && names.every((name) => name[length] === names[0][length])) length++;
  return length;
}

const aboutChunk = (item, at, count) =>
  `${item.id}: place ${at + 1} of ${count}, tokens ${item.offset} to ${item.offset + item.tokens - 1}, visibility ${number(item.visibility, 2)}× an even share`;

function words(kind, x, y, text, anchor) {
  const made = svg("text", { class: kind, x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}
