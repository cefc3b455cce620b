// One way to do everything that the page is asked for: an error is shown and announced, the former
// answer does not stay next to an error, and an answer that comes too late is dropped.

import { byId, showError } from "./dom.js";

const latest = new WeakMap();

/**
 * Runs `work`, then calls the function that it returns, to draw. A failure is shown in the alert `box`.
 *
 * form: where the fields are that a failure may name.
 * result: the element that the answer fills: busy until then; only the latest request fills it.
 * clear: removes the former answer after a failure.
 */
export async function attempt(box, work, { form = null, result = null, clear = null } = {}) {
  const mine = {};
  const outdated = () => result !== null && latest.get(result) !== mine;
  if (result) {
    latest.set(result, mine);
    result.setAttribute("aria-busy", "true");
  }
  showError(byId(box), null, form);
  try {
    const draw = await work();
    if (!outdated()) draw?.();
  } catch (error) {
    if (outdated()) return;
    clear?.();
    showError(byId(box), error, form);
  } finally {
    if (result && !outdated()) result.removeAttribute("aria-busy");
  }
}

/** Attempts `work` at every such event. */
export function on(target, type, box, work, options = {}) {
  target.addEventListener(type, (event) => {
    if (type === "submit") event.preventDefault();
    attempt(box, () => work(event), options);
  });
}
