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
  if (source in profile.measured) return profile.measured[source];
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
  drawChange(answer, shared);
  const lead = `Second against first: ${answer.summary}.`;
  byId("compare-lead").textContent = lead;
  announce(lead);
  drawTable(answer);
}

/** Tenth by tenth with its band where it was tested, else bin by bin. */
function drawChange(answer, shared) {
  const tested = answer.masses.every((one) => one.low !== null);
  const points = (name) => answer.masses.map((one) => 100 * one[name]);
  const label = "second less first";
  difference.draw({
    ...shared,
    ...(tested && {
      x: middles(answer.masses.length, 100),
      band: { low: points("low"), high: points("high") },
      xText: (at) => `${percent(answer.masses[at].start)} to ${percent(answer.masses[at].end)} of the prompt`,
    }),
    name: "Change of mass",
    series: [
      tested
        ? { label, values: points("value"), place: -1, points: true }
        : { label, values: answer.difference.map((mass) => 100 * mass), place: -1, stepped: true },
    ],
    yLabel: tested ? "points per tenth, with band" : "points",
  });
}

function drawTable(answer) {
  const { a, b, dead_zone_change: zone } = answer;
  const measured = (side) => (known.has(side.id) ? settings(known.get(side.id)) : side.weights);
  const points = (change, band) =>
    `${signed(100 * change)} points${band ? ` (${signed(100 * band.low)} to ${signed(100 * band.high)})` : ""}`;
  const shape = (side) => (side.shape_decided ? words(side.shape) : `undecided (${words(side.shape)})`);
  const zoneOf = (side) => zoneText(side.dead_zone, side.dead_zone_verdict);
  byId("compare-table").replaceChildren(
    table("First, second and change", ["Quantity", "First", "Second", "Change"], [
      ["model", a.model, b.model, ""],
      ["measured with", measured(a), measured(b), ""],
      ["tokens", String(a.sequence_length), String(b.sequence_length), ""],
      ["shape", shape(a), shape(b), ""],
      ["dead zone", zoneOf(a), zoneOf(b), zone ? points(zone.fraction) : "–"],
      ["first 10%", percent(a.primacy_mass), percent(b.primacy_mass), points(answer.primacy_change, answer.primacy_change_band)],
      ["last 10%", percent(a.recency_mass), percent(b.recency_mass), points(answer.recency_change, answer.recency_change_band)],
      ["Wasserstein distance", "", "", number(answer.wasserstein)],
    ]),
    ...answer.warnings.map((text) => h("p", { class: "note" }, `Note: ${text}.`)),
  );
}
