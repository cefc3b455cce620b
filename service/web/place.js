// The best order of chunks.

import { post } from "./api.js";
import { Chart } from "./charts.js";
import { announce, byId, h, number, percent, showError, table, words } from "./dom.js";
import { SOURCES } from "./compare.js";
import { events, known, profileOptions, shown } from "./state.js";

const EXAMPLE = [[34, 0.91], [23, 0.85], [47, 0.66], [29, 0.52], [39, 0.31], [18, 0.12]];
const BEFORE = 0.15;
const AFTER = 0.11;
let chart;
let written = null;

export function start() {
  chart = new Chart(byId("chart-place"));
  byId("place-source").append(
    ...["needle", "last_token_attention", ...SOURCES].map((name) => new Option(words(name), name)),
  );
  byId("place-form").addEventListener("submit", place);
  for (const id of ["chunks", "prefix_tokens", "suffix_tokens"]) {
    byId(id).addEventListener("input", () => {
      written = null;
    });
  }
  written = example(256);
  byId("place-profile").addEventListener("change", fit);
  events.addEventListener("known", () => choose(byId("place-profile").value || shown()));
  addEventListener("hashchange", () => shown() && choose(shown()));
}

function choose(id) {
  profileOptions(byId("place-profile"), id);
  fit();
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

/** Chunks from pasted lines: "name, tokens, relevance" or "tokens, relevance". */
export function parseChunks(text) {
  const lines = text.split("\n").map((line) => line.trim());
  return lines.flatMap((line, at) => {
    if (line === "") return [];
    const cells = line.split(/[,;\t]|\s+/).map((cell) => cell.trim()).filter(Boolean);
    const [tokens, relevance] = cells.slice(-2).map(Number);
    if (cells.length < 2 || !Number.isInteger(tokens) || !Number.isFinite(relevance)) {
      throw new Error(`line ${at + 1}: expected a name, a whole number of tokens and a relevance`);
    }
    return [{ id: cells.slice(0, -2).join(" ") || `chunk-${at + 1}`, tokens, relevance }];
  });
}

async function place(event) {
  event.preventDefault();
  const box = byId("place-error");
  showError(box, null, event.target);
  const whole = (id) => (byId(id).value === "" ? undefined : Number(byId(id).value));
  try {
    if (!byId("place-profile").value) throw new Error("Profile: measure a model first");
    const chunks = parseChunks(byId("chunks").value);
    const body = {
      profile_id: byId("place-profile").value,
      source: byId("place-source").value || undefined,
      objective: byId("place-objective").value,
      prefix_tokens: whole("prefix_tokens"),
      suffix_tokens: whole("suffix_tokens"),
      max_tokens: whole("max_tokens"),
      chunks,
    };
    const answer = await post("v1/placements", body);
    draw(await answer.json(), chunks);
  } catch (error) {
    showError(box, error, event.target);
  }
}

function draw(answer, chunks) {
  const relevance = new Map(chunks.map((chunk) => [chunk.id, chunk.relevance]));
  const gains = [
    ["your order", answer.gain.given], ["most relevant first", answer.gain.relevance_first], ["zigzag", answer.gain.zigzag],
  ].filter(([, gain]) => gain !== null).map(([name, gain]) => `${percent(gain)} over ${name}`);
  const lead = `Worth ${number(answer.value)} (${answer.method}): ${gains.join(", ")}.`;
  byId("place-lead").textContent = lead;
  announce(lead);
  drawStrip(answer);
  const most = Math.max(...answer.placements.map((item) => item.visibility), 1e-9);
  const rows = answer.placements.map((item, at) => [
    String(at + 1), item.id, String(item.offset), String(item.tokens), number(relevance.get(item.id)),
    visibility(item.visibility, most), item.in_dead_zone ? "dead zone" : "",
  ]);
  const notes = [
    answer.dropped.length ? `Did not fit: ${answer.dropped.join(", ")}.` : "",
    `Confidence ${answer.confidence.level}: ${answer.confidence.reasons.join("; ") || answer.confidence.basis}.`,
    ...answer.suggestions.map((item) => `Suggestion: ${item.detail}.`),
    ...answer.warnings.map((text) => `Note: ${text}.`),
  ].filter(Boolean);
  byId("place-table").replaceChildren(
    table("Best order", ["Place", "Chunk", "Offset", "Tokens", "Relevance", "Visibility (1 = uniform)", "Zone"], rows),
    ...notes.map((text) => h("p", { class: "note" }, text)),
    h("details", {}, h("summary", {}, "JSON of the answer"), h("pre", { tabindex: "0" }, JSON.stringify(answer, null, 1))),
  );
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
