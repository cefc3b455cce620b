// The best order of chunks.

import { post } from "./api.js";
import { on } from "./attempt.js";
import { Chart } from "./charts.js";
import { entry, parseChunks } from "./chunks.js";
import { announce, byId, h, number, percent, table, words } from "./dom.js";
import { events, known, profileSelect, shown, SOURCES, usual } from "./state.js";

const EXAMPLE = [[34, 0.91], [23, 0.85], [47, 0.66], [29, 0.52], [39, 0.31], [18, 0.12]];
const BEFORE = 0.15;
const AFTER = 0.11;
const LEAD = "Whether another order of the chunks is worth it, and which.";
const DECISIONS = { reorder: "Reorder", keep: "Keep your order", undecided: "Undecided" };
const RULES = {
  given: "your order", relevance_first: "most relevant first", relevance_last: "most relevant last",
  zigzag_best_first: "zigzag, best first", zigzag_best_last: "zigzag, best last", document_order: "document order",
};
let chart;
let written = null;

export function start() {
  chart = new Chart(byId("chart-place"));
  byId("place-source").append(
    ...["recall", ...SOURCES].map((name) => new Option(words(name), name)),
  );
  const form = byId("place-form");
  on(form, "submit", "place-error", place, { form, result: byId("place-result"), clear });
  for (const id of ["chunks", "prefix_tokens", "suffix_tokens"]) {
    byId(id).addEventListener("input", () => {
      written = null;
    });
  }
  written = example(256);
  const fill = profileSelect(byId("place-profile"), () => (known.has(shown()) ? shown() : usual()));
  const choose = () => {
    fill();
    fit();
  };
  byId("place-profile").addEventListener("change", fit);
  events.addEventListener("known", choose);
  addEventListener("hashchange", choose);
  choose();
}

/** As many tokens as the profile has, so that its curve is read where it was measured. */
function example(tokens) {
  const [before, after] = [BEFORE, AFTER].map((share) => Math.floor(share * tokens));
  const total = EXAMPLE.reduce((sum, [size]) => sum + size, 0);
  const room = tokens - before - after;
  const sizes = EXAMPLE.map(([size]) => Math.max(1, Math.floor((size * room) / total)));
  sizes[0] += Math.max(0, room - sizes.reduce((sum, size) => sum + size, 0));
  const lines = sizes.map((size, at) => `passage-${at + 1}, ${size}, ${EXAMPLE[at][1]}`);
  return { before, after, chunks: lines.join("\n") };
}

/** Sizes the example to the profile, until somebody writes chunks of their own. */
function fit() {
  const summary = known.get(byId("place-profile").value);
  if (written === null || summary === undefined) return;
  written = example(summary.sequence_length);
  byId("chunks").value = written.chunks;
  byId("prefix_tokens").value = written.before;
  byId("suffix_tokens").value = written.after;
}

function clear() {
  byId("place-lead").textContent = LEAD;
  byId("chart-place").hidden = true;
  byId("place-table").replaceChildren();
}

async function place() {
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
  try {
    const answer = await post("v1/placements", body);
    return () => draw(answer, chunks);
  } catch (error) {
    for (const item of error.errors ?? []) {
      const where = entry(item.field, lines);
      if (where) Object.assign(item, { field: "chunks", message: `${where}: ${item.message}` });
    }
    throw error;
  }
}

function draw(answer, chunks) {
  const relevance = new Map(chunks.map((chunk) => [chunk.id, chunk.relevance]));
  const gains = Object.entries(RULES).filter(([name]) => answer.gain[name]).map(([name, label]) => `${gainText(answer.gain[name])} over ${label}`);
  const short = answer.method === "exact" || answer.gap === null ? "" : `, at most ${percent(answer.gap)} below the best`;
  const lead = `${DECISIONS[answer.advice.decision] ?? words(answer.advice.decision)}: ${answer.advice.reason}. Worth ${number(answer.value)} (${answer.method}${short}).`;
  byId("place-lead").textContent = lead;
  announce(lead);
  drawStrip(answer);
  const most = Math.max(...answer.placements.map((item) => item.visibility), 1e-9);
  const rows = answer.placements.map((item, at) => [
    String(at + 1), item.id, String(item.offset), String(item.tokens), number(relevance.get(item.id)),
    visibility(item.visibility, most), item.in_dead_zone ? "dead zone" : "",
  ]);
  const notes = [
    gains.length ? `Gain of ${answer.advice.order ? "another order" : "this order"}: ${gains.join(", ")}.` : "",
    answer.advice.order ? `That order: ${answer.advice.order.join(", ")}.` : "",
    answer.dropped.length ? `Dropped: ${answer.dropped.map((item) => `${item.id} (${item.detail})`).join(", ")}.` : "",
    ...answer.relevance.notes.map((text) => `Note: ${text}.`),
    `Confidence ${answer.confidence.level}: ${answer.confidence.reasons.join("; ") || answer.confidence.basis}.`,
    ...answer.suggestions.map((item) => `Suggestion: ${item.detail}.`),
    ...answer.warnings.map((text) => `Note: ${text}.`),
  ].filter(Boolean);
  byId("place-table").replaceChildren(
    table("Order", ["Place", "Chunk", "Offset", "Tokens", "Relevance", "Visibility (1 = uniform)", "Zone"], rows),
    ...notes.map((text) => h("p", { class: "note" }, text)),
    h("details", {}, h("summary", {}, "JSON of the answer"), h("pre", { tabindex: "0" }, JSON.stringify(answer, null, 1))),
  );
}

/** A gain with its 95% interval where it has one: "3.2% [1%, 5.1%]". */
function gainText(gain) {
  const width = gain.low !== null && gain.low !== gain.high;
  return width ? `${percent(gain.value)} [${percent(gain.low)}, ${percent(gain.high)}]` : percent(gain.value);
}

function visibility(value, most) {
  const bar = h("span", { class: "bar" });
  bar.style.width = `${(7 * value) / most}rem`;
  return h("span", {}, bar, number(value));
}

function drawStrip(answer) {
  const items = answer.placements;
  byId("chart-place").hidden = items.length === 0;
  if (items.length === 0) return;
  const last = items[items.length - 1];
  const end = last.offset + last.tokens;
  chart.draw({
    name: "Visibility by chunk",
    x: [...items.map((item) => item.offset), end],
    xRange: [0, answer.prompt_tokens],
    series: [{ label: "visibility", values: [...items, last].map((item) => item.visibility), place: -1, stepped: true, points: true }],
    zone: answer.dead_zone && [answer.dead_zone.start, answer.dead_zone.end],
    xLabel: "offset in the prompt (tokens)",
    yLabel: "visibility",
    xText: (index) => (items[index] ? `${items[index].id}, from token ${items[index].offset}` : `end at ${end}`),
  });
}
