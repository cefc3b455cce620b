// The HTTP interface as this page uses it. The key is kept in this tab only.

import { save } from "./dom.js";
import { events } from "./state.js";

const KEY = "lacuna-api-key";
const PATIENCE_MS = 60_000;

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** A refusal: the service's problem document, or the failure to reach it. */
export class Refusal extends Error {
  constructor(status, problem, retryAfter = 0) {
    super(problem.detail ?? `the service answered ${status}`);
    this.status = status;
    this.code = problem.code ?? "";
    this.errors = problem.errors ?? [];
    this.retryAfter = retryAfter;
  }
}

// Addresses are relative to the page, so that it works below a path prefix.
const local = (path) => path.replace(/^\//, "");

/** Sends a request and reads its answer; fails with nothing but a Refusal. */
async function ask(path, read, { within = PATIENCE_MS, any = false, ...options } = {}) {
  const headers = new Headers(options.headers);
  if (key.get()) headers.set("Authorization", `Bearer ${key.get()}`);
  const signal = AbortSignal.timeout(within);
  try {
    const answer = await fetch(local(path), { ...options, headers, signal });
    if (!answer.ok && !any) throw await refusal(answer);
    return await read(answer);
  } catch (error) {
    if (error instanceof Refusal) {
      if (error.status === 503) events.dispatchEvent(new Event("trouble"));
      throw error;
    }
    events.dispatchEvent(new Event("trouble"));
    const other = error instanceof SyntaxError;
    throw new Refusal(0, { detail: other ? "something other than Lacuna answered" : "the service does not answer" });
  }
}

async function refusal(answer) {
  if (answer.status === 401) events.dispatchEvent(new Event("unauthorized"));
  // A proxy in between answers in its own format; then only the status is known.
  const problem = await answer.json().catch(() => ({}));
  return new Refusal(answer.status, problem, Number(answer.headers.get("Retry-After")) || 0);
}

const json = (answer) => answer.json();

export const get = (path, options) => ask(path, json, options);
export const text = (path, options) => ask(path, (answer) => answer.text(), options);

export function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, json, { method: "POST", headers, body: JSON.stringify(body) });
}

export const withdraw = (path) => ask(path, json, { method: "DELETE" });

/** Saves what a link points at; where a key is asked for, following the link would be refused. */
export async function download(link) {
  const href = link.getAttribute("href");
  save(await ask(href, (answer) => answer.blob()), href.split("?")[0].split("/").pop());
}
