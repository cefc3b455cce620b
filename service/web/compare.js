// Two profiles side by side.

import { get } from "./api.js";
import { on } from "./attempt.js";
import { Chart } from "./charts.js";
import { announce, byId, h, number, percent, signed, table, words, zoneText } from "./dom.js";
import { density, middles } from "./profile.js";
import { events, known, profileSelect, settings, shown, SOURCES } from "./state.js";

const MOST_BINS = 100;
const LEAD = "Both curves on one relative axis, and what changed.";
let curves;
let difference;

export function start() {
  curves = new Chart(byId("chart-compare"));
  difference = new Chart(byId("chart-difference"));
  byId("compare-source").replaceChildren(...SOURCES.map((name) => new Option(words(name), name)));
  const form = byId("compare-form");
  on(form, "submit", "compare-error", compare, { form, result: byId("compare-body"), clear });
  const other = () => [...known.keys()].find((id) => id !== byId("compare-a").value);
  const fills = [profileSelect(byId("compare-a"), shown), profileSelect(byId("compare-b"), other)];
  const fill = () => fills.forEach((each) => each());
  events.addEventListener("known", fill);
  addEventListener("hashchange", fill);
  byId("compare-a").addEventListener("change", fill);
  fill();
}

function clear() {
  byId("compare-body").hidden = true;
  byId("compare-links").replaceChildren();
  byId("compare-lead").textContent = LEAD;
}

async function compare() {
  const [a, b, source] = ["compare-a", "compare-b", "compare-source"].map((id) => byId(id).value);
  if (!a || !b) throw new Error("There is no known profile to compare: measure a model first.");
  if (a === b) throw new Error("First and second are the same profile: choose another one, or measure a second.");
  const bins = Math.min(MOST_BINS, ...[a, b].map((id) => known.get(id).sequence_length));
  const address = `v1/comparisons?${new URLSearchParams({ a, b, source, bins })}`;
  const [answer, first, second] = await Promise.all([
    get(address),
    get(`v1/profiles/${a}?bins=${bins}`),
    get(`v1/profiles/${b}?bins=${bins}`),
  ]);
  return () => {
    byId("compare-links").replaceChildren(h("a", { href: address, "data-json": "" }, "JSON"));
    draw(answer, first, second);
  };
}

function curve(profile, source) {
  if (source === "measured") return profile.measured.influence;
  if (source === "mean_of_norms") return profile.measured.mean_of_norms;
  return profile.predictions[source].influence;
}

function draw(answer, first, second) {
  byId("compare-body").hidden = false;
  const shared = {
    x: middles(answer.bins, 100),
    xRange: [0, 100],
    xLabel: "position (% of the prompt)",
    xText: (index) => `${number(((index + 0.5) * 100) / answer.bins)}% of the prompt`,
  };
  curves.draw({
    ...shared,
    name: "Density of both",
    series: [
      { label: "first", values: density(curve(first, answer.source)), place: -1 },
      { label: "second", values: density(curve(second, answer.source)), place: 0 },
    ],
    yLabel: "density (1 = uniform)",
    log: true,
  });
  difference.draw({
    ...shared,
    name: "Difference of mass",
    series: [{ label: "second less first", values: answer.difference, place: -1, stepped: true }],
    yLabel: "mass",
  });
  const lead = `Wasserstein distance ${number(answer.wasserstein)}: ${verdict(answer)}.`;
  byId("compare-lead").textContent = lead;
  announce(lead);
  drawTable(answer);
}

/** How the distance stands to the noise of each, where it is known. */
function verdict({ wasserstein, noise_a: a, noise_b: b }) {
  const unknown = [["first", a], ["second", b]].filter(([, noise]) => noise === null).map(([name]) => name);
  const missing = `the noise of the ${unknown.join(" and of the ")} is unknown (one document)`;
  if (unknown.length === 2) return missing;
  const noise = number(Math.max(a ?? 0, b ?? 0));
  const more = wasserstein > Math.max(a ?? 0, b ?? 0);
  if (unknown.length === 0) return more ? `more than the noise of either (${noise})` : `no more than their noise (${noise})`;
  const other = a === null ? "second" : "first";
  return `${more ? "more" : "no more"} than the noise of the ${other} (${noise}); ${missing}`;
}

function drawTable(answer) {
  const { a, b, dead_zone_change: zone } = answer;
  const measured = (side) => (known.has(side.id) ? settings(known.get(side.id)) : side.weights);
  const points = (change) => `${signed(100 * change)} points`;
  byId("compare-table").replaceChildren(
    table("First, second and change", ["Quantity", "First", "Second", "Change"], [
      ["model", a.model, b.model, ""],
      ["measured with", measured(a), measured(b), ""],
      ["tokens", String(a.sequence_length), String(b.sequence_length), ""],
      ["shape", words(a.shape), words(b.shape), ""],
      ["dead zone", zoneText(a.dead_zone), zoneText(b.dead_zone), zone ? points(zone.fraction) : "–"],
      ["first 10%", percent(a.primacy_mass), percent(b.primacy_mass), points(answer.primacy_change)],
      ["last 10%", percent(a.recency_mass), percent(b.recency_mass), points(answer.recency_change)],
    ]),
    ...answer.warnings.map((text) => h("p", { class: "note" }, `Note: ${text}.`)),
  );
}
