// Wires the sections of the page together.

import { key, openLink } from "./api.js";
import { announce, byId } from "./dom.js";
import * as compare from "./compare.js";
import * as measure from "./measure.js";
import * as place from "./place.js";
import * as profile from "./profile.js";
import * as status from "./status.js";

function refused(error) {
  byId("key-note").textContent = error.status === 401 ? "This service asks for a key." : error.message;
  if (error.status === 401) byId("key").focus();
}

byId("key").value = key.get();
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(byId("key").value.trim());
  byId("key-note").textContent = key.get() ? "Kept in this tab only." : "No key is sent.";
  announce(byId("key-note").textContent);
  status.refresh();
  measure.list().catch(refused);
});
document.addEventListener("click", (event) => openLink(event).catch((error) => announce(error.message)));

compare.start();
place.start();
status.start();
// The list first: it says how long a profile is.
measure.start().catch(refused).finally(profile.start);
