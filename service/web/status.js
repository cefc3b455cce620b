// The service at a glance: store, workers, queue.

import { anyStatus, get, text } from "./api.js";
import { byId, duration, h } from "./dom.js";

const EVERY_MS = 5000;

export function start() {
  refresh();
  setInterval(() => document.visibilityState === "visible" && refresh(), EVERY_MS);
}

export async function refresh() {
  await Promise.allSettled([readiness(), workers(), queue()]);
}

function put(id, value, good = null) {
  const tile = byId(id);
  tile.textContent = value;
  tile.className = good === null ? "" : good ? "good" : "bad";
}

async function readiness() {
  try {
    const { redis, workers: live } = await anyStatus("readyz");
    put("tile-store", redis.ok ? "answers" : "away", redis.ok);
    put("tile-workers", live.detail, live.ok);
  } catch {
    put("tile-store", "unknown", false);
    put("tile-workers", "unknown", false);
  }
}

async function workers() {
  const catalogue = await get("v1/models");
  const names = [
    ...catalogue.demo,
    ...catalogue.workers.flatMap((worker) => worker.local.map((name) => `local:${name.replace(/^local:/, "")}`)),
    ...catalogue.presets,
  ];
  const options = byId("models");
  if (options.childElementCount !== new Set(names).size) {
    options.replaceChildren(...[...new Set(names)].map((value) => h("option", { value })));
  }
  const model = byId("model");
  if (!model.value && catalogue.demo.length && !model.dataset.touched) model.value = catalogue.demo[0];
  byId("worker-list").replaceChildren(
    ...catalogue.workers.map((worker) =>
      h("li", {}, `${worker.worker} on ${worker.device}: ${worker.warm.join(", ") || "nothing loaded"}`),
    ),
  );
}

async function queue() {
  const samples = parse(await text("metrics"));
  const sum = (name) => samples.filter((s) => s.name === name).reduce((total, s) => total + s.value, 0);
  const top = (name) => Math.max(0, ...samples.filter((s) => s.name === name).map((s) => s.value));
  put("tile-waiting", sum("lacuna_queue_depth"));
  put("tile-running", sum("lacuna_queue_running"));
  put("tile-oldest", duration(top("lacuna_queue_oldest_seconds")));
  put("tile-profiles", sum("lacuna_profiles"));
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
