// Addresses of the page: `#/view/id?parameters`. Every state has one that survives a reload and can
// be sent. A hash that does not begin with `#/` only jumps within the page.

import { byId } from "./dom.js";

const HOME = "profile";
const views = new Map();
let current = null;

/** `show({id, query})` fills the section `#view-name`; `title(…)` names the window. */
export function register(name, view) {
  views.set(name, view);
}

/** What an address asks for. */
export function parse(hash = location.hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [name, id = null] = path.split("/");
  return { name: name || HOME, id: id || null, query: new URLSearchParams(query ?? "") };
}

/** An address; parameters without a value are left out. */
export function address(name, id = null, parameters = {}) {
  const kept = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(kept).toString();
  return `#/${name}${id ? `/${id}` : ""}${query ? `?${query}` : ""}`;
}

export function go(hash) {
  if (location.hash === hash) route(true);
  else location.hash = hash;
}

/** Goes on to another address in place of this one: the way back leads past it. */
export function forward(hash) {
  history.replaceState(null, "", hash);
  route(true);
}

/** Notes a change of what is already on show; nothing is drawn again. */
export function note(hash) {
  if (location.hash !== hash) history.replaceState(null, "", hash);
}

export const showing = (name) => current === name;

function route(asked) {
  if (location.hash && !location.hash.startsWith("#/")) return;
  const place = parse();
  const name = views.has(place.name) ? place.name : "absent";
  const changed = current !== name;
  current = name;
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== `view-${name}`;
  for (const link of document.querySelectorAll("nav a[data-view]")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const heading = byId(`view-${name}`).querySelector("h2");
  entitle(views.get(name)?.title ?? "Nothing here");
  if (asked) {
    if (changed) scrollTo(0, 0);
    heading.focus({ preventScroll: true });
  }
  views.get(name)?.show(place);
}

export function entitle(words) {
  document.title = `${words} · Lacuna`;
}

export function start() {
  addEventListener("hashchange", () => route(true));
  route(false);
}
