// Recall by depth: a chart, a table and a sentence for each probe.

import { Chart } from "./charts.js";
import { byId, counted, h, number, percent, table, words } from "./dom.js";

/** A chart for each probe: recall by where the fact stood, with the band of differences between depths. */
export function drawRecall(curves) {
  const box = byId("recall-charts");
  const probes = Object.entries(curves ?? {});
  box.hidden = probes.length === 0;
  box.replaceChildren(...probes.map(([name]) => h("div", {},
    h("h3", {}, `Recall of ${words(name)} by depth`),
    h("div", { class: "chart", id: `chart-recall-${name}` }),
  )));
  for (const [name, curve] of probes) {
    const level = { label: "recall", values: curve.probability, place: -1, points: true };
    new Chart(byId(`chart-recall-${name}`)).draw({
      name: `Recall of ${words(name)} by depth`,
      x: curve.position,
      xRange: [0, curve.prompt_tokens],
      series: [level],
      band: curve.simultaneous_low && { low: curve.simultaneous_low, high: curve.simultaneous_high },
      xLabel: "token at which the fact begins",
      yLabel: "probability of a right answer",
      xText: (index) => `token ${Math.round(curve.position[index])}`,
    });
  }
}

const RECALL_VERDICTS = {
  varies: "recall depends on where the fact stands",
  flat: "recall does not depend on where the fact stands: every depth is within .05 of the mean",
  undecided: "these groups do not decide whether recall depends on where the fact stands",
  floor: "the model does not recall these facts, wherever they stand",
  ceiling: "the model recalls nearly all facts, wherever they stand",
};

/** Verdict, controls and agreement in words. */
export function recallText(name, curve) {
  const { controls, groups, facts, form, question, spearman_with_influence: rank } = curve;
  const p = curve.p === null ? "" : ` (p = ${number(curve.p)})`;
  const agreement = rank
    ? ` Rank agreement with influence: ${number(rank.value, 2)} (${number(rank.low, 2)} to ${number(rank.high, 2)}).`
    : " Rank agreement with influence takes 32 groups.";
  return (
    `Recall of ${words(name)}: ${RECALL_VERDICTS[curve.verdict] ?? curve.verdict}${p}. ` +
    `${counted(groups, "group")} of ${facts} facts, ${form} prompts, question ${question}. ` +
    `With the fact alone ${percent(controls.oracle)}, without any context ${percent(controls.closed_book)}.${agreement}`
  );
}

export function recallTable(name, curve) {
  const range = (low, high, at) => (low ? `${percent(low[at])} to ${percent(high[at])}` : "–");
  const rows = curve.depth.map((depth, at) => [
    percent(depth), number(curve.position[at]), percent(curve.probability[at]),
    range(curve.low, curve.high, at), range(curve.simultaneous_low, curve.simultaneous_high, at),
    curve.log_probability ? number(curve.log_probability[at]) : "–",
    curve.influence_density ? number(curve.influence_density[at]) : "–",
  ]);
  const heads = ["Depth", "Token", "Recall", "95% band", "Band of differences", "Log-probability", "Influence (density)"];
  return table(`Recall of ${words(name)} by depth`, heads, rows);
}
