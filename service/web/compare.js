// Two profiles: their curves in one picture, and below it what changed, with its band.

import { get } from "./api.js";
import { attempt } from "./attempt.js";
import { Chart } from "./charts.js";
import { announce, byId, capital, h, number, percent, signed, table, tokensText, words } from "./dom.js";
import { list } from "./known.js";
import { density, middles, share } from "./curves.js";
import * as router from "./router.js";
import { events, fillProfiles, known, settings, SOURCES } from "./state.js";
import { shortName } from "./words.js";

const MOST_BINS = 100;
let curves;
let difference;

export function start() {
  curves = new Chart(byId("chart-compare"));
  difference = new Chart(byId("chart-difference"), { height: 220 });
  router.register("compare", { title: "Compare", show: open });
  byId("compare-source").replaceChildren(...SOURCES.map((name) => new Option(words(name), name)));
  byId("compare-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const [a, b, source] = ["compare-a", "compare-b", "compare-source"].map((id) => byId(id).value);
    router.note(router.address("compare", null, { a, b, source: source === SOURCES[0] ? null : source }));
    run();
  });
  events.addEventListener("known", () => router.showing("compare") && fill(byId("compare-a").value, byId("compare-b").value));
  const again = () => router.showing("compare") && byId("compare-body").hidden && open(router.parse());
  events.addEventListener("back", again);
  events.addEventListener("key", again);
}

async function open({ query }) {
  const [a, b] = ["a", "b"].map((name) => query.get(name));
  byId("compare-source").value = query.get("source") ?? SOURCES[0];
  fill(a, b);
  clear();
  if (a && b) run();
  await list();
  if (!router.showing("compare")) return;
  const first = a ?? [...known.keys()][0];
  fill(first, b ?? [...known.keys()].find((id) => id !== first));
}

function fill(a, b) {
  fillProfiles(byId("compare-a"), a);
  fillProfiles(byId("compare-b"), b);
}

function clear() {
  byId("compare-body").hidden = true;
  byId("compare-links").replaceChildren();
  byId("compare-lead").textContent = "";
}

const run = () => attempt("compare-error", compare, { form: byId("compare-form"), result: byId("compare-body"), clear });

async function compare() {
  const [a, b, source] = ["compare-a", "compare-b", "compare-source"].map((id) => byId(id).value);
  if (!a || !b) throw new Error("There is no known profile to compare: measure a model first.");
  if (a === b) throw new Error("First and second are the same profile: choose another one, or measure a second.");
  await Promise.all([a, b].map((id) => (known.has(id) ? null : list())));
  const bins = Math.min(MOST_BINS, ...[a, b].map((id) => known.get(id)?.sequence_length ?? MOST_BINS));
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

/** The curve to draw, and its band where it has one. */
function curve({ measured, predictions }, source) {
  const band = measured?.low && { low: density(measured.low), high: density(measured.high), label: "95% bands" };
  if (source === "measured") return { values: density(measured.smoothed), band };
  return { values: density(source in measured ? measured[source] : predictions[source].influence), band: null };
}

/** Names that tell the two sides apart. */
function sides({ a, b }) {
  const name = (side) => `${shortName(side.model, side.weights)}, ${side.sequence_length} tokens`;
  return name(a) === name(b) ? [`first (${name(a)})`, `second (${name(b)})`] : [name(a), name(b)];
}

function draw(answer, first, second) {
  byId("compare-body").hidden = false;
  const names = sides(answer);
  const shared = {
    x: middles(answer.bins, 100),
    xRange: [0, 100],
    xLabel: "place (% of the prompt)",
    xText: (index) => `at ${number(((index + 0.5) * 100) / answer.bins, 2)}% of the prompt`,
  };
  curves.draw({
    ...shared,
    name: "Influence by place, both profiles",
    file: "comparison",
    series: [first, second].map((profile, at) => ({ label: names[at], place: at - 1, ...curve(profile, answer.source) })),
    zero: { value: 1, label: "an even share" },
    format: share,
    log: true,
  });
  drawChange(answer, shared, names);
  const lead = `${capital(names[1])}, against ${names[0]}: ${answer.summary}.`;
  byId("compare-lead").textContent = lead;
  announce(lead);
  drawTable(answer);
}

/** Tenth by tenth with its band where it was tested, else bin by bin. */
function drawChange(answer, shared, names) {
  const tested = answer.masses.every((one) => one.low !== null);
  const points = (name) => answer.masses.map((one) => 100 * one[name]);
  const label = `${names[1]} less ${names[0]}`;
  byId("difference-title").textContent = answer.paired ? "What changed, on the same documents" : "What changed";
  difference.draw({
    ...shared,
    ...(tested && {
      x: middles(answer.masses.length, 100),
      xText: (at) => `${percent(answer.masses[at].start)} to ${percent(answer.masses[at].end)} of the prompt`,
    }),
    name: `Change of the share of influence${tested ? ", each tenth with its 95% band" : ""}`,
    file: "difference",
    series: [
      tested
        ? { label, values: points("value"), place: -1, points: true, band: { low: points("low"), high: points("high"), label: "95% band, all tenths together" } }
        : { label: `${label} (not tested)`, values: answer.difference.map((mass) => 100 * mass), place: -1, stepped: true },
    ],
    zero: { value: 0, label: "no change" },
    format: (value) => `${signed(Number(value.toPrecision(3)))} pt`,
  });
}

function drawTable(answer) {
  const { a, b, dead_zone_change: zone } = answer;
  const measured = (side) => (known.has(side.id) ? settings(known.get(side.id)) : side.weights);
  const points = (change, band) =>
    `${signed(100 * change)} points${band ? ` (${signed(100 * band.low)} to ${signed(100 * band.high)})` : ""}`;
  const shape = (side) => (side.shape_decided ? words(side.shape) : `undecided (${words(side.shape)})`);
  const quiet = (side) => (side.dead_zone_verdict === "undecided" ? "undecided" : side.dead_zone ? tokensText(side.dead_zone) : "none");
  byId("compare-table").replaceChildren(
    table("First, second and change", ["Quantity", "First", "Second", "Change"], [
      ["model", a.model, b.model, ""],
      ["measured with", measured(a), measured(b), ""],
      ["tokens", String(a.sequence_length), String(b.sequence_length), ""],
      ["shape", shape(a), shape(b), ""],
      ["listens least", quiet(a), quiet(b), zone ? `${points(zone.fraction)} of the prompt` : "–"],
      ["first tenth", percent(a.primacy_mass), percent(b.primacy_mass), points(answer.primacy_change, answer.primacy_change_band)],
      ["last tenth", percent(a.recency_mass), percent(b.recency_mass), points(answer.recency_change, answer.recency_change_band)],
      ["influence that would have to move, times how far (W1)", "", "", `${percent(answer.wasserstein, 2)} of the prompt`],
    ]),
    ...answer.warnings.map((text) => h("p", { class: "note" }, `Note: ${text}.`)),
  );
}
