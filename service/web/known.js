// The list of known profiles.

import { get } from "./api.js";
import { on } from "./attempt.js";
import { byId, h, words, zoneText } from "./dom.js";
import { events, known, learn, made, settings, show, shown } from "./state.js";

let cursor = null;

export function start() {
  on(byId("more"), "click", "measure-error", () => read(cursor));
  events.addEventListener("known", draw);
  events.addEventListener("back", list);
  events.addEventListener("key", list);
  addEventListener("hashchange", mark);
  return list();
}

/** Reads the newest profiles; a list that cannot be read says so in its place. */
export async function list() {
  try {
    await read();
    byId("known-note").textContent = known.size ? "" : "No profile yet: choose a model above and press Measure.";
  } catch (error) {
    byId("known-note").textContent =
      error.status === 401 ? "The list is shown once a key is given." : `The list cannot be read: ${error.message}.`;
  }
}

/** A page of the list: the newest, or what follows `from`. */
async function read(from = null) {
  const page = await get(`v1/profiles?limit=50${from ? `&cursor=${from}` : ""}`);
  if (from || cursor === null) cursor = page.next;
  learn(page.items, { first: from === null });
  byId("more").hidden = cursor === null;
}

function draw() {
  const focused = document.activeElement.closest?.("#known tr")?.dataset.id;
  byId("known").replaceChildren(...[...known.values()].map(row));
  byId("known-table").hidden = known.size === 0;
  mark();
  // The list may grow while someone uses it: a job that ends reads it again.
  if (focused) byId("known").querySelector(`[data-id="${focused}"] button`)?.focus({ preventScroll: true });
}

function row(item) {
  const open = h("button", { type: "button", class: "plain" }, item.model);
  open.addEventListener("click", () => show(item.id));
  return h(
    "tr",
    { "data-id": item.id },
    h("td", {}, open),
    h("td", { class: "number" }, String(item.sequence_length)),
    h("td", {}, words(item.shape)),
    h("td", {}, zoneText(item.dead_zone, item.dead_zone_verdict)),
    h("td", {}, settings(item)),
    h("td", {}, made(item)),
  );
}

function mark() {
  for (const line of byId("known").children) {
    if (line.dataset.id === shown()) line.setAttribute("aria-current", "true");
    else line.removeAttribute("aria-current");
  }
}
