// What every picture of the page has below it: a table of its numbers, and CSV, SVG and PNG of what
// is shown. A picture is an SVG whose look comes from the style sheet; an export carries that look
// in attributes, so that it stands alone.

import { announce, h, save, svg, table } from "./dom.js";

const PRESENTED = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "opacity",
  "font-size", "font-family", "font-weight", "text-anchor",
];
const TITLE_HEIGHT = 30;
const MOST_ROWS = 2048;
const SCALE = 2;

/**
 * Buttons for a picture, and the place of its table.
 *
 * picture(): the SVG element on show. rows(): `{columns, rows}`, all numbers behind it.
 * name(): the title. file(): a file name without ending.
 */
export function tools({ picture, rows, name, file }) {
  const box = h("div", { class: "scroll behind", tabindex: "0", role: "region", hidden: true });
  const open = h("button", { type: "button", class: "small", "aria-expanded": "false" }, "Table");
  const fill = () => {
    const { columns, rows: all } = rows();
    box.setAttribute("aria-label", `Table of ${name()}`);
    box.replaceChildren(table(name(), columns, all.slice(0, MOST_ROWS)));
    if (all.length > MOST_ROWS) box.append(h("p", { class: "note" }, `The first ${MOST_ROWS} of ${all.length} rows; the CSV has all.`));
  };
  open.addEventListener("click", () => {
    box.hidden = !box.hidden;
    open.setAttribute("aria-expanded", String(!box.hidden));
    if (!box.hidden) fill();
  });
  const button = (text, act) => {
    const one = h("button", { type: "button", class: "small", "aria-label": `${text} of this picture` }, text);
    one.addEventListener("click", async () => {
      const blob = await act();
      save(blob, `${file()}.${text.toLowerCase()}`);
      announce(`${text} saved`);
    });
    return one;
  };
  const bar = h("p", { class: "tools" },
    open,
    button("CSV", () => new Blob([csv(rows())], { type: "text/csv" })),
    button("SVG", () => new Blob([new XMLSerializer().serializeToString(alone(picture(), name()))], { type: "image/svg+xml" })),
    button("PNG", () => png(alone(picture(), name()))),
  );
  return { bar, box, renew: () => !box.hidden && fill() };
}

/** Rows as CSV, in full precision. */
export function csv({ columns, rows }) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

/** A copy of a picture with a title and a background, which needs no style sheet. */
function alone(picture, name) {
  const { width, height } = picture.getBoundingClientRect();
  const style = getComputedStyle(document.documentElement);
  const color = (variable) => style.getPropertyValue(variable).trim();
  const root = svg("svg", {
    width, height: height + TITLE_HEIGHT,
    viewBox: `0 0 ${width} ${height + TITLE_HEIGHT}`,
  });
  root.append(svg("rect", { width, height: height + TITLE_HEIGHT, fill: color("--card") }));
  const title = svg("text", { x: 8, y: 20, fill: color("--text"), "font-size": "14px", "font-family": "sans-serif", "font-weight": "600" });
  title.textContent = name;
  root.append(title, svg("g", { transform: `translate(0,${TITLE_HEIGHT})` }, ...[...picture.children].map(flat).filter(Boolean)));
  return root;
}

function flat(element) {
  const style = getComputedStyle(element);
  if (style.display === "none" || style.visibility === "hidden") return null;
  const copy = svg(element.localName);
  for (const { name, value } of element.attributes) {
    if (!["class", "style", "tabindex", "role"].includes(name) && !name.startsWith("aria-") && !name.startsWith("data-")) copy.setAttribute(name, value);
  }
  if (element.localName !== "g") for (const name of PRESENTED) copy.setAttribute(name, style.getPropertyValue(name));
  if (element.localName === "text") copy.textContent = element.textContent;
  else copy.append(...[...element.children].map(flat).filter(Boolean));
  return copy;
}

// The page's policy lets no picture come from data, so the few elements that pictures consist of are
// drawn on a canvas one by one.
function png(root) {
  const [width, height] = ["width", "height"].map((name) => Number(root.getAttribute(name)));
  const canvas = h("canvas", { width: Math.ceil(width * SCALE), height: Math.ceil(height * SCALE) });
  const context = canvas.getContext("2d");
  context.scale(SCALE, SCALE);
  for (const child of root.children) paint(context, child);
  return new Promise((resolve) => {
    canvas.toBlob(resolve, "image/png");
  });
}

function paint(context, element) {
  const get = (name) => element.getAttribute(name);
  const number = (name) => Number(get(name) ?? 0);
  context.save();
  const [, x, y] = /translate\(([-\d.e]+)[ ,]+([-\d.e]+)\)/.exec(get("transform") ?? "") ?? [];
  if (x !== undefined) context.translate(Number(x), Number(y));
  if (element.localName === "g") for (const child of element.children) paint(context, child);
  else if (element.localName === "text") write(context, element);
  else fillAndStroke(context, get, number, outline(element.localName, get, number));
  context.restore();
}

function outline(kind, get, number) {
  if (kind === "path") return new Path2D(get("d") ?? "");
  const path = new Path2D();
  if (kind === "rect") path.rect(number("x"), number("y"), number("width"), number("height"));
  if (kind === "circle") path.arc(number("cx"), number("cy"), number("r"), 0, 2 * Math.PI);
  if (kind === "line") {
    path.moveTo(number("x1"), number("y1"));
    path.lineTo(number("x2"), number("y2"));
  }
  return path;
}

function fillAndStroke(context, get, number, path) {
  const whole = Number(get("opacity") ?? 1);
  if ((get("fill") ?? "none") !== "none") {
    context.globalAlpha = whole * Number(get("fill-opacity") ?? 1);
    context.fillStyle = get("fill");
    context.fill(path);
  }
  if ((get("stroke") ?? "none") !== "none") {
    context.globalAlpha = whole * Number(get("stroke-opacity") ?? 1);
    context.strokeStyle = get("stroke");
    context.lineWidth = parseFloat(get("stroke-width") ?? "1");
    const dashes = (get("stroke-dasharray") ?? "none").split(/[\s,]+/).map(parseFloat);
    context.setLineDash(dashes.every(Number.isFinite) ? dashes : []);
    context.stroke(path);
  }
}

function write(context, element) {
  const get = (name, otherwise) => element.getAttribute(name) ?? otherwise;
  context.fillStyle = get("fill", "#000");
  context.font = `${get("font-weight", 400)} ${get("font-size", "12px")} ${get("font-family", "sans-serif")}`;
  context.textAlign = { middle: "center", end: "right" }[get("text-anchor")] ?? "left";
  context.fillText(element.textContent, Number(get("x", 0)), Number(get("y", 0)));
}
