// Wires the sections of the page together.

import { download, key } from "./api.js";
import { attempt, on } from "./attempt.js";
import { byId } from "./dom.js";
import * as compare from "./compare.js";
import * as jobs from "./jobs.js";
import * as knownProfiles from "./known.js";
import * as measure from "./measure.js";
import * as place from "./place.js";
import * as profile from "./profile.js";
import { events } from "./state.js";
import * as status from "./status.js";

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
  note(key.get() ? "This key is not accepted." : "This service asks for a key.");
  if (document.activeElement === document.body) byId("key").focus();
});

byId("key").value = key.get();
on(byId("key-form"), "submit", "status-error", saveKey);
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-json]");
  if (!link || !key.get()) return;
  event.preventDefault();
  attempt(link.closest("section").querySelector(".error").id, () => download(link));
});

measure.start();
compare.start();
place.start();
status.start();
jobs.start();
// The list first: it says how long a profile is.
knownProfiles.start().finally(profile.start);
