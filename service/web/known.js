// The list of known profiles: each is a link, and two of them can be chosen to be compared.

import { get } from "./api.js";
import { on } from "./attempt.js";
import { byId, h, tokensText } from "./dom.js";
import * as router from "./router.js";
import { events, known, learn, made, settings, shipped } from "./state.js";

const MOST_POSITIONS = 1024;
const EXAMPLE = "assets/example.json";
let cursor = null;
let reading = null;
const chosen = [];

export function start() {
  router.register("profiles", { title: "Profiles", show: list });
  on(byId("more"), "click", "known-error", () => read(cursor));
  byId("compare-chosen").addEventListener("click", () => {
    const [b, a] = [...chosen].sort((one, other) => order(one) - order(other));
    router.go(router.address("compare", null, { a, b }));
  });
  events.addEventListener("known", draw);
  events.addEventListener("back", () => list());
  events.addEventListener("key", () => list());
}

const order = (id) => [...known.keys()].indexOf(id);

/**
 * Reads the newest profiles; answers whether it could. A failure is said in the list's place, and
 * thrown if `strict`.
 */
export async function list(strict = false) {
  reading ??= read().finally(() => {
    reading = null;
  });
  try {
    await reading;
    byId("known-note").textContent = known.size ? "Tick two to compare them." : "No profile yet: measure a model.";
    return true;
  } catch (error) {
    byId("known-note").textContent =
      error.status === 401 ? "The list is shown once a key is given." : `The list cannot be read: ${error.message}.`;
    if (strict === true) throw error;
    return false;
  }
}

/** The profile that comes with the service: the service answers for its id as for any other. */
export async function example() {
  const found = await get(EXAMPLE);
  const { model, sequence_length: tokens } = found.request;
  Object.assign(shipped, { id: found.id, tokens, label: `Example, measured elsewhere: ${model}, ${tokens} tokens` });
  return found;
}

/** A profile with no more positions than a picture shows; the list says how long it is. */
export async function load(id, bins = MOST_POSITIONS) {
  if (!known.has(id)) await list();
  const length = known.get(id)?.sequence_length ?? 0;
  return get(`v1/profiles/${id}${length > bins ? `?bins=${bins}` : ""}`);
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
  choose();
  // The list may grow while someone uses it: a job that ends reads it again.
  if (focused) byId("known").querySelector(`[data-id="${focused}"] a`)?.focus({ preventScroll: true });
}

/** What a row says about the dead zone. */
export function zoneWords({ dead_zone: zone, dead_zone_verdict: verdict }) {
  if (verdict === "undecided") return "undecided";
  if (!verdict) return "recall alone";
  return zone ? tokensText(zone).replace("between tokens ", "").replace(" and ", "–").replace("at token ", "") : "none";
}

function row(item) {
  const box = h("input", { type: "checkbox", checked: chosen.includes(item.id), "aria-label": `Compare ${item.model}, ${item.sequence_length} tokens, ${made(item)}` });
  box.addEventListener("change", () => {
    if (box.checked) chosen.push(item.id);
    else chosen.splice(chosen.indexOf(item.id), 1);
    // A third choice takes the place of the first.
    if (chosen.length > 2) {
      const [gone] = chosen.splice(0, 1);
      const other = byId("known").querySelector(`[data-id="${gone}"] input`);
      if (other) other.checked = false;
    }
    choose();
  });
  return h(
    "tr",
    { "data-id": item.id },
    h("td", {}, h("a", { href: router.address("profile", item.id) }, item.model)),
    h("td", { class: "number", "data-column": "Tokens" }, String(item.sequence_length)),
    h("td", { "data-column": "Dead zone" }, zoneWords(item)),
    h("td", { class: "wraps", "data-column": "Measured with" }, settings(item)),
    h("td", { "data-column": "Made" }, made(item)),
    h("td", { "data-column": "Compare" }, box),
  );
}

function choose() {
  for (const id of [...chosen]) if (!known.has(id)) chosen.splice(chosen.indexOf(id), 1);
  byId("compare-chosen").disabled = chosen.length !== 2;
}
