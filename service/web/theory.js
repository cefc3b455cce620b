// The curve of an architecture before training, without a model: the gateway computes it at once.

import { get, post } from "./api.js";
import { attempt } from "./attempt.js";
import { Chart } from "./charts.js";
import { announce, byId, h, number, percent, reveal, words } from "./dom.js";
import { density, middles, share } from "./curves.js";
import * as router from "./router.js";

const BINS = 512;
const USUAL = "llama-2-7b";
const FIELDS = { architecture: "architecture", tokens: "theory-length", lambda: "lambda", layers: "layers" };
let chart;
let asking = null;

export function start() {
  chart = new Chart(byId("chart-theory"), { height: 300 });
  router.register("theory", { title: "Theory alone", show: open });
  byId("theory-form").addEventListener("submit", (event) => {
    event.preventDefault();
    router.note(router.address("theory", null, Object.fromEntries(Object.entries(FIELDS).map(([name, id]) => [name, byId(id).value]))));
    run().then(() => reveal(byId("theory-lead")));
  });
}

function open({ query }) {
  attempt("theory-error", async () => {
    await names();
    return () => {
      for (const [name, id] of Object.entries(FIELDS)) if (query.has(name)) byId(id).value = query.get(name);
      if (query.has("architecture")) run();
    };
  }, { form: byId("theory-form") });
}

/** The architectures that the service knows by name, from its own description of its interface. */
async function names() {
  asking ??= get("openapi.json");
  try {
    const found = (await asking).components.schemas.RolloutRequest.properties.architecture;
    const all = (found.anyOf ?? [found]).flatMap((one) => one.enum ?? []);
    const select = byId("architecture");
    if (!select.options.length) select.replaceChildren(...all.map((name) => new Option(name, name, name === USUAL, name === USUAL)));
  } catch (error) {
    asking = null;
    throw error;
  }
}

function clear() {
  byId("theory-body").hidden = true;
  byId("theory-lead").textContent = "";
}

function run() {
  return attempt("theory-error", async () => {
    const length = Number(byId("theory-length").value);
    const layers = byId("layers").value;
    const answer = await post("v1/rollouts", {
      architecture: byId("architecture").value,
      sequence_length: length,
      bins: Math.min(BINS, length),
      mixing: { type: "constant", value: Number(byId("lambda").value) },
      ...(layers && { layers: Number(layers) }),
    });
    return () => draw(answer);
  }, { form: byId("theory-form"), result: byId("theory-body"), clear });
}

function draw(answer) {
  const { predictions, sequence_length: tokens, bins } = answer;
  byId("theory-body").hidden = false;
  const curve = predictions.residual;
  const lead = answer.summary.filter((sentence) => /best places are|is heard well/.test(sentence))[0] ?? answer.summary[0];
  byId("theory-lead").textContent = `By theory, before any training: ${lead}`;
  announce(byId("theory-lead").textContent);
  const others = Object.entries(predictions).filter(([name]) => name !== "residual" && name !== "residual_content");
  chart.draw({
    name: `Influence by theory: ${answer.architecture ?? "an architecture"}, ${answer.layers} layers`,
    file: `theory-${answer.architecture ?? "curve"}`,
    x: middles(bins ?? tokens, tokens),
    xRange: [0, tokens],
    series: [
      { label: "with residual stream", values: density(curve.influence), place: -1 },
      ...others.map(([name, one], at) => ({ label: { cesaro: "closed form (Cesàro)" }[name] ?? words(name), values: density(one.influence), place: at })),
    ],
    zone: curve.dead_zone && { from: curve.dead_zone.start, to: curve.dead_zone.end, label: "dead zone: hardly heard here", short: "dead zone" },
    zero: { value: 1, label: "an even share" },
    threshold: curve.dead_zone && { value: curve.dead_zone.threshold, label: `threshold: ${number(curve.dead_zone.threshold, 2)} of an even share` },
    xLabel: "place in the prompt (tokens)",
    log: true,
    format: share,
    xText: (index) => `token ${Math.floor(((index + 0.5) * tokens) / (bins ?? tokens))}`,
  });
  byId("theory-words").replaceChildren(
    ...answer.summary.map((sentence) => h("p", {}, sentence)),
    h("p", {}, `In the limit: ${answer.collapse.verdict}; at this depth the first token gets ${percent(answer.collapse.last_to_first)}.`),
    ...answer.assumptions.map((text) => h("p", { class: "note" }, `Assumed: ${text}.`)),
  );
}
