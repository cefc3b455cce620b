// What folds below the answer of a profile: how it was measured, where the zone is at another
// threshold, what theory predicts and how far off it is, and the numbers by layer.

import { attempt } from "./attempt.js";
import { Chart } from "./charts.js";
import { announce, capital, counted, h, number, percent, signed, table, tokensText, words } from "./dom.js";
import { density, middles, share } from "./curves.js";
import { shapeText } from "./words.js";

/** Folds for a profile; `move(threshold)` answers with the drawing of another threshold. */
export function drawDetails(box, profile, { view, move }) {
  const parts = [
    ["How it was measured", () => measurement(profile)],
    profile.measured ? ["Another threshold for the dead zone", () => thresholds(view, move)] : null,
    profile.measured ? ["Token by token", (place) => raw(place, profile)] : null,
    Object.keys(profile.recall ?? {}).length ? ["Recall in numbers", () => recallTables(profile)] : null,
    Object.keys(profile.predictions).length ? ["What theory predicts, and how far off it is", (place) => predictions(place, profile)] : null,
    profile.forces.length ? ["Forces: what each part of the architecture adds", (place) => forces(place, profile)] : null,
    profile.mixing ? ["Lambda: how much attention mixes in each layer", (place) => mixing(place, profile)] : null,
    ["Files", () => [files(profile)]],
  ];
  // What the reader opened stays open from profile to profile.
  const open = new Set([...box.querySelectorAll("details[open] > summary")].map((one) => one.textContent));
  box.replaceChildren(...parts.filter(Boolean).map(([title, fill]) => fold(title, fill, open.has(title))));
}

function fold(title, fill, open) {
  const inside = h("div", { class: "stack inside" });
  const details = h("details", {}, h("summary", {}, title), inside);
  details.addEventListener("toggle", () => {
    if (!details.open || inside.childElementCount) return;
    const made = fill(inside);
    if (made) inside.replaceChildren(...made);
  });
  details.open = open;
  return details;
}

const note = (text) => h("p", { class: "note" }, text);

const region = (inner) =>
  h("div", { class: "scroll stacks", tabindex: "0", role: "region", "aria-label": inner.caption.textContent }, inner);

function measurement(profile) {
  const { measured, shape, timings, environment, model, request, collapse } = profile;
  const terms = [];
  if (measured) {
    terms.push(["Shape", shapeText(shape)], ["How exact", samplingText(measured)]);
    terms.push(["What is measured", `How strongly the next word's probability reacts to each token (${request.objective.replaceAll("_", " ")}). Positions: ${request.positional_encoding === "off" ? "off (ablation)" : model.positional_encoding}.`]);
  }
  if (collapse) terms.push(["Depth", `By the model's own rollout: ${collapse.verdict}. After ${counted(model.layers, "layer")} the first token gets ${percent(collapse.last_to_first, 2)} of the influence (90% counts as collapsed), and the last token keeps ${percent(collapse.last_to_last, 2)}.`]);
  if (model?.parameters && environment) {
    terms.push(["Model", `${model.architecture}, ${counted(model.layers, "layer")} of ${counted(model.heads, "head")}, ${number(model.parameters / 1e6)} million parameters, revision ${model.revision ?? "none"}.`]);
    terms.push(["Run", `${environment.dtype} on ${environment.device}, ${number(timings.tokens_per_second, 2)} tokens a second.`]);
  }
  terms.push(...profile.warnings.map((text) => ["Note", `${capital(text)}.`]));
  return [h("dl", { class: "terms" }, ...terms.map(([term, text]) => h("div", {}, h("dt", {}, term), h("dd", {}, text))))];
}

/** How many documents were read, how well the curve is known, and what more would take. */
function samplingText({ documents, sampling }) {
  const count = counted(documents, "document");
  if (sampling.half_width === null) return `${count}: too few for a band; it takes 12.`;
  const known = `${count}: the share of each tenth of the prompt is known to ±${percent(sampling.half_width, 2)}`;
  return sampling.half_width > sampling.target ? `${known}; ±${percent(sampling.target, 2)} takes about ${sampling.needed} documents.` : `${known}.`;
}

function thresholds(view, move) {
  const slider = h("input", { id: "threshold", type: "range", min: 0.05, max: 1.5, step: 0.05, value: view.threshold });
  const output = h("output", { id: "threshold-value", for: "threshold" });
  const said = h("p", { id: "threshold-zone" });
  const error = h("div", { class: "error", role: "alert", id: "threshold-error", hidden: true });
  let kept = view.threshold;
  const say = () => {
    output.textContent = share(Number(slider.value));
  };
  slider.addEventListener("input", say);
  slider.addEventListener("change", () => {
    const asked = Number(slider.value);
    attempt("threshold-error", async () => {
      const draw = await move(asked);
      return () => {
        kept = asked;
        const found = draw();
        said.textContent = zoneWords(found);
        announce(said.textContent);
      };
    }, {
      result: said,
      clear: () => {
        slider.value = kept;
        say();
      },
    });
  });
  say();
  said.textContent = zoneWords(view);
  return [h("p", { class: "slider" }, h("label", { for: "threshold" }, "The dead zone is below"), slider, output), error, said];
}

function zoneWords({ threshold, zone, verdict }) {
  if (verdict === "undecided") return `Below ${share(threshold)}: undecided; more documents may tell.`;
  return zone ? `Below ${share(threshold)}: ${tokensText(zone)}, ${percent(zone.fraction, 2)} of the prompt.` : `Nothing falls below ${share(threshold)}.`;
}

function raw(place, { measured, request, id }) {
  const count = measured.influence.length;
  const tokens = request.sequence_length;
  chartIn(place).draw({
    name: "Influence token by token",
    file: `tokens-${id.slice(0, 8)}`,
    x: middles(count, tokens),
    xRange: [0, tokens],
    series: [
      { label: "as measured", values: density(measured.influence), place: 6, faint: true },
      { label: "smoothed over a tenth", values: density(measured.smoothed), place: -1 },
    ],
    zero: { value: 1, label: "an even share" },
    xLabel: "place in the prompt (tokens)",
    log: true,
    format: share,
    xText: (index) => `token ${Math.floor(((index + 0.5) * tokens) / count)}`,
  });
}

function chartIn(place, title = null, height = 240) {
  const box = h("div");
  place.append(title ? h("div", {}, h("h4", {}, title), box) : box);
  return new Chart(box, { height });
}

function recallTables({ recall }) {
  const range = (low, high, at) => (low ? `${percent(low[at], 2)} to ${percent(high[at], 2)}` : "–");
  return Object.entries(recall).map(([name, curve]) => {
    const rows = curve.depth.map((depth, at) => [
      percent(depth, 2), number(curve.position[at]), percent(curve.probability[at], 2),
      range(curve.low, curve.high, at), range(curve.simultaneous_low, curve.simultaneous_high, at),
      curve.log_probability ? number(curve.log_probability[at]) : "–",
      curve.influence_density ? `${number(curve.influence_density[at], 2)}×` : "–",
    ]);
    const heads = ["Depth", "Token", "Recalled", "95% band", "Band of differences", "Log-probability (nats)", "Influence there"];
    return region(table(`Recall of ${words(name)} by depth`, heads, rows));
  });
}

/** A panel for each prediction: the measured curve behind, the prediction before it. */
function predictions(place, profile) {
  const { measured, request, id } = profile;
  const tokens = request.sequence_length;
  const all = Object.entries(profile.predictions).sort(([, one], [, other]) => one.wasserstein - other.wasserstein);
  const grid = h("div", { class: "panels" });
  place.append(note("Closest first: the least \"off by\" (W1) comes first. That is how far the influence would have to move along the prompt, on average, to turn one curve into the other."), grid);
  for (const [name, prediction] of all) {
    const count = prediction.influence.length;
    chartIn(grid, `${capital(words(name))}: off by ${percent(prediction.wasserstein, 2)} of the prompt`, 190).draw({
      name: `Prediction ${words(name)}`,
      file: `${name}-${id.slice(0, 8)}`,
      x: middles(count, tokens),
      xRange: [0, tokens],
      series: [
        { label: "measured", values: density(measured.smoothed), place: -1 },
        { label: "predicted", values: density(prediction.influence), place: 0 },
      ],
      xLabel: "tokens",
      log: true,
      format: share,
      xText: (index) => `token ${Math.floor(((index + 0.5) * tokens) / count)}`,
    });
  }
  const range = (value, band, write) => write(value) + (band ? ` (${write(band.low)} to ${write(band.high)})` : "");
  const off = (value) => percent(value, 2);
  const rank = (value) => number(value, 2);
  place.append(region(table("Agreement with the measured curve, sorted by \"off by\"", ["Prediction", "Off by (W1, share of the prompt)", "Same ranking of places (1: the same)", "Dead zone (tokens)"],
    all.map(([name, one]) => [words(name), range(one.wasserstein, one.wasserstein_band, off), range(one.spearman, one.spearman_band, rank), one.dead_zone ? `${one.dead_zone.start} to ${one.dead_zone.end - 1}` : "none"]))));
  for (const [name, { same_documents: same }] of all) if (same) place.append(note(pairedText(name, same)));
}

/** A prediction that reads documents, against the measurement of the same ones. */
function pairedText(name, { documents, wasserstein, noise }) {
  const text = `${capital(words(name))} read ${counted(documents, "document")}; on these it is off by ${percent(wasserstein, 2)} of the prompt`;
  if (noise === null) return `${text}.`;
  return `${text}, ${wasserstein <= noise ? "within" : "beyond"} the noise of a perfect prediction (${percent(noise, 2)}).`;
}

const tiny = (value) => Math.abs(value) < 5e-4;
const near = (value, write) => (value !== 0 && tiny(value) ? "about 0" : write(value));

function forces(place, { forces: all, request, id }) {
  const count = all[0].influence.length;
  const grid = h("div", { class: "panels" });
  place.append(note("Switched on one after another, from a plain average over everything before."), grid);
  for (const [at, force] of all.entries()) {
    const moved = `moves the middle by ${percent(Math.abs(force.shift), 2)} towards the ${force.shift < 0 ? "start" : "end"}`;
    chartIn(grid, `${capital(words(force.name))}: ${tiny(force.shift) ? "adds nothing" : moved}`, 190).draw({
      name: `After ${words(force.name)}`,
      file: `force-${force.name}-${id.slice(0, 8)}`,
      x: middles(count, request.sequence_length),
      xRange: [0, request.sequence_length],
      series: [
        ...(at ? [{ label: "before", values: density(all[at - 1].influence), place: 6, faint: true }] : []),
        { label: "after", values: density(force.influence), place: -1 },
      ],
      xLabel: "tokens",
      log: true,
      format: share,
      xText: (index) => `token ${Math.floor(((index + 0.5) * request.sequence_length) / count)}`,
    });
  }
  place.append(region(table("Forces (mean position: 0 is the first token, 1 the last)", ["Force", "Mean position", "Shift", "First tenth", "Last tenth"],
    all.map((force) => [words(force.name), near(force.mean_position, number), near(force.shift, signed), percent(force.primacy_mass, 2), percent(force.recency_mass, 2)]))));
}

function mixing(place, { mixing: found, id }) {
  const spread = (sign) => found.lambda.map((value, layer) => value + sign * found.std[layer]);
  const layers = found.layers ?? found.lambda.map((_, layer) => layer);
  place.append(note(`Lambda is the share of attention in a layer's output; the rest passes by. The sum over layers is ${number(found.sum)}: the larger, the closer the model is to hearing the first token alone.`));
  chartIn(place).draw({
    name: "Lambda by layer",
    file: `lambda-${id.slice(0, 8)}`,
    x: layers,
    xRange: [Math.min(...layers) - 0.5, Math.max(...layers) + 0.5],
    series: [{ label: "lambda", values: found.lambda, place: -1, points: true, band: { low: spread(-1), high: spread(1), label: "spread over documents" } }],
    xLabel: "layer",
    fromZero: true,
    wholeTicks: true,
    xText: (index) => `layer ${layers[index]}`,
  });
}

function files(profile) {
  const base = `v1/profiles/${profile.id}`;
  const links = [
    ["JSON", base], ["CSV", `${base}.csv`], ["SVG", `${base}.svg`], ["PNG", `${base}.png`], ["series", `${base}/series?bins=100`],
    ...(profile.recall ? ["csv", "svg", "png"].map((form) => [`recall ${form.toUpperCase()}`, `${base}.${form}?curve=recall`]) : []),
  ];
  return h("p", { class: "links", id: "profile-links" }, ...links.map(([text, href]) => h("a", { href, "data-json": "" }, text)));
}
