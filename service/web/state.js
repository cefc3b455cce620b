// What several sections of the page share: the known profiles and the one on show.

import { counted } from "./dom.js";

/**
 * "known": the list grew. "show": open the profile on show once more. "back": the service answers
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

/** The profile that the address names, if it names one. */
export const addressed = () => /^#profile=([0-9a-f]{32})$/.exec(location.hash)?.[1] ?? null;

let current = null;

/** The profile on show: the last that was opened. */
export function shown() {
  current = addressed() ?? current;
  return current;
}

/** Puts a profile on show, as its reader asks; its address can be kept and shared. */
export function show(id) {
  const hash = `#profile=${id}`;
  if (location.hash === hash) events.dispatchEvent(new Event("show"));
  else location.hash = hash;
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
  return best?.id ?? null;
}

/** A select of the known profiles: `preferred()` until somebody chooses by hand. */
export function profileSelect(select, preferred) {
  let byHand = false;
  select.addEventListener("change", () => {
    byHand = true;
  });
  return () => {
    const chosen = (byHand && select.value) || preferred() || select.value;
    const options = [...known.values()].map((item) => new Option(label(item), item.id, false, item.id === chosen));
    select.replaceChildren(...(options.length ? options : [new Option("no known profile", "")]));
  };
}
