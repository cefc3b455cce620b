// Wires the views of the page together.

import { download, key } from "./api.js";
import { attempt, on } from "./attempt.js";
import * as compare from "./compare.js";
import { byId } from "./dom.js";
import * as experiments from "./experiments.js";
import * as jobs from "./jobs.js";
import * as knownProfiles from "./known.js";
import * as measure from "./measure.js";
import * as place from "./place.js";
import * as profile from "./profile.js";
import * as router from "./router.js";
import { events } from "./state.js";
import * as status from "./status.js";
import * as theory from "./theory.js";

function note(words) {
  if (byId("key-note").textContent !== words) byId("key-note").textContent = words;
}

function saveKey() {
  key.set(byId("key").value.trim());
  note(key.get() ? "Kept in this tab only." : "No key is sent.");
  events.dispatchEvent(new Event("key"));
}

// Someone who is busy elsewhere on the page stays there.
events.addEventListener("unauthorized", () => {
  byId("key-form").hidden = false;
  note(key.get() ? "This key is not accepted." : "This service asks for a key.");
  if (document.activeElement === document.body) byId("key").focus();
});

byId("key").value = key.get();
byId("key-form").hidden = !key.get();
on(byId("key-form"), "submit", "link-error", saveKey);
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-json]");
  if (!link || !key.get()) return;
  event.preventDefault();
  attempt("link-error", () => download(link));
});

for (const view of [profile, knownProfiles, measure, jobs, place, compare, experiments, theory, status]) view.start();
router.start();
