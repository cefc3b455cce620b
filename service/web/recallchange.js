// How recall differs between two profiles: for each probe that both have, its two curves by depth,
// the change with its interval, what that says in words, and the numbers.

import { Chart } from "./charts.js";
import { pValue, counted, h, percent, signed, table, words } from "./dom.js";

const LEAST = 12;

const points = (share) => `${signed(Number((100 * share).toFixed(Math.abs(share) < 0.0095 ? 2 : 1)))} pt`;
const ranged = ({ value, low, high }) => points(value) + (low === null ? "" : ` (${points(low)} to ${points(high)})`);
const width = (share) => counted(Number((100 * share).toPrecision(2)), "point");

/** Fills `box` from an answer whose `recall` lists the probes; `profiles` and `names` are a's and b's. */
export function drawRecallChanges(box, answer, profiles, names) {
  box.replaceChildren();
  for (const change of answer.recall) {
    const curves = profiles.map(({ recall }) => recall[change.probe]);
    drawCurves(part(box, `Recall of ${words(change.probe)} by depth`), change, curves, names);
    const where = change.paired ? "What changed, on the same groups of facts" : "What changed";
    drawChange(part(box, where), change);
    box.append(h("p", { "data-verdict": change.probe }, verdictText(change)), numbers(change, curves));
  }
}

function part(box, title) {
  const place = h("div");
  box.append(h("div", {}, h("h3", {}, title), place));
  return place;
}

const axis = (change) => ({
  x: change.depths.map(({ depth }) => 100 * depth),
  xRange: [0, 100],
  xLabel: "depth of the fact (% of the prompt)",
  xText: (at) => `a fact at ${percent(change.depths[at].depth, 2)} of the prompt`,
});

function drawCurves(place, change, curves, names) {
  new Chart(place).draw({
    ...axis(change),
    name: `Recall of ${words(change.probe)} by depth, both profiles`,
    file: `recall-${change.probe}`,
    series: curves.map(({ probability, low, high }, at) => ({
      label: names[at], values: probability, place: at - 1, points: true,
      band: low && { low, high, label: "95% bands, each depth by itself" },
    })),
    fromZero: true,
    format: (value) => percent(value, 2),
  });
}

function drawChange(place, change) {
  const tested = change.level.low !== null;
  const list = (name) => change.depths.map((one) => 100 * one[name]);
  new Chart(place, { height: 220 }).draw({
    ...axis(change),
    name: `Change of the recall of ${words(change.probe)}${tested ? ", each depth with its 95% band" : ""}`,
    file: `recall-change-${change.probe}`,
    series: [{
      label: `second less first${tested ? "" : " (not tested)"}`, values: list("value"), place: -1, points: true,
      band: tested ? { low: list("low"), high: list("high"), label: "95% band, all depths together" } : null,
    }],
    zero: { value: 0, label: "no change" },
    format: (value) => points(value / 100),
  });
}

/** The verdict, what it holds for, and the change of the mean over depths. */
function verdictText(change) {
  const { verdict, groups, paired, detectable, margin, level } = change;
  const where = `${paired ? "The same" : "Different"} groups of facts were compared (${groups}).`;
  const mean = `On average over depths recall changed by ${ranged(level)}.`;
  if (detectable === null) return `Undecided: a test takes ${LEAST} groups on each side, here are ${groups}. ${mean}`;
  const said = {
    difference: "A difference: at most 1 in 20 findings like this is false.",
    no_difference: `No difference: a change of ${width(margin)} at any depth would be found in 80% of cases.`,
    undecided: `Undecided: no change was found, but one of less than ${width(detectable)} may be missed; more groups would tell.`,
  }[verdict];
  return `${said} ${where} ${mean}`;
}

function numbers(change, curves) {
  const cell = ({ probability, low, high }, at) => percent(probability[at], 2) + (low ? ` (${percent(low[at], 2)} to ${percent(high[at], 2)})` : "");
  const mean = ({ probability }) => percent(probability.reduce((sum, value) => sum + value, 0) / probability.length, 2);
  const chance = ({ p }) => (p === null ? "–" : pValue(p));
  const title = `Recall of ${words(change.probe)}, in numbers`;
  const inner = table(title, ["Depth", "First", "Second", "Change", "p"], [
    ...change.depths.map((one, at) => [percent(one.depth, 2), ...curves.map((curve) => cell(curve, at)), ranged(one), chance(one)]),
    ["mean over depths", ...curves.map(mean), ranged(change.level), chance(change.level)],
  ]);
  return h("div", { class: "scroll stacks", tabindex: "0", role: "region", "aria-label": title }, inner);
}
