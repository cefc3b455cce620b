// Orders of chunks compared on questions of one's own: asking, and what was found.

import { get, post, Refusal } from "./api.js";
import { attempt, on } from "./attempt.js";
import { Chart } from "./charts.js";
import { DotChart } from "./dots.js";
import { announce, byId, capital, counted, duration, h, number, percent, signed, table, words } from "./dom.js";
import * as jobs from "./jobs.js";
import { list } from "./known.js";
import * as router from "./router.js";
import { fillProfiles } from "./state.js";
import { shortName } from "./words.js";

const SOON_MS = 500;
let dots;
let places;
let timer = 0;
let asked = 0;

export function start() {
  dots = new DotChart(byId("chart-experiment"));
  places = new Chart(byId("chart-places"), { height: 220 });
  router.register("experiments", { title: "Experiments", show: open });
  const form = byId("experiment-form");
  on(form, "submit", "experiment-error", () => submit(), { form });
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(estimate, SOON_MS);
  });
  byId("question-files").addEventListener("change", () => take(byId("question-files").files));
  form.addEventListener("dragover", (event) => event.preventDefault());
  form.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files);
  });
}

/** `#/experiments/ID` is a result; `#/experiments?model=…&profile=…` the form. */
function open({ id, query }) {
  byId("experiment-ask").hidden = id !== null;
  byId("experiment-found").hidden = true;
  byId("experiment-title").textContent = id ? "…" : "Which order answers your own questions best?";
  if (id) return attempt("experiment-error", () => read(id), { result: byId("experiment-found"), clear: () => {
    byId("experiment-title").textContent = "This experiment cannot be shown";
  } });
  if (query.has("model")) byId("experiment-model").value = query.get("model");
  offer(query.get("profile"));
  return list().then(() => offer(byId("experiment-profile").value));
}

function offer(profile) {
  const select = byId("experiment-profile");
  fillProfiles(select, profile);
  if (!select.options[0].value) select.replaceChildren();
  select.prepend(new Option("none", "", false, !profile));
}

async function read(id) {
  const found = await get(`v1/experiments/${id}`);
  return () => {
    if ("state" in found) router.forward(router.address("jobs", id));
    else draw(found);
  };
}

async function take(files) {
  const texts = await Promise.all([...files].map((file) => file.text()));
  byId("questions").value = texts.join("\n").trim();
  byId("question-files").value = "";
  byId("questions").dispatchEvent(new Event("input", { bubbles: true }));
}

/** Questions as JSON: a list, or one on each line. */
function questions() {
  const text = byId("questions").value.trim();
  if (!text) throw new Refusal(0, { errors: [{ field: "questions", message: "none given" }] });
  try {
    const found = text.startsWith("[") ? JSON.parse(text) : text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));
    return found;
  } catch (error) {
    throw new Refusal(0, { errors: [{ field: "questions", message: `expected a list in JSON, or an object on each line: ${error.message}` }] });
  }
}

function request() {
  const profile = byId("experiment-profile").value;
  const orders = [...byId("experiment-orders").querySelectorAll("input:checked")].map((box) => box.value);
  const body = {
    model: byId("experiment-model").value.trim(),
    questions: questions(),
    orders: profile ? [...orders, "advised"] : orders,
    smallest_effect: Number(byId("smallest_effect").value) / 100,
  };
  if (profile) body.profile_id = profile;
  return body;
}

/** What it would take, as the service says. */
async function estimate() {
  const mine = ++asked;
  let said = "Give a model and questions to see what it takes.";
  try {
    if (byId("questions").value.trim() && byId("experiment-model").value.trim()) {
      const found = await post("v1/experiments", { ...request(), dry_run: true });
      const parts = [counted(found.prompts, "prompt"), counted(found.prompt_tokens, "token"), found.calls === null ? "" : counted(found.calls, "call")];
      const money = found.cost === null ? "" : `, about ${number(found.cost)} at the endpoint's prices`;
      const time = found.minutes === null ? "" : `, about ${duration(60 * found.minutes)}`;
      said = `At most ${parts.filter(Boolean).join(", ")}${time}${money}, for ${counted(found.questions, "question")}.`;
    }
  } catch (error) {
    said = `What it takes is not known yet: ${error.errors?.[0]?.message ?? error.message}`;
  }
  if (mine === asked) byId("experiment-estimate").textContent = said;
}

async function submit() {
  const body = request();
  const answer = await post("v1/experiments", body);
  const what = `Experiment with ${body.model}, ${counted(body.questions.length, "question")}`;
  if ("state" in answer) jobs.watch(answer, what, `orders: ${["given", ...body.orders.filter((name) => name !== "given")].map(words).join(", ")}`);
  else router.go(router.address("experiments", answer.id));
}

const points = (value) => `${signed(Number((100 * value).toPrecision(3)))} pt`;
const gain = ({ value, low, high }) => `${points(value)} (${points(low)} to ${points(high)})`;

function draw(found) {
  byId("experiment-found").hidden = false;
  const { verdict, orders, reference } = found;
  byId("experiment-title").textContent = `${shortName(found.model)}: ${verdict.words}`;
  router.entitle("Experiment");
  announce(verdict.words);
  const more = verdict.more_questions ? ` About ${counted(verdict.more_questions, "more question")} would decide.` : "";
  const least = found.minimum_detectable_effect === null
    ? "Fewer than 12 questions show nothing."
    : `These ${counted(found.questions, "question")} show a difference of ${number(100 * found.minimum_detectable_effect, 2)} points in 4 of 5 cases.`;
  byId("experiment-certainty").textContent = `${least}${more}`;
  byId("experiment-certainty").className = verdict.decision === "not_enough" ? "open" : "sure";
  drawOrders(orders, reference);
  drawPlaces(found.recall_by_place);
  drawNotes(found);
}

function drawOrders(orders, reference) {
  const others = orders.filter(({ name }) => name !== reference);
  const own = orders.find(({ name }) => name === reference);
  dots.draw({
    name: `Score of each order, less that of "${words(reference)}"`,
    file: "experiment",
    rows: others.map((one) => ({
      label: words(one.name), text: gain(one.difference), ...one.difference, outer: [one.joint_low, one.joint_high],
    })),
    xLabel: `points better than "${words(reference)}"${own ? ` (${percent(own.mean, 2)})` : ""}; thin: all orders together`,
    format: points,
    table: {
      columns: ["order", "mean score", "difference", "low", "high", "low, all orders", "high, all orders", "flips", "p"],
      rows: orders.map((one) => [words(one.name), one.mean, one.difference.value, one.difference.low, one.difference.high, one.joint_low, one.joint_high, one.flips, one.p]),
    },
  });
}

function drawPlaces(found) {
  byId("places-part").hidden = !found;
  if (!found) return;
  places.draw({
    name: "Score by where the chunk with the answer stands",
    file: "recall-by-place",
    x: found.depth.map((depth) => 100 * depth),
    xRange: [0, 100],
    series: [{ label: `${counted(found.questions, "question")}`, values: found.value, place: -1, points: true, band: { low: found.low, high: found.high, label: "95% band" } }],
    xLabel: "place among the chunks (%)",
    fromZero: true,
    format: (value) => percent(value, 2),
    xText: (at) => `at ${percent(found.depth[at], 2)} of the chunks`,
  });
}

function drawNotes(found) {
  const { controls, usage } = found;
  const notes = [
    controls.closed_book === null ? "" : `Without any chunk the score is ${percent(controls.closed_book, 2)}.`,
    controls.a_a ? `The reference against itself: ${gain(controls.a_a.difference)}${controls.a_a.found ? "; it found a difference where there is none, so trust no verdict" : ", as it should be"}.` : "",
    `${counted(usage.prompts, "prompt")}, ${counted(usage.prompt_tokens, "token")}${usage.cost === null ? "" : `, ${number(usage.cost)} at the endpoint's prices`}.`,
    found.lost ? `${counted(found.lost, "question")} had no answer in some order and ${found.lost === 1 ? "is" : "are"} left out.` : "",
    found.calibration_note ?? "",
    ...found.warnings,
  ].filter(Boolean);
  const rows = found.orders.map((one) => [
    words(one.name), percent(one.mean, 3), one.name === found.reference ? "–" : gain(one.difference), percent(one.flips, 2), String(one.changed),
  ]);
  byId("experiment-notes").replaceChildren(
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Orders as a table" },
      table("Orders; a flip is a question that is right in one of the two orders only", ["Order", "Score", "Better than the reference", "Flips", "Prompts that differ"], rows)),
    ...notes.map((text) => h("p", { class: "note" }, capital(text))),
    h("p", { class: "links" }, h("a", { href: `v1/experiments/${found.id}`, "data-json": "" }, "JSON"), h("a", { href: `v1/experiments/${found.id}.csv`, "data-json": "" }, "every reading as CSV")),
  );
}
