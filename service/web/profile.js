// One profile: the answer in words, influence and recall on one axis, and what to do next. `#/` is
// the newest profile; where there is none yet, the one that is shipped as an example.

import { get } from "./api.js";
import { attempt } from "./attempt.js";
import { Chart } from "./charts.js";
import { density, middles, share } from "./curves.js";
import { drawDetails } from "./details.js";
import { byId, counted, h, number, percent, words } from "./dom.js";
import { example, list, load } from "./known.js";
import * as router from "./router.js";
import { events, known, settings } from "./state.js";
import { answer, mainRecall, recallText, shortName } from "./words.js";

let influence;
let recall;
let profile = null;
/** Whether what is on show is the shipped profile. */
let shown = false;
/** The zone at the threshold that was chosen: `{threshold, zone, verdict}`. */
let view = null;
let refusedFor = "";

export function start() {
  influence = new Chart(byId("chart-profile"), { height: 300 });
  recall = new Chart(byId("chart-recall"), { height: 220 });
  router.register("profile", { title: "Answer", show: (place) => open(place) });
  const again = () => router.showing("profile") && (profile === null || shown) && open(router.parse());
  events.addEventListener("back", again);
  events.addEventListener("key", again);
}

function open({ id, query }) {
  const body = byId("profile-body");
  const threshold = Number(query.get("threshold")) || null;
  return attempt("profile-error", async () => {
    const found = await find(id).catch(refused);
    const zone = threshold ? await zoneAt(found.profile.id, threshold) : null;
    return () => draw(found, zone);
  }, { result: body, clear });
}

/** A profile by its id; without one the newest, or where there is none the shipped one. */
async function find(id) {
  const wanted = id ?? (await newest());
  if (wanted === null || wanted === "example") return { profile: await example(), isExample: true };
  if (profile?.id === wanted) return { profile, isExample: shown };
  const found = await load(wanted);
  return { profile: found, isExample: !known.has(found.id) && found.id === (await example()).id };
}

async function newest() {
  await list(true);
  return [...known.keys()][0] ?? null;
}

async function zoneAt(id, threshold) {
  const found = await get(`v1/profiles/${id}/dead-zone?threshold=${threshold}`);
  return { threshold, zone: found.dead_zone, verdict: found.verdict };
}

/** A missing key is asked for above: it is no fault of the profile. */
function refused(error) {
  refusedFor = error.status === 401 ? "This service asks for a key first" : "This profile cannot be shown";
  throw error;
}

function clear() {
  profile = null;
  shown = false;
  byId("profile-body").hidden = true;
  byId("profile-kicker").textContent = "";
  byId("profile-title").textContent = refusedFor;
}

function draw({ profile: found, isExample }, zone) {
  profile = found;
  shown = isExample;
  view = zone ?? { threshold: found.dead_zone?.threshold ?? 0.75, zone: found.dead_zone, verdict: found.dead_zone_verdict };
  byId("profile-body").hidden = false;
  drawAnswer(found);
  drawInfluence(found);
  drawRecall(found);
  drawSteps(found);
  drawDetails(byId("profile-details"), found, { view, move: newThreshold });
}

function drawAnswer(found) {
  const { request, measured, model } = found;
  const said = answer(found, view.zone, view.verdict);
  byId("profile-title").textContent = said.sentence;
  byId("profile-certainty").textContent = said.certainty;
  byId("profile-certainty").className = said.decided ? "sure" : "open";
  const how = measured ? settings({ ...request, documents: measured.documents, recall: found.recall !== null }) : "recall alone";
  byId("profile-kicker").replaceChildren(
    shown ? h("strong", {}, "Example, measured elsewhere. ") : "",
    `${model?.id ?? request.model}, ${counted(request.sequence_length, "token")}, ${how}, ${found.created_at.slice(0, 10)}`,
  );
  router.entitle(shortName(request.model));
}

function extent({ request, recall: curves }) {
  return [0, Math.max(request.sequence_length, ...Object.values(curves ?? {}).map((curve) => curve.prompt_tokens))];
}

function drawInfluence(found) {
  const { measured, request } = found;
  byId("influence-part").hidden = !measured;
  if (!measured) return;
  const tokens = request.sequence_length;
  const count = measured.influence.length;
  influence.draw({
    name: `Influence on the next word by place: ${shortName(request.model, request.weights)}`,
    file: `influence-${found.id.slice(0, 8)}`,
    x: middles(count, tokens),
    xRange: extent(found),
    series: [{
      label: `mean of ${counted(measured.documents, "document")}`, values: density(measured.smoothed), place: -1,
      band: measured.low && { low: density(measured.low), high: density(measured.high), label: "95% band" },
    }],
    zone: view.zone && view.verdict === "zone" ? { from: view.zone.start, to: view.zone.end, label: "dead zone: it listens least here", short: "dead zone" } : null,
    zero: { value: 1, label: "an even share" },
    threshold: { value: view.threshold, label: `threshold: ${number(view.threshold, 2)} of an even share` },
    xLabel: "place in the prompt (tokens)",
    log: true,
    format: share,
    xText: (index) => `token ${Math.floor(((index + 0.5) * tokens) / count)}`,
  });
}

function drawRecall(found) {
  const curves = Object.entries(found.recall ?? {});
  byId("recall-part").hidden = curves.length === 0;
  if (curves.length === 0) return;
  const main = mainRecall(found);
  recall.draw({
    name: `Recall of facts by place: ${shortName(found.request.model)}`,
    file: `recall-${found.id.slice(0, 8)}`,
    x: main.curve.position,
    xRange: extent(found),
    series: curves.map(([name, curve], at) => ({
      label: words(name), values: curve.probability, place: at - 1, points: true,
      band: curve.simultaneous_low && { low: curve.simultaneous_low, high: curve.simultaneous_high, label: "95% band, depths compared" },
    })),
    xLabel: "place in the prompt (tokens)",
    fromZero: true,
    format: (value) => percent(value, 2),
    xText: (index) => `a fact from token ${Math.round(main.curve.position[index])}`,
  });
  byId("recall-words").textContent = curves.map(([name, curve]) => recallText(name, curve)).join(" ");
}

function drawSteps(found) {
  const id = found.id;
  const step = (href, title, text) => h("li", {}, h("a", { href }, title), h("span", { class: "note" }, text));
  const model = found.request.model;
  const steps = shown
    ? [
      step(router.address("place", null, { profile: id }), "Place chunks", "try it along this example: lay the passages of a prompt along its curve"),
      step(router.address("measure", null, { model }), "Measure this model here", "or any other: a name is enough"),
      step("#/theory", "See what theory says", "a curve from the architecture alone, at once"),
    ]
    : [
      step(router.address("place", null, { profile: id }), "Place chunks", "lay the passages of a prompt along this curve, and see whether another order is surely better"),
      step(router.address("compare", null, { a: id }), "Compare", "with another model, version or length; the same documents are compared in pairs"),
      step(router.address("experiments", null, { model, profile: id }), "Experiment", "which order answers your own questions best, question by question"),
      step(router.address("measure", null, { model, recall: found.recall ? null : 1 }), found.recall ? "Measure again" : "Measure recall", found.recall ? "another length, or your own documents" : "how often facts are recalled by depth decides most, and this profile has none"),
    ];
  byId("next-steps").replaceChildren(...steps);
}

/** Another threshold moves the zone, the answer and the address. */
async function newThreshold(threshold) {
  const { id } = profile;
  const found = await zoneAt(id, threshold);
  return () => {
    if (profile?.id !== id) return;
    view = found;
    router.note(router.address("profile", id, { threshold }));
    drawAnswer(profile);
    drawInfluence(profile);
    return view;
  };
}
