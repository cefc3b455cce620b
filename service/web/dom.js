// Building blocks of the page: elements, numbers in words, announcements. Text is only ever set as
// text, never as markup.

export const byId = (id) => document.getElementById(id);

/** An element with properties and children; `class`, `for` and `aria-*` are set as attributes. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** An element of a picture; attributes that are null or undefined are left out. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

let ruler = null;
/** About how many pixels a text of a picture is wide. */
export function textWidth(text) {
  if (ruler === null) {
    ruler = document.createElement("canvas").getContext("2d");
    ruler.font = "12px system-ui, sans-serif";
  }
  return ruler.measureText(text).width;
}

/** Saves a blob as a file. */
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}

/** Brings an answer into view that came below the window or near its end. */
export function reveal(element) {
  const { top } = element.getBoundingClientRect();
  if (element.textContent && (top < 0 || top > 0.6 * innerHeight)) element.scrollIntoView({ behavior: "instant" });
}

/** Says something to who cannot see the change. */
export function announce(text) {
  // A new element each time, so that the same words are read aloud again.
  byId("live").replaceChildren(h("p", {}, text));
}

/** A number of about `digits` significant digits. */
export function number(value, digits = 3) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e9)) return value.toExponential(1);
  return String(Number(value.toPrecision(digits)));
}

/** A share in percent, to so many significant digits. */
export function percent(share, digits = 3) {
  if (share === null || share === undefined) return "–";
  if (share !== 0 && Math.abs(share) < 5e-4) return share > 0 ? "<0.1%" : ">-0.1%";
  return `${number(100 * share, digits)}%`;
}

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** A p-value: "0.0072", "< 0.001". */
export const pValue = (p) => (p < 0.001 ? "< 0.001" : number(p, 2));

/** What the service says of two sides, a and b, as this page calls them. */
export const sided = (text) => text.replace(/\ba (has )?([^,;]+), b (has )?/g, "the first $1$2, the second $3");

export const signed = (value) => (value > 0 ? "+" : "") + number(value);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${number(seconds / 3600, 2)} h`;
}

/** "1 token", "2 tokens". */
export const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

/** "between tokens 30 and 165", "at token 7". */
export function tokensText({ start, end }) {
  return end - 1 > start ? `between tokens ${start} and ${end - 1}` : `at token ${start}`;
}

export const words = (name) => (name === "u_shaped" ? "U-shaped" : name.replaceAll("_", " "));

/** Terms with their values, as tiles. */
export function tiles(list, pairs) {
  list.replaceChildren(
    ...pairs.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))),
  );
}

/**
 * A table from a caption, column names and rows of cells (strings, numbers or elements). On a phone
 * each row of a `.stacks` becomes a block, in which a cell says its column.
 */
export function table(caption, columns, rows) {
  const numeric = columns.map((_, at) => rows.length > 0 && rows.every((row) => typeof row[at] === "number"));
  const align = (at) => (numeric[at] ? { class: "number" } : {});
  const cell = (value, at) =>
    h("td", { ...align(at), "data-column": columns[at] }, typeof value === "number" ? number(value) : (value ?? "–"));
  return h(
    "table",
    {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, ...columns.map((name, at) => h("th", { scope: "col", ...align(at) }, name)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cell)))),
  );
}

/** Shows a failure beside its form, and marks the fields that it names. */
export function showError(box, error, form = null) {
  for (const field of form?.querySelectorAll("[aria-invalid]") ?? []) {
    field.removeAttribute("aria-invalid");
    if (field.getAttribute("aria-errormessage") === box.id) field.removeAttribute("aria-errormessage");
  }
  box.hidden = error === null;
  if (error === null) return;
  const lines = error.errors?.length ? error.errors.map((item) => sentence(form, item)) : [labelled(form, error.message)];
  box.replaceChildren(...lines.map((line) => h("p", {}, line)));
  const fields = (error.errors ?? []).map((item) => named(form, item.field)).filter(Boolean);
  for (const field of fields) {
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-errormessage", box.id);
    const folded = field.closest("details");
    if (folded) folded.open = true;
  }
  // Someone who has gone on to something else meanwhile stays there.
  const here = document.activeElement;
  if (here === document.body || form?.contains(here)) fields[0]?.focus();
}

/** What is wrong with a field, which is called by its label where the form has it. */
function sentence(form, { field, message }) {
  const said = message.startsWith(`\`${field}\`: `) ? message.slice(field.length + 4) : message;
  return said.startsWith(`\`${field}\``) ? labelled(form, said) : `${labelOf(form, field) ?? field}: ${labelled(form, said)}`;
}

/** A message with the names of the form's fields replaced by their labels. */
function labelled(form, message) {
  return message.replace(/`([\w.]+)`/g, (quoted, field) => {
    const label = labelOf(form, field);
    return label ? `"${label}"` : quoted;
  });
}

const labelOf = (form, field) => named(form, field)?.labels?.[0]?.textContent.split(":")[0];

/** The control of a form that a field such as `documents.count` or `chunks.3.tokens` is given by. */
function named(form, field) {
  const controls = [field, ...field.split(".").reverse()].map((name) => form?.elements.namedItem(name));
  return controls.find((control) => control instanceof HTMLElement);
}
