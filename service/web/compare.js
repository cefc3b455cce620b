// Two profiles side by side.

import { get } from "./api.js";
import { Chart } from "./charts.js";
import { byId, h, number, percent, showError, signed, table, words, zoneText } from "./dom.js";
import { density, middles } from "./profile.js";
import { events, known, profileOptions, shown } from "./state.js";

const MOST_BINS = 100;
export const SOURCES = [
  "measured", "per_document", "attention_only", "half_residual", "residual", "residual_content",
  "measured_kernel", "cesaro", "second_moment",
];
let curves;
let difference;

export function start() {
  curves = new Chart(byId("chart-compare"));
  difference = new Chart(byId("chart-difference"));
  byId("compare-source").replaceChildren(...SOURCES.map((name) => new Option(words(name), name)));
  byId("compare-form").addEventListener("submit", compare);
  events.addEventListener("known", fill);
  addEventListener("hashchange", fill);
}

function fill() {
  const ids = [...known.keys()];
  const a = byId("compare-a");
  const b = byId("compare-b");
  profileOptions(a, a.value || shown());
  profileOptions(b, b.value || ids.find((id) => id !== a.value));
}

async function compare(event) {
  event.preventDefault();
  showError(byId("compare-error"), null);
  const [a, b, source] = ["compare-a", "compare-b", "compare-source"].map((id) => byId(id).value);
  const bins = Math.min(MOST_BINS, ...[a, b].map((id) => known.get(id).sequence_length));
  const address = `v1/comparisons?${new URLSearchParams({ a, b, source, bins })}`;
  try {
    const [answer, first, second] = await Promise.all([
      get(address),
      get(`v1/profiles/${a}?bins=${bins}`),
      get(`v1/profiles/${b}?bins=${bins}`),
    ]);
    byId("compare-links").replaceChildren(h("a", { href: address, "data-json": "" }, "JSON"));
    draw(answer, first, second);
  } catch (error) {
    showError(byId("compare-error"), error);
  }
}

function curve(profile, source) {
  if (source === "measured") return profile.measured.influence;
  if (source === "per_document") return profile.measured.per_document;
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
  const noise = Math.max(answer.noise_a ?? 0, answer.noise_b ?? 0);
  byId("compare-lead").textContent =
    `Wasserstein distance ${number(answer.wasserstein)}: ` +
    (answer.wasserstein > noise ? `more than the noise of either (${number(noise)}).` : `no more than their noise (${number(noise)}).`);
  const { a, b, dead_zone_change: zone } = answer;
  byId("compare-table").replaceChildren(
    table("First, second and change", ["Quantity", a.model, b.model, "Change"], [
      ["tokens", String(a.sequence_length), String(b.sequence_length), ""],
      ["shape", words(a.shape), words(b.shape), ""],
      ["dead zone", zoneText(a.dead_zone), zoneText(b.dead_zone), zone ? `${signed(100 * zone.fraction)} points` : "–"],
      ["first 10%", percent(a.primacy_mass), percent(b.primacy_mass), `${signed(100 * answer.primacy_change)} points`],
      ["last 10%", percent(a.recency_mass), percent(b.recency_mass), `${signed(100 * answer.recency_change)} points`],
    ]),
  );
}
