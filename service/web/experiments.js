// Orders of chunks compared on questions of one's own: asking, and what was found.
/* global d3 */

import { get, post, Refusal } from "./api.js";
import { attempt, on } from "./attempt.js";
import { Chart } from "./charts.js";
import { DotChart } from "./dots.js";
import { announce, byId, capital, counted, duration, h, number, percent, signed, table } from "./dom.js";
import * as jobs from "./jobs.js";
import { list } from "./known.js";
import * as router from "./router.js";
import { fillProfiles } from "./state.js";
import { ORDERS, orderName } from "./words.js";

const SOON_MS = 500;
const DOUBT = /^no order scores more/i;
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
  byId("experiment-title").className = id ? "answer" : "";
  byId("experiment-kicker").textContent = "";
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
      said = `At most ${parts.filter(Boolean).join(", ")}${time}${money}, for ${[counted(found.questions, "question"), ...found.warnings].join(". ")}.`;
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
  if ("state" in answer) jobs.watch(answer, what, `orders: ${["given", ...body.orders.filter((name) => name !== "given")].map(orderName).join(", ")}`);
  else router.go(router.address("experiments", answer.id));
}

/** A difference of scores in points: two digits, and none that are smaller than a hundredth. */
const points = (value) => (Math.abs(value) < 5e-5 ? "0 pt" : `${signed(Number((100 * value).toPrecision(2)))} pt`);
const gain = ({ value, low, high }) => `${points(value)} (${points(low)} to ${points(high)})`;
const size = (share) => counted(Number((100 * Math.abs(share)).toPrecision(2)), "point");

/** What to do, in the reader's words; the service's own words are for the terminal. */
export function verdictText({ verdict, orders, reference, smallest_effect: matters }) {
  const own = orderName(reference);
  const others = orders.filter(({ name }) => name !== reference);
  const best = orders.find(({ name }) => name === verdict.order);
  const interval = (one) => `(95% interval, all orders together: ${points(one.joint_low)} to ${points(one.joint_high)})`;
  if (verdict.decision === "use" && (!best || best.name === reference)) return `Keep ${own}: no other order scores ${size(matters)} more.`;
  if (verdict.decision === "use") return `Use "${orderName(best.name)}": it scores ${size(best.difference.value)} more than ${own} ${interval(best)}.${best.joint_low < matters ? ` It is surely better, but ${best.joint_high < matters ? "" : "perhaps "}by less than the ${size(matters)} that matter to you.` : ""}`;
  if (verdict.decision === "no_difference") {
    const most = Math.max(...others.map((one) => Math.max(-one.joint_low, one.joint_high)));
    return `The order makes no difference: every order scores within ${size(most)} of ${own} (95%), and it takes ${size(matters)} to matter to you.`;
  }
  if (verdict.decision === "not_enough" && verdict.more_questions === null) return plainNote(verdict.words);
  const more = verdict.more_questions ? `: about ${counted(verdict.more_questions, "more question")} would tell` : "";
  const first = d3.greatest(others, (one) => one.difference.value);
  return `Not enough questions${more}.${first ? ` So far "${orderName(first.name)}" scores ${points(first.difference.value)} ${interval(first)}.` : ""}`;
}

function draw(found) {
  byId("experiment-found").hidden = false;
  const { verdict, orders, reference } = found;
  const said = verdictText(found);
  byId("experiment-title").textContent = said;
  byId("experiment-kicker").textContent = `${found.model}, ${counted(found.questions, "question")}`;
  router.entitle("Experiment");
  announce(said);
  const least = found.minimum_detectable_effect === null
    ? "Fewer than 12 questions show nothing."
    : `With these ${counted(found.questions, "question")} a difference of ${size(found.minimum_detectable_effect)} is found in 4 of 5 cases.`;
  // A model that hardly ever answers shows no difference, whatever the order.
  const doubts = found.warnings.filter((text) => DOUBT.test(text)).map((text) => `${capital(plainNote(text))}.`);
  byId("experiment-certainty").textContent = [least, ...doubts].join(" ");
  byId("experiment-certainty").className = verdict.decision === "not_enough" || doubts.length ? "open" : "sure";
  drawOrders(orders, reference);
  drawPlaces(found.recall_by_place);
  drawNotes(found);
}

function drawOrders(orders, reference) {
  const others = orders.filter(({ name }) => name !== reference);
  const own = orderName(reference);
  dots.draw({
    name: `Score of each order, less that of ${own}`,
    file: "experiment",
    rows: others.map((one) => ({
      label: orderName(one.name), text: one.changed ? gain(one.difference) : "the same prompts", ...one.difference, outer: [one.joint_low, one.joint_high],
    })),
    xLabel: `points more than ${own}`,
    format: points,
    table: {
      columns: ["order", "mean score", "difference", "low", "high", "low, all orders", "high, all orders", "flips", "p"],
      rows: orders.map((one) => [orderName(one.name), one.mean, one.difference.value, one.difference.low, one.difference.high, one.joint_low, one.joint_high, one.flips, one.p]),
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

/** A sentence of the service with the names of this page. */
const plainNote = (text) => text
  .replace("`smallest_effect`", '"smallest difference that matters"').replace("`log_difference`", "the differences of log-probability (JSON)").replaceAll("`", "")
  .replace(/\b(given|(?:relevance|zigzag|document|random)_\w+)\b/g, (name) => (ORDERS[name] ? `"${ORDERS[name]}"` : name));

function drawNotes(found) {
  const { controls, usage } = found;
  const notes = [
    controls.closed_book === null ? "" : `Without any chunk the score is ${percent(controls.closed_book, 2)}.`,
    controls.a_a ? `${capital(orderName(found.reference))} against itself: ${gain(controls.a_a.difference)}${controls.a_a.found ? "; it found a difference where there is none, so trust no verdict" : ", as it should be"}.` : "",
    `${counted(usage.prompts, "prompt")}, ${counted(usage.prompt_tokens, "token")}${usage.cost === null ? "" : `, ${number(usage.cost)} at the endpoint's prices`}.`,
    found.lost ? `${counted(found.lost, "question")} had no answer in some order and ${found.lost === 1 ? "is" : "are"} left out.` : "",
    found.calibration_note ?? "",
    ...found.warnings.filter((text) => !DOUBT.test(text)),
  ].filter(Boolean).map(plainNote);
  const rows = found.orders.map((one) => [
    orderName(one.name), percent(one.mean, 2), one.name === found.reference ? "–" : gain(one.difference), percent(one.flips, 2), String(one.changed),
  ]);
  byId("experiment-notes").replaceChildren(
    h("div", { class: "scroll stacks", tabindex: "0", role: "region", "aria-label": "Orders as a table" },
      table("Orders; a flip is a question that is right in one of the two orders only", ["Order", "Score", `More than ${orderName(found.reference)}`, "Flips", "Prompts that differ"], rows)),
    ...notes.map((text) => h("p", { class: "note" }, capital(text))),
    h("p", { class: "links" }, h("a", { href: `v1/experiments/${found.id}`, "data-json": "" }, "JSON"), h("a", { href: `v1/experiments/${found.id}.csv`, "data-json": "" }, "every reading as CSV")),
  );
}
