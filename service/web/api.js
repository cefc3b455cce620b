// The HTTP interface as this page uses it. The key is kept in this tab alone.

const KEY = "lacuna-api-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** A refusal: the service's problem document, or the failure to reach it. */
export class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `the service answered ${status}`);
    this.status = status;
    this.code = problem.code ?? "";
    this.errors = problem.errors ?? [];
  }
}

// Addresses are relative to the page, so that it works below a path prefix.
const local = (path) => path.replace(/^\//, "");

async function send(path, options = {}) {
  const headers = new Headers(options.headers);
  if (key.get()) headers.set("Authorization", `Bearer ${key.get()}`);
  try {
    return await fetch(local(path), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { detail: "the service does not answer" });
  }
}

async function checked(answer) {
  if (answer.ok) return answer;
  let problem = {};
  try {
    problem = await answer.json();
  } catch {
    // A proxy in between answers in its own words; the status is all that is known then.
  }
  throw new Refusal(answer.status, problem);
}

export async function get(path, options = {}) {
  return (await checked(await send(path, options))).json();
}

export async function text(path) {
  return (await checked(await send(path))).text();
}

/** What a path says whatever the status: /readyz answers 503 with the same members. */
export async function anyStatus(path) {
  return (await send(path)).json();
}

export async function post(path, body) {
  return checked(
    await send(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    }),
  );
}

export async function withdraw(path) {
  await checked(await send(path, { method: "DELETE" }));
}

const TERMINAL = new Set(["done", "failed", "cancelled"]);

/** Calls `onJob` with every state of a job, to its end; returns the last one. */
export async function follow(id, onJob, signal) {
  for (;;) {
    const last = await stream(`v1/jobs/${id}/events`, onJob, signal);
    if (last && TERMINAL.has(last.state)) return last;
    // The stream broke off: a restart of the gateway, or a proxy with a time limit.
    await new Promise((resolve) => setTimeout(resolve, 1000));
    const job = await get(`v1/jobs/${id}`, { signal });
    onJob(job);
    if (TERMINAL.has(job.state)) return job;
  }
}

// EventSource cannot send a key, hence the stream by hand. Returns the last event's job, if any.
async function stream(path, onJob, signal) {
  const answer = await checked(await send(path, { signal, headers: { Accept: "text/event-stream" } }));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  let last = null;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return last;
      const events = (waiting + value.replaceAll("\r\n", "\n")).split("\n\n");
      waiting = events.pop();
      for (const event of events) {
        const data = event
          .split("\n")
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).trimStart());
        if (data.length === 0) continue;
        last = JSON.parse(data.join("\n"));
        onJob(last);
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return last;
  }
}

/** Opens what a link points at; with a key, a plain link would be refused. */
export async function openLink(event) {
  const link = event.target.closest?.("a[data-json]");
  if (!link || !key.get()) return;
  event.preventDefault();
  const answer = await checked(await send(link.getAttribute("href")));
  const address = URL.createObjectURL(await answer.blob());
  const name = link.getAttribute("href").split("?")[0].split("/").pop();
  const download = Object.assign(document.createElement("a"), { href: address, download: name });
  download.click();
  URL.revokeObjectURL(address);
}
