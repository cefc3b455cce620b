// Chunks in a prompt: whether another order is surely better, as a picture in which they can be moved.

import { post } from "./api.js";
import { attempt } from "./attempt.js";
import { entry, parseChunks } from "./chunks.js";
import { density, middles } from "./curves.js";
import { announce, byId, capital, h, number, percent, reveal, table, words } from "./dom.js";
import { example, list, load } from "./known.js";
import { PromptBars } from "./promptbar.js";
import * as router from "./router.js";
import { events, fillProfiles, known, shipped, SOURCES, usual } from "./state.js";
import { mainRecall, ORDERS as RULES } from "./words.js";

const EXAMPLE = [[34, 0.91], [23, 0.85], [47, 0.66], [29, 0.52], [39, 0.31], [18, 0.12]];
const BEFORE = 0.15;
const AFTER = 0.11;
const BINS = 256;
const LONGEST_ADDRESS = 16_000;
/** What the address says, and the field that holds it. */
const FIELDS = {
  profile: "place-profile", before: "prefix_tokens", after: "suffix_tokens", scale: "place-scale", curve: "place-source",
  strategy: "place-strategy", objective: "place-objective", budget: "max_tokens", chunks: "chunks",
};
const USUAL = { scale: "score", strategy: "advised", objective: "mean_visibility" };
/** The fields that an example fills in until somebody writes. */
const FILLED = ["chunks", "prefix_tokens", "suffix_tokens"];
let bars;
let untouched = false;
let chosen = false;
/** What is on show: the request, its answer, the caller's order, and the order that was tried. */
let shown = null;

export function start() {
  bars = new PromptBars(byId("chart-place"), (order) => follow(order));
  router.register("place", { title: "Place chunks", show: open });
  byId("place-source").append(...["recall", ...SOURCES].map((name) => new Option(words(name), name)));
  byId("place-form").addEventListener("submit", (event) => {
    event.preventDefault();
    run().then(() => reveal(byId("place-lead")));
  });
  for (const id of FILLED) {
    byId(id).addEventListener("input", () => {
      untouched = false;
    });
    byId(id).addEventListener("blur", fit);
  }
  byId("place-profile").addEventListener("change", () => {
    chosen = true;
    fit();
  });
  byId("place-advised").addEventListener("click", () => moveTo(shown.answer.placements.map((item) => item.id)));
  byId("place-given").addEventListener("click", () => moveTo(shown.given));
  events.addEventListener("known", () => router.showing("place") && refill());
  events.addEventListener("back", () => router.showing("place") && list());
  events.addEventListener("key", () => router.showing("place") && list());
}

function refill(chosen = byId("place-profile").value || usual()) {
  fillProfiles(byId("place-profile"), chosen);
  fit();
}

/** Fills the form as the address says, and places if it names chunks. */
async function open({ query }) {
  for (const [name, id] of Object.entries(FIELDS)) {
    if (name !== "profile") byId(id).value = query.get(name) ?? USUAL[name] ?? "";
  }
  untouched = !query.has("chunks");
  chosen = query.has("profile");
  clear();
  if (["curve", "strategy", "objective", "budget"].some((name) => query.has(name))) byId("place-options").open = true;
  refill(query.get("profile") ?? usual());
  await readProfiles(query.get("profile"));
  if (!router.showing("place")) return;
  refill(chosen ? byId("place-profile").value : usual());
  if (query.has("chunks")) await run(query.get("order"));
}

/** Reads the list; where it does not have the profile, or none at all, the shipped one as well. */
async function readProfiles(asked) {
  const read = await list();
  if (read && (known.size === 0 || (asked && !known.has(asked)))) await example().catch(() => null);
}

/** As many tokens as the profile has, so that its curve is read where it was measured. */
function sample(tokens) {
  const [before, after] = [BEFORE, AFTER].map((part) => Math.floor(part * tokens));
  const total = EXAMPLE.reduce((sum, [size]) => sum + size, 0);
  const room = tokens - before - after;
  const sizes = EXAMPLE.map(([size]) => Math.max(1, Math.floor((size * room) / total)));
  sizes[0] += Math.max(0, room - sizes.reduce((sum, size) => sum + size, 0));
  const lines = sizes.map((size, at) => `passage-${at + 1}, ${size}, ${EXAMPLE[at][1]}`);
  return { before, after, chunks: lines.join("\n") };
}

/** Sizes the example to the profile, until somebody writes chunks of their own or is about to. */
function fit() {
  if (!untouched || FILLED.includes(document.activeElement.id)) return;
  const { before, after, chunks } = sample(known.get(byId("place-profile").value)?.sequence_length ?? (shipped.tokens || 256));
  byId("chunks").value = chunks;
  byId("prefix_tokens").value = before;
  byId("suffix_tokens").value = after;
}

function clear() {
  shown = null;
  byId("place-lead").textContent = "";
  byId("place-result").hidden = true;
}

/** Places what the form says; `order` is an order to try, as numbers of chunks: "2.0.1". */
function run(order = null) {
  return attempt("place-error", async () => {
    const { body, lines } = request();
    try {
      const found = await place(body);
      const asked = order?.split(".").map((at) => found.given[Number(at)]).filter(Boolean);
      const tried = order ? await judge(body, asked) : null;
      return () => draw({ ...found, body }, tried, asked);
    } catch (error) {
      for (const item of error.errors ?? []) {
        const where = entry(item.field, lines);
        if (where) Object.assign(item, { field: "chunks", message: `${where}: ${item.message}` });
      }
      throw error;
    }
  }, { form: byId("place-form"), result: byId("place-result"), clear });
}

function request() {
  const whole = (id) => (byId(id).value === "" ? undefined : Number(byId(id).value));
  const { chunks, lines } = parseChunks(byId("chunks").value);
  if (!byId("place-profile").value) throw new Error("There is no profile to place the chunks by yet: measure a model first.");
  const body = {
    profile_id: byId("place-profile").value,
    source: byId("place-source").value || undefined,
    relevance_scale: byId("place-scale").value,
    strategy: byId("place-strategy").value,
    objective: byId("place-objective").value,
    prefix_tokens: whole("prefix_tokens"),
    suffix_tokens: whole("suffix_tokens"),
    max_tokens: whole("max_tokens"),
    chunks,
  };
  return { body, lines };
}

/** The answer; the caller's own order of the chunks that stay; and the curve. */
async function place(body) {
  const answer = await post("v1/placements", body);
  const kept = new Set(answer.order);
  const given = body.chunks.map((chunk) => chunk.id).filter((id) => kept.has(id));
  const [before, profile] = await Promise.all([judge(body, given), load(body.profile_id, BINS)]);
  return { answer, given, before, profile };
}

/**
 * What an order is worth against the caller's, with its interval: as if the last prompt had begun with
 * all of it.
 */
const judge = (body, order) => (order.length ? post("v1/placements", { ...body, strategy: "cache_prefix", previous_order: order }) : null);

function draw(found, tried, asked) {
  shown = found;
  const { answer, body } = found;
  byId("place-result").hidden = false;
  const lead = decision(answer);
  byId("place-lead").textContent = lead;
  announce(lead);
  drawNotes(answer, body);
  drawBars(tried ?? answer);
  sayMoved(tried, asked);
  remember(tried ? tried.placements.map((item) => item.id) : null);
}

/** The decision in words, with the interval of the gain. */
export function decision({ advice, gain, placements }) {
  if (placements.length === 0) return "No chunk is left to place.";
  const over = gain.given ? gainText(gain.given) : null;
  const how = advice.name === "curve" || !RULES[advice.name] ? "" : ` (${RULES[advice.name]})`;
  if (advice.decision === "reorder") return `Reorder${how}: what matters is heard ${over ?? "better"} than in your order.`;
  if (advice.decision === "keep") {
    if (!gain.given?.value) return "Keep your order: it is the one to take, as far as the curve can tell.";
    return gain.given.high < 0 ? `Keep your order: another would be heard ${over}.` : `Keep your order: another gains next to nothing, ${over}.`;
  }
  return `Undecided, so keep your order: ${over ? `another would be heard ${over}, but ` : ""}${advice.reason.replace(/^the gain over the caller's order may be zero: .*; /, "the gain may be zero; ")}.`;
}

/** A gain with its 95% interval where it has one: "3.2% better (95%: 1% to 5.1%)". */
function gainText({ value, low, high }) {
  const size = `${percent(Math.abs(value), 2)} ${value < 0 ? "worse" : "better"}`;
  return low === null || low === high ? size : `${size} (95% interval ${signedPercent(low)} to ${signedPercent(high)})`;
}

const signedPercent = (share) => `${share > 0 ? "+" : ""}${percent(share, 2)}`;

function drawBars(after) {
  const { answer, before, body, profile } = shown;
  const value = (one) => number(one.value, 3);
  bars.draw({
    tokens: answer.prompt_tokens,
    prefix: body.prefix_tokens ?? 0,
    suffix: body.suffix_tokens ?? 0,
    separator: body.separator_tokens ?? 0,
    curve: curveOf(profile, answer),
    zone: answer.dead_zone && { ...answer.dead_zone, label: `dead zone: ${least(answer)}, tokens ${answer.dead_zone.start} to ${answer.dead_zone.end - 1}` },
    before: { label: `Before, your order: value ${before ? value(before) : "–"}`, placements: before?.placements ?? [] },
    after: { label: `${nameOf(after)}: value ${value(after)}`, placements: [...after.placements] },
  });
  drawTable(after.placements);
}

const same = (one, other) => one.length === other.length && one.every((id, at) => id === other[at]);
const isAnswer = ({ order }) => same(order, shown.answer.order);

/** Whose order the second bar has. */
function nameOf(placed) {
  if (isAnswer(placed)) return "After, the answer";
  return same(placed.order, shown.given) ? "After, your order again" : "After, moved by you";
}

/** What the curve that decided says of its lowest stretch. */
const least = ({ source }) => (source === "recall" ? "recalled least" : "listens least");

/** The curve that decided, stretched to the prompt. */
function curveOf(profile, { source, prompt_tokens: tokens }) {
  const recall = mainRecall(profile)?.curve;
  if (source === "recall" && recall) {
    const mean = recall.probability.reduce((sum, value) => sum + value, 0) / recall.probability.length || 1;
    return { name: "recall", x: recall.position.map((at) => (at * tokens) / recall.prompt_tokens), density: recall.probability.map((value) => value / mean) };
  }
  const { measured, predictions } = profile;
  const curve = predictions[source]?.influence ?? (source === "measured" ? measured?.smoothed : measured?.[source]);
  return curve ? { name: source === "measured" ? "influence" : words(source), x: middles(curve.length, tokens), density: density(curve) } : null;
}

/** While a chunk is moved its order is judged again and again; the last question counts. */
function follow(order) {
  const { body } = shown;
  attempt("place-error", async () => {
    const tried = await judge(body, order);
    return () => {
      drawBars(tried);
      sayMoved(tried, order);
      remember(tried.order);
    };
  }, { result: byId("place-moved") });
}

function moveTo(order) {
  if (order.length) follow(order);
}

function sayMoved(tried, asked) {
  const box = byId("place-moved");
  if (!tried) {
    box.textContent = "Drag a chunk of the second bar, or move it with the arrow keys: its value follows.";
    return;
  }
  const gain = tried.gain.given;
  const limit = same(tried.order, asked) ? "" : "Pins and groups do not allow that order. ";
  if (same(tried.order, shown.given)) box.textContent = `${limit}This is your own order.`;
  else if (isAnswer(tried)) box.textContent = `${limit}This is the order of the answer.`;
  else box.textContent = `${limit}As moved, what matters is heard ${gain ? gainText(gain) : "otherwise"} than in your order.`;
}

/** Puts what is on show into the address, unless it is too long or has texts that only the caller has. */
function remember(order) {
  const { body, answer, given } = shown;
  const parameters = {};
  for (const [name, id] of Object.entries(FIELDS)) {
    const value = byId(id).value;
    if (value !== USUAL[name]) parameters[name] = value;
  }
  parameters.chunks = plain(body.chunks, answer);
  if (order && !same(order, answer.order)) parameters.order = order.map((id) => given.indexOf(id)).join(".");
  const address = router.address("place", null, parameters);
  const fits = parameters.chunks !== null && address.length <= LONGEST_ADDRESS;
  router.note(fits ? address : router.address("place", null, { profile: parameters.profile }));
  byId("place-unsent").hidden = fits;
}

/** Chunks without texts: as they were written, or with the tokens that the service counted. */
function plain(chunks, answer) {
  if (!chunks.some((chunk) => "text" in chunk)) return byId("chunks").value;
  const tokens = new Map(answer.placements.map((item) => [item.id, item.tokens]));
  if (chunks.some((chunk) => !tokens.has(chunk.id))) return null;
  return JSON.stringify(chunks.map(({ text: _, ...chunk }) => ({ ...chunk, tokens: tokens.get(chunk.id) })));
}

/** The order of the second bar, whoever chose it. */
function drawTable(placements) {
  const { answer, body } = shown;
  const relevance = new Map(body.chunks.map((chunk) => [chunk.id, chunk.relevance]));
  const rows = placements.map((item, at) => [
    String(at + 1), item.id, `${number(item.visibility, 2)}×`, item.in_dead_zone ? "yes" : "", String(item.offset), String(item.tokens),
    number(relevance.get(item.id)),
  ]);
  const heads = ["Place", "Chunk", "Visibility", "Dead zone", "Offset", "Tokens", "Relevance"];
  byId("place-table").replaceChildren(table("The order of the second bar; visibility 1× is an even share", heads, rows));
}

const WORTH = {
  mean_visibility: "Value: the visibility of each chunk times its weight (from its relevance), summed. More is better. Visibility is how well a chunk is heard at its place; 1× is an even share.",
  total_mass: "Value: each chunk's share of the influence times its weight (from its relevance), summed. More is better.",
  worst_case: "Value: the least visibility among the most relevant chunks. More is better. Visibility is how well a chunk is heard at its place; 1× is an even share.",
};

function drawNotes(answer, { objective }) {
  const gains = Object.entries(RULES).filter(([name]) => answer.gain[name]).map(([name, label]) => `${gainText(answer.gain[name])} than ${label}`);
  const short = answer.method === "exact" || answer.gap === null ? "" : `, at most ${percent(answer.gap)} below the best`;
  const notes = [
    `Value of ${answer.advice.order ? "the order that the service returned" : "this order"}: ${number(answer.value)} (${answer.method}${short}).`,
    gains.length ? `${answer.advice.order ? "The order that was judged" : "This order"}: ${gains.join("; ")}.` : "",
    answer.advice.order ? `That order: ${answer.advice.order.join(", ")}.` : "",
    answer.dropped.length ? `Dropped: ${answer.dropped.map((item) => `${item.id} (${item.detail})`).join(", ")}.` : "",
    ...answer.relevance.notes.map((text) => `Note: ${text}.`),
    `Confidence ${answer.confidence.level}: ${answer.confidence.reasons.join("; ") || answer.confidence.basis}.`,
    ...answer.suggestions.map((item) => `Suggestion: ${item.detail}.`),
    ...answer.warnings.map((text) => `Note: ${text}.`),
  ].filter(Boolean);
  const order = h("div", { class: "scroll", id: "place-table", tabindex: "0", role: "region", "aria-label": "The order as a table" });
  byId("place-notes").replaceChildren(
    h("p", { class: "note", id: "place-unsent", hidden: true }, "These chunks do not fit into an address, so this one names the profile alone."),
    h("p", { class: "note", id: "place-worth" }, WORTH[objective]),
    order,
    h("details", {}, h("summary", {}, "How sure, against which orders, and the answer as JSON"),
      h("div", { class: "stack inside" }, ...notes.map((text) => h("p", {}, capital(text))), h("pre", { tabindex: "0", role: "region", "aria-label": "JSON of the answer" }, JSON.stringify(answer, null, 1)))),
  );
}
