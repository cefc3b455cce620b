// A curve of masses as it is drawn: densities over positions.

import { number } from "./dom.js";

/** Positions of n bins over the prompt's tokens: the middle of each. */
export const middles = (count, tokens) =>
  Array.from({ length: count }, (_, index) => ((index + 0.5) * tokens) / count);

export const density = (influence) => influence.map((mass) => mass * influence.length);

/** "0.5×": how a density is written on an axis. */
export const share = (value) => `${number(value)}×`;
