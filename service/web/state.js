// What several sections of the page share: the known profiles and the one on show.

export const events = new EventTarget();

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

/** All that tells profiles of one model apart. */
export function label(summary) {
  const { model, sequence_length: tokens, weights, documents, id } = summary;
  const parts = [model, `${tokens} tokens`, `${weights} weights`, `${documents} documents`, made(summary)];
  return `${parts.join(", ")} (${id.slice(0, 6)})`;
}

/** Puts a profile on show; its address can be kept and shared. */
export function show(id) {
  const hash = `#profile=${id}`;
  if (location.hash === hash) events.dispatchEvent(new CustomEvent("show", { detail: id }));
  else location.hash = hash;
}

export function shown() {
  return /^#profile=([0-9a-f]{32})$/.exec(location.hash)?.[1] ?? null;
}

/** Fills a select with the known profiles and keeps what was chosen. */
export function profileOptions(select, preferred = null) {
  const chosen = preferred ?? select.value;
  select.replaceChildren(
    ...[...known.values()].map((item) => new Option(label(item), item.id, false, item.id === chosen)),
  );
}
