// Two profiles: their curves in one picture, and below it what changed, with its band. Without a
// choice the measured influence is compared, or recall where one of them has no influence.

import { get } from "./api.js";
import { attempt } from "./attempt.js";
import { Chart } from "./charts.js";
import { announce, byId, capital, h, number, percent, reveal, sided, signed, table, tokensText, words } from "./dom.js";
import { list } from "./known.js";
import { density, middles, share } from "./curves.js";
import { drawRecallChanges } from "./recallchange.js";
import * as router from "./router.js";
import { events, fillProfiles, known, settings, SOURCES } from "./state.js";
import { shortName } from "./words.js";

const MOST_BINS = 100;
const OTHERS = SOURCES.filter((name) => name !== "measured");
let curves;
let difference;
/** Whether somebody chose here; a list that arrives then chooses no longer. */
let chosen = false;
/** Which curves the profiles that were read have, by id: `{influence, recall}`. */
const has = new Map();

export function start() {
  curves = new Chart(byId("chart-compare"));
  difference = new Chart(byId("chart-difference"), { height: 220 });
  router.register("compare", { title: "Compare", show: open });
  for (const id of ["compare-a", "compare-b"]) {
    byId(id).addEventListener("change", () => {
      chosen = true;
      offer(byId("compare-source").value);
    });
  }
  byId("compare-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const [a, b, source] = ["compare-a", "compare-b", "compare-source"].map((id) => byId(id).value);
    router.note(router.address("compare", null, { a, b, source }));
    run().then(() => reveal(byId("compare-lead")));
  });
  events.addEventListener("known", () => router.showing("compare") && fill(byId("compare-a").value, byId("compare-b").value));
  const again = () => router.showing("compare") && byId("compare-body").hidden && open(router.parse());
  events.addEventListener("back", again);
  events.addEventListener("key", again);
}

async function open({ query }) {
  const [a, b] = ["a", "b"].map((name) => query.get(name));
  fill(a, b, query.get("source") ?? "");
  chosen = false;
  clear();
  if (a && b) run();
  await list();
  if (!router.showing("compare") || chosen) return;
  const first = a ?? [...known.keys()][0];
  fill(first, b ?? [...known.keys()].find((id) => id !== first));
}

function fill(a, b, source = byId("compare-source").value) {
  fillProfiles(byId("compare-a"), a);
  fillProfiles(byId("compare-b"), b);
  offer(source);
}

/** What a profile has, as far as it is known: one that no list names may have anything. */
function curvesOf(id) {
  const item = known.get(id);
  return has.get(id) ?? (item ? { influence: item.shape !== null, recall: item.recall } : { influence: true, recall: true });
}

/** Offers the curves that both chosen profiles can have, `chosen` among them if it is one. */
function offer(chosen) {
  const both = ["compare-a", "compare-b"].map((id) => curvesOf(byId(id).value));
  const influence = both.every((one) => one.influence);
  const options = [new Option(influence ? "measured influence" : "recall by depth", "")];
  if (influence && both.every((one) => one.recall)) options.push(new Option("recall by depth", "recall"));
  if (influence) options.push(...OTHERS.map((name) => new Option(words(name), name)));
  const select = byId("compare-source");
  select.replaceChildren(...options);
  select.value = options.some(({ value }) => value === chosen) ? chosen : "";
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
  refuseWithoutCurve(a, b);
  const address = `v1/comparisons?${new URLSearchParams({ a, b, ...(source && { source }), bins })}`;
  const [answer, first, second] = await Promise.all([
    get(address),
    get(`v1/profiles/${a}?bins=${bins}`),
    get(`v1/profiles/${b}?bins=${bins}`),
  ]);
  for (const one of [first, second]) has.set(one.id, { influence: one.measured !== null, recall: one.recall !== null });
  return () => {
    offer(byId("compare-source").value);
    byId("compare-links").replaceChildren(h("a", { href: address, "data-json": "" }, "JSON"));
    draw(answer, first, second);
  };
}

/** A served model has recall alone: the other profile needs it too. */
function refuseWithoutCurve(...ids) {
  const both = ids.map(curvesOf);
  const lacks = both.findIndex((one) => !one.recall);
  if (lacks < 0 || both.every((one) => one.influence)) return;
  const [one, other] = lacks ? ["Second", "first"] : ["First", "second"];
  throw new Error(`${one} has no recall, and ${other} has nothing else: measure the recall of ${known.get(ids[lacks])?.model ?? "this model"}.`);
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
  const recall = answer.source === "recall";
  byId("compare-influence").hidden = recall;
  byId("compare-recall").hidden = !recall;
  if (recall) drawRecallChanges(byId("compare-recall"), answer, [first, second], names);
  else drawInfluence(answer, [first, second], names);
  const apart = !recall && answer.a.objective !== answer.b.objective
    ? `The two curves measure different things (${words(answer.a.objective)} and ${words(answer.b.objective)}), so not all of this is due to the models. `
    : "";
  const lead = `${apart}${names[1].startsWith("second") ? capital(names[1]) : names[1]}, against ${names[0]}: ${sided(answer.summary)}.`;
  byId("compare-lead").textContent = lead;
  announce(lead);
  drawTable(answer);
}

function drawInfluence(answer, profiles, names) {
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
    series: profiles.map((profile, at) => ({ label: names[at], place: at - 1, ...curve(profile, answer.source) })),
    zero: { value: 1, label: "an even share" },
    format: share,
    log: true,
  });
  drawChange(answer, shared);
}

/** Tenth by tenth with its band where it was tested, else bin by bin. */
function drawChange(answer, shared) {
  const tested = answer.masses.every((one) => one.low !== null);
  const points = (name) => answer.masses.map((one) => 100 * one[name]);
  const label = "second less first";
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
  const { a, b } = answer;
  const measured = (side) => {
    if (known.has(side.id)) return settings(known.get(side.id));
    return side.objective === "recall" ? settings(side) : side.weights;
  };
  const more = answer.source !== "recall" && answer.recall.length
    ? [h("p", {}, h("a", { href: router.address("compare", null, { a: a.id, b: b.id, source: "recall" }) }, "Compare their recall by depth"))]
    : [];
  const rows = answer.source === "recall"
    ? [["groups of facts", String(a.documents), String(b.documents), ""]]
    : influenceRows(answer);
  byId("compare-table").replaceChildren(
    table("First, second and change", ["Quantity", "First", "Second", "Change"], [
      ["model", a.model, b.model, ""],
      ["measured with", measured(a), measured(b), ""],
      ["tokens", String(a.sequence_length), String(b.sequence_length), ""],
      ...rows,
    ]),
    ...more,
    ...answer.warnings.map((text) => h("p", { class: "note" }, `Note: ${sided(text)}.`)),
  );
}

function influenceRows(answer) {
  const { a, b, dead_zone_change: zone } = answer;
  const points = (change, band) =>
    `${signed(100 * change)} points${band ? ` (${signed(100 * band.low)} to ${signed(100 * band.high)})` : ""}`;
  const shape = (side) => (side.shape_decided ? words(side.shape) : `undecided (${words(side.shape)})`);
  const quiet = (side) => (side.dead_zone_verdict === "undecided" ? "undecided" : side.dead_zone ? tokensText(side.dead_zone) : "none");
  return [
    ["shape", shape(a), shape(b), ""],
    ["dead zone", quiet(a), quiet(b), zone ? `${points(zone.fraction)} of the prompt` : "–"],
    ["first tenth", percent(a.primacy_mass), percent(b.primacy_mass), points(answer.primacy_change, answer.primacy_change_band)],
    ["last tenth", percent(a.recency_mass), percent(b.recency_mass), points(answer.recency_change, answer.recency_change_band)],
    ["influence that would have to move, times how far (W1)", "", "", `${percent(answer.wasserstein, 2)} of the prompt`],
  ];
}
