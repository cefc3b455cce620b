// The jobs that this tab asked for: a card each, remembered over a reload until they have ended. The
// page of a job goes on to its result; elsewhere a line at the bottom of the window says how it is.

import { get, withdraw } from "./api.js";
import { on } from "./attempt.js";
import { announce, byId, duration, h, showError } from "./dom.js";
import { list } from "./known.js";
import * as router from "./router.js";
import { events } from "./state.js";

const KEY = "lacuna-jobs";
const MOST = 20;
const EVERY_MS = 1000;
const MOST_PATIENT_MS = 15_000;
const TERMINAL = new Set(["done", "failed", "cancelled"]);
const GONE = "no longer known";
/** Cards by job, newest last. */
const cards = new Map();
let timer = 0;
let pause = EVERY_MS;

export function start() {
  router.register("jobs", { title: "Measurements", show: open });
  for (const kept of recall()) cards.set(kept.id, new Card(kept));
  const soon = () => schedule(0);
  events.addEventListener("back", soon);
  events.addEventListener("key", soon);
  document.addEventListener("visibilitychange", soon);
  soon();
}

/** A job by its address, also one that another tab or another person asked for. */
function open({ id }) {
  if (id && /^[0-9a-f]{32}$/.test(id) && !cards.has(id)) {
    cards.set(id, new Card({ id, what: `Job ${id.slice(0, 8)}`, how: "asked for elsewhere" }));
    schedule(0);
  }
  for (const card of cards.values()) card.node.classList.toggle("addressed", card.id === id);
  if (id && cards.has(id)) byId("jobs").prepend(cards.get(id).node);
  cards.get(id)?.forward();
  bar();
}

/** Says at the bottom of the window how the newest job is, where its card is not on show. */
function bar() {
  const box = byId("jobs-bar");
  const card = [...cards.values()].filter((one) => !one.unnoticed).at(-1);
  const hidden = !card || router.showing("jobs");
  byId("jobs-note").textContent = cards.size ? "" : "None. A measurement that you start is shown here until it has ended.";
  box.hidden = hidden;
  if (hidden) return;
  const gone = h("button", { type: "button", class: "small" }, "Hide");
  gone.addEventListener("click", () => {
    card.unnoticed = true;
    bar();
  });
  const link = card.result
    ? h("a", { href: card.result }, "open the result")
    : h("a", { href: router.address("jobs", card.id) }, "watch");
  const key = `${card.title.textContent} ${card.message.textContent} ${card.result}`;
  // Written again only when it changes, so that the keyboard is not lost from its link.
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren(h("span", {}, card.title.textContent, card.over ? "" : ` · ${card.message.textContent}`), link, gone);
}

/** Shows a job from now on; `what` it measures, and `how`. */
export function watch(job, what, how) {
  cards.get(job.id)?.remove();
  const card = new Card({ id: job.id, what, how });
  cards.set(job.id, card);
  card.draw(job);
  if (!card.over) announce(card.title.textContent);
  schedule(EVERY_MS);
  router.go(router.address("jobs", job.id));
}

function recall() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEY));
    return kept.filter(({ id, what, how }) => /^[0-9a-f]{32}$/.test(id) && what && how).slice(-MOST);
  } catch {
    return [];
  }
}

function remember() {
  const kept = unfinished().slice(-MOST).map(({ id, what, how }) => ({ id, what, how }));
  sessionStorage.setItem(KEY, JSON.stringify(kept));
  const ended = [...cards.values()].filter((card) => card.over);
  for (const card of ended.slice(0, Math.max(0, cards.size - MOST))) card.remove();
  bar();
}

const unfinished = () => [...cards.values()].filter((card) => !card.over);

// One request at a time, whatever the number of jobs: a browser opens six connections to a host,
// and a service may limit the rate.
function schedule(after) {
  clearTimeout(timer);
  timer = setTimeout(look, after);
}

async function look() {
  const card = unfinished().sort((one, other) => one.asked - other.asked)[0];
  if (!card) return;
  card.asked = performance.now();
  try {
    const job = await get(`v1/jobs/${card.id}`);
    if (!card.over) card.draw(job);
    pause = EVERY_MS;
  } catch (error) {
    if (error.status === 404) card.end(GONE, "The service no longer has this job. Ask for the profile again.");
    else card.message.textContent = `No answer (${error.message}); asking again.`;
    pause = Math.min(MOST_PATIENT_MS, Math.max(2 * pause, 1000 * error.retryAfter));
  }
  schedule(pause);
}

class Card {
  constructor({ id, what, how }) {
    Object.assign(this, { id, what, how, state: null, asked: 0, over: false, result: null, unnoticed: false });
    this.title = h("strong", { id: `job-${id}` }, what);
    this.bar = h("progress", { max: 1, value: 0, "aria-labelledby": this.title.id });
    this.message = h("p", { class: "note" }, "…");
    this.open = h("a", { hidden: true }, "Open the result");
    this.cancel = h("button", { type: "button" }, "Cancel");
    this.dismiss = h("button", { type: "button", hidden: true }, "Dismiss");
    const json = h("a", { href: `v1/jobs/${id}`, "data-json": "" }, "job JSON");
    this.error = h("div", { class: "error", role: "alert", id: `job-error-${id}`, hidden: true });
    this.node = h("article", { class: "job stack", "aria-labelledby": this.title.id },
      h("div", { class: "row" }, this.title, h("span", { class: "links" }, this.open, json, this.cancel, this.dismiss)),
      h("p", { class: "note" }, how), this.bar, this.message, this.error);
    byId("jobs").prepend(this.node);
    on(this.cancel, "click", this.error.id, async () => this.draw(await withdraw(`v1/jobs/${id}`)));
    this.dismiss.addEventListener("click", () => {
      this.remove();
      byId("jobs-title").focus();
    });
  }

  remove() {
    cards.delete(this.id);
    this.node.remove();
  }

  draw(job) {
    const resumed = this.state === null && !TERMINAL.has(job.state);
    const changed = this.state !== job.state;
    this.state = job.state;
    this.title.textContent = `${this.what}: ${job.state}`;
    this.bar.value = job.progress;
    this.message.textContent = progress(job);
    if (TERMINAL.has(job.state)) this.finish(job);
    else if (changed && !resumed) announce(this.title.textContent);
    remember();
  }

  finish(job) {
    if (this.over) return;
    if (job.state === "done") {
      const [name, found] = job.experiment ? ["experiments", job.experiment] : ["profile", job.profile];
      this.result = router.address(name, found.split("/").pop());
      this.open.href = this.result;
      this.open.hidden = false;
    }
    this.end(job.state, "");
    if (job.state === "done") {
      list();
      this.forward();
    }
    if (job.state === "failed") showError(this.error, new Error(`${job.failure.detail} (${job.failure.code})`));
  }

  /** From the page of a finished job to its result. */
  forward() {
    if (this.result && router.showing("jobs") && router.parse().id === this.id) router.forward(this.result);
  }

  end(state, message) {
    this.over = true;
    this.title.textContent = `${this.what}: ${state}`;
    this.message.textContent = message;
    this.bar.hidden = true;
    this.message.hidden = message === "";
    this.dismiss.hidden = false;
    if (document.activeElement === this.cancel) (this.open.hidden ? this.dismiss : this.open).focus();
    this.cancel.hidden = true;
    announce(this.title.textContent);
    remember();
  }
}

function progress(job) {
  const parts = [];
  if (job.message) parts.push(job.message);
  if (job.position !== null) parts.push(job.position ? `${job.position} ahead` : "next in the queue");
  if (job.eta_seconds !== null) parts.push(`about ${duration(job.eta_seconds)} left`);
  if (job.attempt > 1) parts.push(`attempt ${job.attempt}`);
  return parts.join(" · ") || "…";
}
