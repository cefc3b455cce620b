// What several views share: the known profiles, and how they are told apart.

import { counted } from "./dom.js";

/**
 * "known": the list grew. "trouble": the service or its store does not answer. "back": it answers
 * again. "unauthorized": a request was refused for want of a key. "key": another key is used.
 */
export const events = new EventTarget();

export const PREDICTIONS = [
  "attention_only", "half_residual", "residual", "residual_content", "measured_kernel", "cesaro", "second_moment",
];

/** Curves that every profile may have. */
export const SOURCES = ["measured", "mean_of_norms", "last_token_attention", ...PREDICTIONS];

/** Summaries by id, newest first. */
export const known = new Map();

/** The profile that comes with the service, once it was read; no list has it. */
export const shipped = { id: null, label: "", tokens: 0 };

export function learn(summaries, { first = false } = {}) {
  const before = [...known.values()];
  if (first) known.clear();
  for (const item of [...summaries, ...(first ? before : [])]) {
    if (!known.has(item.id)) known.set(item.id, item);
  }
  events.dispatchEvent(new Event("known"));
}

/** When a profile was made, to the minute (UTC). */
export const made = (summary) => summary.created_at.slice(0, 16).replace("T", " ");

const PLAIN_OBJECTIVE = { pretrained: "argmax_probability", random: "jacobian" };

/** How a profile was measured: weights, documents, and what differs from the defaults. */
export function settings(summary) {
  const { weights, documents, documents_source: source, documents_name: name, objective, seed } = summary;
  if (objective === "recall") return `recall by depth${seed ? `, seed ${seed}` : ""}`;
  const text = { random_tokens: "random tokens", inline: "own text", corpus: `corpus ${name}` }[source];
  return [
    `${weights} weights`,
    `${documents === "auto" ? "as many documents as it takes" : counted(documents, "document")}${text ? ` of ${text}` : ""}`,
    !objective || objective === PLAIN_OBJECTIVE[weights] ? "" : objective.replaceAll("_", " "),
    summary.positional_encoding === "off" ? "positions off" : "",
    summary.content_scale === "raw" ? "raw content" : "",
    seed ? `seed ${seed}` : "",
    summary.recall ? "recall by depth" : "",
  ].filter(Boolean).join(", ");
}

/** All that tells profiles of one model apart. */
export function label(summary) {
  const { model, sequence_length: tokens, id } = summary;
  return `${model}, ${counted(tokens, "token")}, ${settings(summary)}, ${made(summary)} (${id.slice(0, 6)})`;
}

/**
 * The profile to use where none was chosen, as the service chooses among a model's: trained weights,
 * the model as it is used, how it reads rather than how it reaches a target, texts that are not
 * somebody's own, several documents; the newest of those.
 */
export function usual() {
  const drawbacks = (item) => [
    item.weights !== "pretrained",
    item.positional_encoding === "off" || item.documents_source === "random_tokens",
    item.objective === "target_logprob",
    item.documents_source === "inline",
    item.documents === 1,
  ].map(Number).join("");
  const [best] = [...known.values()].sort((one, other) => drawbacks(one) - drawbacks(other));
  return best?.id ?? shipped.id;
}

/** Fills a select with the known profiles, `chosen` among them even if the list does not have it. */
export function fillProfiles(select, chosen) {
  const options = [...known.values()].map((item) => new Option(label(item), item.id, false, item.id === chosen));
  if (chosen && !known.has(chosen)) {
    options.unshift(new Option(chosen === shipped.id ? shipped.label : `profile ${chosen.slice(0, 6)}`, chosen, false, true));
  }
  select.replaceChildren(...(options.length ? options : [new Option("no known profile", "")]));
}
