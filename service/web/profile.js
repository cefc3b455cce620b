// One profile: curves, dead zone, mixing, forces, agreement.

import { get } from "./api.js";
import { attempt, on } from "./attempt.js";
import { Chart, swatch } from "./charts.js";
import { announce, bandText, byId, counted, h, number, percent, signed, table, tiles, words, zoneText } from "./dom.js";
import { drawRecall, recallTable, recallText } from "./recall.js";
import { addressed, events, known, settings } from "./state.js";

const MOST_POSITIONS = 1024;
const ON_AT_FIRST = new Set(["residual", "residual_content", "second_moment"]);
const charts = {};
let profile = null;
let zone = null;
let verdict = null;
let threshold = 0.75;

export function start() {
  for (const name of ["profile", "mixing", "forces"]) charts[name] = new Chart(byId(`chart-${name}`));
  byId("log").addEventListener("change", drawCurves);
  byId("threshold").addEventListener("input", () => sayThreshold(Number(byId("threshold").value)));
  const moved = { result: byId("chart-profile"), clear: () => setThreshold(threshold) };
  on(byId("threshold"), "change", "profile-error", newThreshold, moved);
  addEventListener("hashchange", open);
  events.addEventListener("show", open);
  open();
}

function open() {
  const id = addressed();
  if (!id) return;
  const from = document.activeElement;
  const body = byId("profile-body");
  body.hidden = false;
  attempt("profile-error", async () => {
    const found = profile?.id === id ? profile : await load(id);
    return () => draw(found, from);
  }, { result: body, clear });
}

function load(id) {
  const long = (known.get(id)?.sequence_length ?? 0) > MOST_POSITIONS;
  return get(`v1/profiles/${id}${long ? `?bins=${MOST_POSITIONS}` : ""}`);
}

function clear() {
  profile = null;
  byId("profile-body").hidden = true;
  byId("profile-links").replaceChildren();
  byId("profile-title").textContent = "Profile";
  byId("profile-lead").textContent = "This profile cannot be shown.";
}

function setThreshold(value) {
  threshold = value;
  byId("threshold").value = value;
  sayThreshold(value);
}

const sayThreshold = (value) => {
  byId("threshold-value").textContent = number(value);
};

/** Positions of n bins over the prompt's tokens: the middle of each. */
export const middles = (count, tokens) =>
  Array.from({ length: count }, (_, index) => ((index + 0.5) * tokens) / count);

export const density = (influence) => influence.map((mass) => mass * influence.length);

/** Draws a profile; the keyboard goes there unless it has moved from where it was asked for. */
function draw(found, from) {
  profile = found;
  zone = profile.dead_zone;
  verdict = profile.dead_zone_verdict;
  setThreshold(zone?.threshold ?? 0.75);
  drawHead();
  drawChoice();
  drawCurves();
  drawMixing();
  drawForces();
  drawRecall(profile.recall);
  drawTables();
  if (document.activeElement !== from && document.activeElement !== document.body) return;
  byId("profile-title").focus({ preventScroll: true });
  byId("profile").scrollIntoView();
}

function drawHead() {
  const { model, request, measured, shape } = profile;
  const summary = {
    ...request, documents: measured.documents, recall: profile.recall !== null,
  };
  byId("profile-title").textContent = `${model.id}, ${counted(request.sequence_length, "token")}`;
  byId("profile-lead").textContent =
    `Shape: ${shapeText(shape)}. The first 10% of positions hold ${massText(shape.primacy_mass, shape.primacy_band)} of the influence on the last token, ` +
    `the last 10% hold ${massText(shape.recency_mass, shape.recency_band)}. Measured with ${settings(summary)}.`;
  tiles(byId("profile-facts"), [
    ["Dead zone", zoneText(zone, verdict)],
    ["Its 95% band", bandText(zone)],
    ["Density inside", zone && verdict === "zone" ? number(zone.mean_density) : "–"],
    ["Sum of lambda", profile.mixing ? number(profile.mixing.sum) : "–"],
    ["Documents", samplingText(measured)],
    ["Positions", request.positional_encoding === "off" ? "off (ablation)" : model.positional_encoding],
    ["Layers × heads", `${model.layers} × ${model.heads}`],
  ]);
  const base = `v1/profiles/${profile.id}`;
  const links = [
    ["JSON", base], ["CSV", `${base}.csv`], ["SVG", `${base}.svg`], ["PNG", `${base}.png`],
    ["dead zone", `${base}/dead-zone?threshold=${threshold}`],
    ["series", `${base}/series?bins=100`],
    ...(profile.recall ? ["csv", "svg"].map((form) => [`recall ${form.toUpperCase()}`, `${base}.${form}?curve=recall`]) : []),
  ];
  byId("profile-links").replaceChildren(...links.map(([text, href]) => h("a", { href, "data-json": "" }, text)));
}

/** The class of a curve, or that the documents do not decide it. */
function shapeText({ class: name, decided, support }) {
  if (decided) return words(name);
  const likely = Object.entries(support ?? {}).filter(([, share]) => share >= 0.05);
  const parts = likely.map(([each, share]) => `${words(each)} in ${percent(share)} of draws`);
  return `undecided (${parts.join(", ") || words(name)})`;
}

const massText = (value, band) =>
  percent(value) + (band ? ` (${percent(band.low)} to ${percent(band.high)})` : "");

/** How many documents were read, how well the curve is known, and what more would take. */
function samplingText({ documents, sampling }) {
  if (sampling.half_width === null) return `${documents}: too few for a band`;
  const known = `${documents}: tenths known to ${percent(sampling.half_width)}`;
  return sampling.half_width > sampling.target ? `${known}; ${percent(sampling.target)} takes about ${sampling.needed}` : known;
}

function drawChoice() {
  const box = byId("curves");
  const legend = box.querySelector("legend");
  const measured = h("span", { class: "curve" }, swatch(-1), `measured, smoothed${profile.measured.low ? " (95% band)" : ""}`);
  const raw = h("span", { class: "curve" }, swatch(-2), "measured, token by token");
  const choices = Object.entries(profile.predictions).map(([name, prediction], place) => {
    const input = h("input", { type: "checkbox", id: `curve-${name}`, checked: drawn(name) });
    input.addEventListener("change", () => {
      chosen.set(name, input.checked);
      drawCurves();
    });
    const text = `${words(name)} (W1 ${number(prediction.wasserstein, 2)})`;
    return h("label", { class: "curve", for: input.id }, input, swatch(place), text);
  });
  box.replaceChildren(legend, measured, raw, ...choices);
}

// What the reader switched by hand stays so from profile to profile.
const chosen = new Map();
const drawn = (name) => chosen.get(name) ?? ON_AT_FIRST.has(name);

function drawCurves() {
  if (!profile) return;
  const { measured, request } = profile;
  const tokens = request.sequence_length;
  const count = measured.influence.length;
  const places = Object.keys(profile.predictions);
  const predictions = places.filter(drawn).map((name) => ({
    label: words(name), values: density(profile.predictions[name].influence), place: places.indexOf(name),
  }));
  charts.profile.draw({
    name: "Density by position",
    x: middles(count, tokens),
    xRange: [0, tokens],
    series: [
      { label: "measured, smoothed", values: density(measured.smoothed), place: -1 },
      { label: "token by token", values: density(measured.influence), place: -2 },
      ...predictions,
    ],
    band: measured.low && { low: density(measured.low), high: density(measured.high) },
    zone: zone && verdict === "zone" ? [zone.start, zone.end] : null,
    xLabel: "position in the prompt (tokens)",
    yLabel: "density (1 = uniform)",
    log: byId("log").checked,
    xText: (index) => `token ${Math.floor(((index + 0.5) * tokens) / count)}`,
  });
}

async function newThreshold() {
  const { id } = profile;
  const asked = Number(byId("threshold").value);
  const view = await get(`v1/profiles/${id}/dead-zone?threshold=${asked}`);
  return () => {
    if (profile?.id !== id) return;
    threshold = asked;
    zone = view.dead_zone;
    verdict = view.verdict;
    drawHead();
    drawCurves();
    announce(`Dead zone ${zoneText(zone, verdict)}`);
  };
}

function drawMixing() {
  const { mixing } = profile;
  byId("mixing").hidden = mixing === null;
  if (mixing === null) return;
  const add = (sign) => mixing.lambda.map((value, layer) => value + sign * mixing.std[layer]);
  const layers = mixing.layers ?? mixing.lambda.map((_, layer) => layer);
  charts.mixing.draw({
    name: "Mixing coefficient by layer",
    x: layers,
    xRange: [Math.min(...layers) - 0.5, Math.max(...layers) + 0.5],
    series: [{ label: "lambda", values: mixing.lambda, place: -1, points: true }],
    band: { low: add(-1), high: add(1) },
    xLabel: "layer",
    yLabel: "lambda",
    xText: (index) => `layer ${layers[index]}`,
    xTicks: (u, ticks) => ticks.map((value) => (Number.isInteger(value) ? String(value) : "")),
  });
}

function drawForces() {
  const { forces, request } = profile;
  byId("forces").hidden = forces.length === 0;
  if (forces.length === 0) return;
  const count = forces[0].influence.length;
  charts.forces.draw({
    name: "Prediction after each force",
    x: middles(count, request.sequence_length),
    xRange: [0, request.sequence_length],
    series: forces.map((force, place) => ({ label: words(force.name), values: density(force.influence), place })),
    xLabel: "position (tokens)",
    yLabel: "density",
    log: true,
    xText: (index) => `token ${Math.floor(((index + 0.5) * request.sequence_length) / count)}`,
  });
}

function drawTables() {
  const parts = [];
  if (profile.forces.length) {
    const rows = profile.forces.map((force, place) => [
      h("span", { class: "curve" }, swatch(place), words(force.name)),
      number(force.mean_position), signed(force.shift), percent(force.primacy_mass), percent(force.recency_mass),
    ]);
    parts.push(region(table("Forces (mean position: 0 first token, 1 last)", ["Force", "Mean position", "Shift", "First 10%", "Last 10%"], rows)));
  }
  const predictions = Object.entries(profile.predictions);
  if (predictions.length) {
    const range = (value, band) => number(value) + (band ? ` (${number(band.low)} to ${number(band.high)})` : "");
    const rows = predictions.map(([name, p]) => [
      words(name), range(p.wasserstein, p.wasserstein_band), range(p.spearman, p.spearman_band), zoneText(p.dead_zone),
    ]);
    parts.push(region(table("Agreement with the measured curve", ["Prediction", "Wasserstein", "Spearman", "Dead zone"], rows)));
  }
  for (const [name, curve] of Object.entries(profile.recall ?? {})) {
    parts.push(region(recallTable(name, curve)), h("p", { class: "note" }, recallText(name, curve)));
  }
  for (const [name, { same_documents: same }] of predictions) {
    if (same) parts.push(h("p", { class: "note" }, pairedText(name, same)));
  }
  if (profile.collapse) parts.push(h("p", { class: "note" }, depthText(profile)));
  for (const warning of profile.warnings) parts.push(h("p", { class: "note" }, `Note: ${warning}`));
  const { timings, environment, model } = profile;
  parts.push(h("p", { class: "note" },
    `${model.architecture}, ${number(model.parameters / 1e6)} million parameters, ${environment.dtype} on ${environment.device}; ` +
    `${number(timings.tokens_per_second)} tokens/s; revision ${model.revision ?? "none"}.`));
  byId("profile-tables").replaceChildren(...parts);
}

/** A prediction that reads documents, against the measurement of the same ones. */
function pairedText(name, { documents, wasserstein, noise }) {
  const text = `${words(name)} read ${counted(documents, "document")}; on these it is ${number(wasserstein)} from the measurement (W1)`;
  if (noise === null) return `${text}.`;
  return `${text}, ${wasserstein <= noise ? "within" : "beyond"} the noise of a perfect prediction (${number(noise)}).`;
}

function depthText({ collapse, model }) {
  return (
    `Depth, by the model's own rollout: ${collapse.verdict}. After ${counted(model.layers, "layer")} the first token gets ` +
    `${percent(collapse.last_to_first)} of the influence (90% counts as collapsed), and the last token keeps ${percent(collapse.last_to_last)}.`
  );
}

function region(inner) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": inner.caption.textContent }, inner);
}
