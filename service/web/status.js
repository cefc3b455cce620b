// The service at a glance: store, workers, queue. An unknown number is a dash, never a zero.

import { get, text } from "./api.js";
import { byId, duration, h } from "./dom.js";
import * as router from "./router.js";
import { events } from "./state.js";

const EVERY_MS = 5000;
const PATIENCE_MS = 10_000;
const UNKNOWN = "–";
let round = 0;
let away = false;

export function start() {
  router.register("status", { title: "Service", show: () => refresh() });
  const look = () => document.visibilityState === "visible" && router.showing("status") && refresh();
  document.addEventListener("visibilitychange", look);
  events.addEventListener("key", look);
  events.addEventListener("trouble", () => {
    away = true;
  });
  watch();
}

async function watch() {
  for (;;) {
    if (document.visibilityState === "visible" && (router.showing("status") || away)) await refresh();
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}

async function refresh() {
  const mine = ++round;
  const within = PATIENCE_MS;
  // /readyz answers 503 with the same members.
  const asked = [get("readyz", { within, any: true }), get("v1/models", { within }), text("metrics", { within })];
  const [ready, catalogue, metrics] = await Promise.allSettled(asked);
  if (mine !== round) return;
  drawReadiness(ready.value);
  drawWorkers(catalogue.value);
  drawQueue(metrics.value);
  say(trouble(ready, metrics));
  const unreachable = !ready.value?.redis?.ok;
  if (away && !unreachable) events.dispatchEvent(new Event("back"));
  away = unreachable;
}

function trouble(ready, metrics) {
  if (ready.reason) return `No figures: ${ready.reason.message}.`;
  const { redis } = ready.value;
  if (!redis?.ok) {
    return `The store is away (${redis?.detail ?? "no answer"}). Nothing can be measured or looked up until it is back; accepted jobs are kept.`;
  }
  // The note next to the key says what a missing key means.
  return metrics.reason && metrics.reason.status !== 401 ? `No figures: ${metrics.reason.message}.` : "";
}

// Set only when it changes: an alert is read aloud each time.
function say(message) {
  const box = byId("status-error");
  if (box.textContent !== message) box.textContent = message;
  box.hidden = message === "";
}

function put(id, value, good = null) {
  const tile = byId(id);
  tile.textContent = value;
  tile.className = good === null ? "" : good ? "good" : "bad";
}

function drawReadiness(found) {
  const { redis, workers } = found ?? {};
  put("tile-store", redis ? (redis.ok ? "answers" : "away") : "unknown", Boolean(redis?.ok));
  if (redis?.ok) put("tile-workers", workers.detail, workers.ok);
  else put("tile-workers", UNKNOWN);
}

function drawWorkers(catalogue) {
  const workers = catalogue?.workers ?? [];
  const line = (worker) => `${worker.worker} on ${worker.device}: ${worker.warm.join(", ") || "nothing loaded"}`;
  const lines = catalogue ? workers.map(line) : ["not known now"];
  byId("worker-list").replaceChildren(...(lines.length ? lines : ["none"]).map((words) => h("li", {}, words)));
}

function drawQueue(exposition) {
  const samples = parse(exposition ?? "");
  const values = (name) => samples.filter((sample) => sample.name === name).map((sample) => sample.value);
  const up = values("lacuna_store_up")[0] === 1;
  const known = (name, join) => (up && values(name).length ? join(values(name)) : null);
  const sum = (numbers) => numbers.reduce((total, value) => total + value, 0);
  put("tile-waiting", known("lacuna_queue_depth", sum) ?? UNKNOWN);
  put("tile-running", known("lacuna_queue_running", sum) ?? UNKNOWN);
  put("tile-oldest", duration(known("lacuna_queue_oldest_seconds", (seconds) => Math.max(...seconds))));
  put("tile-profiles", known("lacuna_profiles", sum) ?? UNKNOWN);
}

/** Samples of the Prometheus text format: name and value; labels are not needed here. */
export function parse(exposition) {
  const samples = [];
  for (const line of exposition.split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)/.exec(line);
    if (found) samples.push({ name: found[1], value: Number(found[2]) });
  }
  return samples;
}
