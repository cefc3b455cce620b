// Asking for a profile: a model, a length, and what it reads.

import { get, post, Refusal } from "./api.js";
import { attempt, on } from "./attempt.js";
import { announce, byId, counted } from "./dom.js";
import { estimate } from "./estimate.js";
import * as jobs from "./jobs.js";
import { list } from "./known.js";
import * as router from "./router.js";
import { PREDICTIONS, settings } from "./state.js";

const COSTLY = "second_moment";
const SOON_MS = 300;
const BREAK = "\n---\n";
let timer = 0;
let asked = 0;

export function start() {
  router.register("measure", { title: "Measure", show: open });
  const form = byId("measure-form");
  on(form, "submit", "measure-error", () => submit(form), { form });
  byId("model").addEventListener("input", modelChanged);
  form.addEventListener("input", () => {
    byId("own").hidden = served() || byId("source").value !== "inline";
    soon();
  });
  byId("files").addEventListener("change", () => take(byId("files").files));
  const own = byId("own");
  own.addEventListener("dragover", (event) => {
    event.preventDefault();
    own.classList.add("over");
  });
  own.addEventListener("dragleave", () => own.classList.remove("over"));
  own.addEventListener("drop", (event) => {
    event.preventDefault();
    own.classList.remove("over");
    take(event.dataTransfer.files);
  });
}

/** The address may name what to measure: `#/measure?model=…&tokens=…&recall=1`. */
function open({ query }) {
  if (query.has("model")) {
    byId("model").value = query.get("model");
    modelChanged();
  }
  if (query.has("tokens")) byId("sequence_length").value = query.get("tokens");
  if (query.has("recall")) byId("recall").checked = true;
  names();
  soon();
}

/** Names to choose from: what the service can load without being told more. */
async function names() {
  const catalogue = await get("v1/models").catch(() => null);
  if (!catalogue) return;
  const served = (catalogue.endpoints ?? []).map(({ name }) => name);
  const local = catalogue.workers.flatMap((worker) => worker.local.map((name) => `local:${name.replace(/^local:/, "")}`));
  const all = [...new Set([...catalogue.demo, ...local, ...served, ...catalogue.presets])];
  byId("models").replaceChildren(...all.map((value) => new Option("", value)));
  const model = byId("model");
  // Someone who is about to write is not disturbed.
  if (!model.value && catalogue.demo.length && !model.dataset.touched && document.activeElement !== model) {
    model.value = catalogue.demo[0];
    soon();
  }
}

const served = () => byId("model").value.trim().startsWith("endpoint:");

// A preset is an architecture without trained weights: nothing else can be asked of it. A served model
// gives no weights: recall alone can be asked of it.
function modelChanged() {
  byId("model").dataset.touched = "yes";
  if (byId("model").value.startsWith("preset:")) byId("weights").value = "random";
  for (const part of byId("measure-form").querySelectorAll("[data-weights]")) part.hidden = served();
  for (const part of byId("measure-form").querySelectorAll("[data-served]")) part.hidden = !served();
  byId("own").hidden = served() || byId("source").value !== "inline";
}

/** Puts files of one's own into the field: a document each, or one for each line of JSON lines. */
function take(files) {
  attempt("measure-error", async () => {
    const read = await Promise.all([...files].map(async (file) => documentsOf(file.name, await file.text())));
    return () => {
      const field = byId("texts");
      field.value = [field.value.trim(), ...read.flat()].filter(Boolean).join(BREAK);
      byId("files").value = "";
      field.dispatchEvent(new Event("input", { bubbles: true }));
      announce(`${counted(texts().length, "document")} in the field`);
    };
  }, { form: byId("measure-form") });
}

function documentsOf(name, text) {
  if (!/\.jsonl?$/i.test(name)) return [text.trim()];
  try {
    const values = /\.jsonl$/i.test(name) ? text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line)) : [JSON.parse(text)].flat();
    return values.map((value) => (typeof value === "string" ? value : value.text)).map((value) => {
      if (typeof value !== "string") throw new SyntaxError("a document is a string, or an object with `text`");
      return value.trim();
    });
  } catch (error) {
    throw new Refusal(0, { errors: [{ field: "texts", message: `${name}: ${error.message}` }] });
  }
}

const texts = () => byId("texts").value.split(/^[ \t]*-{3,}[ \t]*$/m).map((text) => text.trim()).filter(Boolean);

/** What is asked of a served model. */
function servedRequest() {
  const groups = byId("groups").value.trim();
  const body = {
    model: byId("model").value.trim(),
    sequence_length: Number(byId("sequence_length").value),
    recall: { groups: groups === "auto" || groups === "" ? "auto" : Number(groups) },
  };
  if (byId("max_cost").value) body.budget = { max_cost: Number(byId("max_cost").value) };
  return body;
}

function request(form) {
  if (served()) return servedRequest();
  const field = (name) => form.elements.namedItem(name).value.trim();
  const whole = (name) => (field(name) === "" ? undefined : Number(field(name)));
  const body = {
    model: field("model"),
    weights: field("weights"),
    sequence_length: whole("sequence_length"),
    documents: { count: field("count") === "auto" ? "auto" : whole("count"), source: field("source") },
    positional_encoding: field("positional_encoding"),
    seed: whole("seed"),
  };
  if (field("source") === "inline") body.documents.texts = texts();
  if (field("revision")) body.revision = field("revision");
  if (field("objective")) body.objective = field("objective");
  if (byId("recall").checked) body.recall = {};
  if (byId(COSTLY).checked) body.predictions = PREDICTIONS;
  return body;
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(say, SOON_MS);
}

/** Says what the form, as it stands, will take. */
async function say() {
  const mine = ++asked;
  const words = await estimate(request(byId("measure-form"))).catch((error) => `What it takes is not known: ${error.message}.`);
  if (mine === asked && byId("estimate").textContent !== words) byId("estimate").textContent = words;
}

/** What the service would fill in for itself is not what somebody left empty. */
function refuseEmpty(form) {
  const empty = [...form.elements].filter((control) => control.required && !control.closest("[hidden]") && control.value.trim() === "");
  const errors = empty.map(({ name, type, inputMode }) => ({ field: name, message: type === "number" || inputMode === "numeric" ? "expected a whole number" : "nothing given" }));
  if (!served() && byId("source").value === "inline" && texts().length === 0) errors.push({ field: "texts", message: "nothing given" });
  if (errors.length) throw new Refusal(0, { errors });
}

async function submit(form) {
  refuseEmpty(form);
  const body = request(form);
  try {
    const answer = await post("v1/profiles", body);
    if ("state" in answer) {
      const { count: documents, source: documents_source } = body.documents ?? {};
      const how = body.documents ? settings({ ...body, documents, documents_source }) : "recall by depth";
      jobs.watch(answer, `${body.model}, ${counted(body.sequence_length, "token")}`, how);
      return;
    }
    announce("This profile was known already.");
    await list();
    router.go(router.address("profile", answer.id));
  } catch (error) {
    // What makes it smaller is among the options.
    if (error.code === "too_large") byId("options").open = true;
    throw error;
  }
}
