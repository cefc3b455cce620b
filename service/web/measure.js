// Asking for a profile, following its job, and the list of what is known.

import { follow, get, post, Refusal, withdraw } from "./api.js";
import { announce, byId, duration, h, showError, words, zoneText } from "./dom.js";
import { events, known, learn, made, show, shown } from "./state.js";

let following = null;
let cursor = null;

export function start() {
  byId("measure-form").addEventListener("submit", submit);
  byId("job-cancel").addEventListener("click", () => following && withdraw(`v1/jobs/${following.id}`));
  byId("more").addEventListener("click", () => list(cursor));
  byId("model").addEventListener("input", modelChanged);
  events.addEventListener("known", drawKnown);
  addEventListener("hashchange", drawKnown);
  return list();
}

// A preset is an architecture without trained weights: nothing else can be asked of it.
function modelChanged() {
  byId("model").dataset.touched = "yes";
  if (byId("model").value.startsWith("preset:")) byId("weights").value = "random";
}

function request(form) {
  const field = (name) => form.elements.namedItem(name).value.trim();
  const whole = (name) => (field(name) === "" ? undefined : Number(field(name)));
  const body = {
    model: field("model"),
    weights: field("weights"),
    sequence_length: whole("sequence_length"),
    documents: { count: whole("count"), source: field("source") },
    positional_encoding: field("positional_encoding"),
    seed: whole("seed"),
  };
  if (field("revision")) body.revision = field("revision");
  if (field("objective")) body.objective = field("objective");
  if (form.elements.namedItem("needle").checked) body.needle = {};
  return body;
}

async function submit(event) {
  event.preventDefault();
  const form = event.target;
  showError(byId("measure-error"), null, form);
  const body = request(form);
  try {
    const answer = await (await post("v1/profiles", body)).json();
    if (answer.measured) await arrived(answer.id, "It was known already.");
    else await watch(answer, body.model);
  } catch (error) {
    if (error.name !== "AbortError") showError(byId("measure-error"), error, form);
  }
}

async function watch(job, model) {
  following?.abort.abort();
  const mine = { id: job.id, abort: new AbortController() };
  following = mine;
  byId("job-json").href = `v1/jobs/${job.id}`;
  byId("job").hidden = false;
  drawJob(job, model);
  const end = await follow(job.id, (seen) => drawJob(seen, model), mine.abort.signal);
  if (end.state === "failed") throw new Refusal(0, { ...end.failure, detail: `${end.failure.code}: ${end.failure.detail}` });
  if (end.state === "done") await arrived(end.profile.split("/").pop(), "The profile is ready.");
}

function drawJob(job, model) {
  const over = job.finished_at !== null;
  byId("job-title").textContent = `${model}: ${job.state}`;
  byId("job-progress").value = job.progress;
  byId("job-cancel").disabled = over;
  const parts = [];
  if (job.message) parts.push(job.message);
  if (job.position !== null) parts.push(`${job.position} ahead`);
  if (job.eta_seconds !== null && !over) parts.push(`about ${duration(job.eta_seconds)} left`);
  if (job.attempt > 1) parts.push(`attempt ${job.attempt}`);
  byId("job-message").textContent = parts.join(" · ") || " ";
  if (byId("job").dataset.state !== `${job.id} ${job.state}`) announce(`${model}: job ${job.state}`);
  byId("job").dataset.state = `${job.id} ${job.state}`;
}

async function arrived(id, message) {
  announce(message);
  await list();
  show(id);
}

/** Reads a page of the list: the newest, or what follows `from`. */
export async function list(from = null) {
  const page = await get(`v1/profiles?limit=50${from ? `&cursor=${from}` : ""}`);
  if (from || cursor === null) cursor = page.next;
  learn(page.items, { first: from === null });
  byId("more").hidden = cursor === null;
}

function drawKnown() {
  const rows = [...known.values()].map((item) => {
    const open = h("button", { type: "button", class: "plain" }, item.model);
    open.addEventListener("click", () => show(item.id));
    return h(
      "tr",
      { "aria-current": item.id === shown() ? "true" : undefined },
      h("td", {}, open),
      h("td", { class: "number" }, String(item.sequence_length)),
      h("td", {}, item.weights),
      h("td", {}, words(item.shape)),
      h("td", {}, zoneText(item.dead_zone)),
      h("td", {}, made(item)),
    );
  });
  byId("known").replaceChildren(...rows);
  byId("known-empty").hidden = rows.length > 0;
}
