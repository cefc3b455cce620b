// What a measurement will take, before it is asked for: the tokens that it reads, and the time that
// the service took for the same model before.

import { get, post } from "./api.js";
import { counted, duration, number } from "./dom.js";
import { list } from "./known.js";
import { known } from "./state.js";

const AUTO = [32, 64];
const BINS = 8;
const paces = new Map();

/** In words, for a request as the form makes it. */
export async function estimate(request) {
  const { model, weights, sequence_length: tokens, documents, recall } = request;
  if (!model || !tokens) return "Choose a model and a length to see what it takes.";
  if (!documents) return servedText(await post("v1/profiles", { ...request, dry_run: true }));
  const own = documents.texts?.length;
  const counts = documents.count === "auto" ? AUTO.map((each) => (own ? Math.min(each, own) : each)) : [documents.count, documents.count];
  const reads = readsText(counts, tokens);
  const pace = await paceOf(model, weights, Boolean(recall));
  if (pace === null) return `${reads}${recall ? ", and recall besides" : ""}. This service has not measured the model yet, so the time is not known beforehand; the job says how long is left.`;
  const besides = recall ? recallSeconds(pace, tokens, recall) : 0;
  const [least, most] = counts.map((each) => pace.load + (each * tokens) / pace.tokensPerSecond + (besides ?? 0));
  const time = duration(least) === duration(most) ? `about ${duration(most)}` : `about ${duration(least)} to ${duration(most)}`;
  const more = recall && besides === null ? " without recall, which takes several times as long" : "";
  return `${reads}: ${time}${more}, at the pace of this model's measurements here, once its turn has come.`;
}

/** What the service says that a served model takes. */
function servedText({ least, most, refused }) {
  const range = (name, write) => (write(least[name]) === write(most[name]) ? write(most[name]) : `${write(least[name])} to ${write(most[name])}`);
  const parts = [
    `${range("calls", thousands)} calls`, `${range("prompt_tokens", thousands)} tokens of prompts`, `about ${range("minutes", (value) => duration(60 * value))}`,
  ];
  if (most.cost) parts.push(`${range("cost", (value) => number(value, 2))} at the endpoint's prices`);
  return `Takes ${parts.join(", ")}.${refused ? ` Refused: ${refused}.` : ""}`;
}

const thousands = (value) => Math.round(value).toLocaleString("en-GB");

function readsText([least, most], tokens) {
  if (least === most) return `Reads ${counted(most, "document")} of ${tokens} tokens, ${thousands(most * tokens)} in all`;
  return `Reads ${least} to ${most} documents of ${tokens} tokens, ${thousands(least * tokens)} to ${thousands(most * tokens)} in all`;
}

/** How fast a model was measured here before; null if it was not. */
async function paceOf(model, weights, withRecall) {
  if (!known.size) await list();
  const mine = [...known.values()].filter((item) => item.model === model && item.weights === weights);
  // Short measurements are slow by the token: the one that read the most says the pace.
  const read = (item) => (withRecall && item.recall ? Infinity : item.documents * item.sequence_length);
  const [longest] = mine.sort((one, other) => read(other) - read(one));
  if (!longest) return null;
  if (!paces.has(longest.id)) {
    const bins = Math.min(BINS, longest.sequence_length);
    const { timings, request, recall } = await get(`v1/profiles/${longest.id}?bins=${bins}`);
    paces.set(longest.id, {
      load: timings.load_seconds, tokensPerSecond: timings.tokens_per_second || Infinity, recallSeconds: timings.recall_seconds,
      tokens: request.sequence_length, groups: Object.values(recall ?? {}).reduce((sum, curve) => sum + curve.groups, 0),
    });
  }
  return paces.get(longest.id);
}

function recallSeconds(pace, tokens, { groups = "auto", probes = ["facts"] }) {
  if (!pace.groups) return null;
  const wanted = (groups === "auto" ? 36 : groups) * probes.length;
  return (pace.recallSeconds * wanted * tokens) / (pace.groups * pace.tokens);
}
