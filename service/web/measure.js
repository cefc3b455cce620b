// Asking for a profile.

import { post, Refusal } from "./api.js";
import { on } from "./attempt.js";
import { announce, byId, counted } from "./dom.js";
import * as jobs from "./jobs.js";
import { list } from "./known.js";
import { PREDICTIONS, settings, show } from "./state.js";

const COSTLY = "second_moment";

export function start() {
  const form = byId("measure-form");
  on(form, "submit", "measure-error", () => submit(form), { form });
  byId("model").addEventListener("input", modelChanged);
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
    documents: { count: field("count") === "auto" ? "auto" : whole("count"), source: field("source") },
    positional_encoding: field("positional_encoding"),
    seed: whole("seed"),
  };
  if (field("revision")) body.revision = field("revision");
  if (field("objective")) body.objective = field("objective");
  if (byId("recall").checked) body.recall = {};
  if (byId(COSTLY).checked) body.predictions = PREDICTIONS;
  return body;
}

/** What the service would fill in for itself is not what somebody left empty. */
function refuseEmpty(form) {
  const empty = [...form.elements].filter((control) => control.required && control.value.trim() === "");
  const errors = empty.map(({ name, type, inputMode }) => ({ field: name, message: type === "number" || inputMode === "numeric" ? "expected a whole number" : "nothing given" }));
  if (errors.length) throw new Refusal(0, { errors });
}

async function submit(form) {
  refuseEmpty(form);
  const body = request(form);
  try {
    const answer = await post("v1/profiles", body);
    if (!answer.measured) {
      const { count: documents, source: documents_source } = body.documents;
      jobs.watch(answer, `${body.model}, ${counted(body.sequence_length, "token")}`, settings({ ...body, documents, documents_source }));
      return;
    }
    announce("This profile was known already.");
    await list();
    show(answer.id);
  } catch (error) {
    // What makes it smaller is among the options.
    if (error.code === "too_large") byId("options").open = true;
    throw error;
  }
}
