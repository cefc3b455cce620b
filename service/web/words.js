// A profile in plain words: what the model does, how sure that is, and where to put what matters.

import { capital, pValue, counted, number, percent, tokensText, words } from "./dom.js";

/** What readers call the orders that the service knows by name. */
export const ORDERS = {
  given: "your order", relevance_first: "most relevant first", relevance_last: "most relevant last",
  zigzag_best_first: "zigzag, best first", zigzag_best_last: "zigzag, best last", document_order: "document order",
  random: "random", random_again: "random, drawn again", advised: "as advised along the profile", optimal: "the best of the curve",
};
export const orderName = (name) => ORDERS[name] ?? words(name);

const NEAR = 0.02;
const LEAST = 12;

/** A model's name without where it comes from: "smollm2-135m-instruct". */
export function shortName(model, weights = "pretrained") {
  const name = model.replace(/^(demo|local|preset|endpoint):/, "").split("/").at(-1);
  return weights === "random" ? `Untrained ${name}` : name;
}

const TELLING = ["documents", "facts", "paraphrase", "pairs"];

/** The recall curve that counts: of the most telling probe. */
export function mainRecall(profile) {
  const curves = profile.recall ?? {};
  const name = TELLING.find((each) => each in curves) ?? Object.keys(curves)[0];
  return name ? { name, curve: curves[name] } : null;
}

/** `{sentence, certainty, decided}` of a profile. */
export function answer(profile, zone = profile.dead_zone, verdict = profile.dead_zone_verdict) {
  const who = shortName(profile.request.model, profile.request.weights);
  const recall = mainRecall(profile);
  if (!profile.measured) return recallAnswer(who, recall, profile.request.sequence_length);
  const parts = { who, zone, profile, advice: advice(profile, zone, verdict, recall) };
  if (verdict === "zone" && zone) return zoneAnswer(parts, recall);
  if (verdict === "none") return evenAnswer(parts, recall);
  return openAnswer(parts, recall);
}

function zoneAnswer({ who, zone, profile, advice: what }, recall) {
  const { start_band: start, end_band: end } = zone;
  const ends = start && end ? ` It begins ${between(start, 0)} and ends ${between(end, 1)}.` : "";
  return {
    sentence: `${who} listens least ${stretch(zone)}; ${what}.`,
    certainty:
      `Well supported: at most 1 in 20 such findings is false (${read(profile)}).${ends} ` +
      `Inside, a token counts ${times(zone.mean_density)} an even share on average.${recallNote(recall)}`,
    decided: true,
  };
}

function evenAnswer({ who, profile, advice: what }, recall) {
  return {
    sentence: `${who} listens to every part of ${counted(profile.request.sequence_length, "token")}; ${what}.`,
    certainty: `Well supported (95%): no stretch falls below the threshold (${read(profile)}).${recallNote(recall)}`,
    decided: true,
  };
}

function openAnswer({ who, zone, profile, advice: what }, recall) {
  const { documents, sampling } = profile.measured;
  const more = documents < LEAST
    ? `A decision takes ${LEAST} documents or more.`
    : sampling.needed > documents ? `About ${sampling.needed} documents would tell (${percent(sampling.target)} of the influence for each tenth).` : "More documents may tell.";
  const guess = zone ? `, perhaps ${stretch(zone)}` : "";
  return {
    sentence: `Undecided: ${counted(documents, "document")} ${documents === 1 ? "does" : "do"} not show where ${who} listens least${guess}.`,
    certainty: `${more} ${recall && recall.curve.verdict === "varies" ? `${capital(what)}: ` : ""}${recallNote(recall).trim()}`.trim(),
    decided: false,
  };
}

function recallAnswer(who, recall, tokens) {
  if (!recall) return { sentence: `${who}: nothing was measured.`, certainty: "", decided: false };
  const { curve } = recall;
  const [best, worst] = extremes(curve);
  const at = (i) => `near token ${Math.round(curve.position[i])} (${percent(curve.probability[i], 2)})`;
  const n = counted(tokens, "token");
  const sentence = {
    varies: `${who} recalls facts best ${at(best)} and worst ${at(worst)}; ${putAt(curve, best)}.`,
    flat: `${who} recalls facts equally well wherever they stand in ${n}; their order matters little.`,
    ceiling: `${who} recalls nearly every fact wherever it stands in ${n}; their order matters little.`,
    floor: `${who} does not recall these facts wherever they stand in ${n}; order will not help.`,
  }[curve.verdict] ?? `Undecided: ${counted(curve.groups, "group")} of facts do not show where ${who} recalls best.`;
  return {
    sentence,
    certainty: `${RECALL_SURE[curve.verdict] ?? RECALL_SURE.undecided} ${counted(curve.groups, "group")} of ${curve.facts} facts were read.`,
    decided: curve.verdict !== "undecided",
  };
}

const RECALL_SURE = {
  varies: "Well supported: at most 1 in 20 such findings is false.",
  flat: "Well supported (95%): every depth is within 5 points of the mean.",
  ceiling: "Nearly all were recalled, so depth could not show.",
  floor: "Hardly any was recalled, so depth could not show.",
  undecided: "More groups may tell.",
};

function recallNote(recall) {
  if (!recall) return "";
  const { curve } = recall;
  const [best, worst] = extremes(curve);
  const spread = `${percent(curve.probability[worst], 2)} of facts are recalled near token ${Math.round(curve.position[worst])}, ${percent(curve.probability[best], 2)} near token ${Math.round(curve.position[best])}`;
  return {
    varies: ` How often a fact is recalled depends on where it stands: ${spread} (${pText(curve.p)}).`,
    flat: " Recall of facts is the same at every depth, within 5 points.",
    ceiling: " Recall is high at every depth.",
    floor: " Recall is low at every depth, so it says nothing about order.",
  }[curve.verdict] ?? ` Recall by depth is undecided: ${spread}.`;
}

const pText = (p) => `p ${p < 0.001 ? "" : "= "}${pValue(p)}`;

const extremes = ({ probability }) => [
  probability.indexOf(Math.max(...probability)), probability.indexOf(Math.min(...probability)),
];

/** Where to put what matters: recall decides where it was found to vary, else influence. */
function advice(profile, zone, verdict, recall) {
  if (recall?.curve.verdict === "varies") return putAt(recall.curve, extremes(recall.curve)[0]);
  if (["flat", "ceiling"].includes(recall?.curve.verdict)) return "yet it recalls facts equally well wherever they stand, so their order matters little";
  const end = heardEnd(profile.shape);
  if (verdict === "zone" && zone) {
    const n = profile.request.sequence_length;
    const [first, last] = [zone.start > NEAR * n, zone.end < (1 - NEAR) * n];
    if (!first && !last) return "no place of the prompt is heard much better";
    if (first !== last) return `put what matters ${first ? "first" : "last"}`;
    return `put what matters ${end ?? "first or last"}`;
  }
  return end ? `put what matters ${end}` : "the order of chunks matters little";
}

/** The end that surely has more of the influence than the other; null if neither has. */
function heardEnd({ primacy_band: first, recency_band: last }) {
  if (!first || !last) return null;
  if (last.low > first.high) return "last";
  return first.low > last.high ? "first" : null;
}

function putAt(curve, best) {
  const share = curve.depth[best];
  if (share >= 2 / 3) return "put what matters last";
  return share <= 1 / 3 ? "put what matters first" : `put what matters near token ${Math.round(curve.position[best])}`;
}

const stretch = (zone) => tokensText(zone);
const between = ({ low, high }, past) => {
  const [from, to] = [Math.round(low) - past, Math.round(high) - past];
  return from === to ? `at token ${from}` : `between tokens ${from} and ${to}`;
};
const read = (profile) => `${counted(profile.measured.documents, "document")} of ${counted(profile.request.sequence_length, "token")} read`;

/** A density in words: "0.43 of", "1.8 times". */
export const times = (density) => (density < 1 ? `${number(density, 2)} of` : `${number(density, 2)} times`);

/** The class of a curve, or that the documents do not decide it, with the two ends in numbers. */
export function shapeText({ class: name, decided, support, primacy_mass: first, primacy_band: fb, recency_mass: last, recency_band: lb }) {
  const likely = Object.entries(support ?? {}).filter(([, share]) => share >= 0.05);
  const parts = likely.map(([each, share]) => `${words(each)} in ${percent(share, 2)} of redrawn sets`);
  const shape = decided ? words(name) : `undecided (${parts.join(", ") || words(name)})`;
  const mass = (value, band) => percent(value, 2) + (band ? ` (${percent(band.low, 2)} to ${percent(band.high, 2)})` : "");
  return `${capital(shape)}. The first tenth of the prompt has ${mass(first, fb)} of the influence, the last tenth ${mass(last, lb)}; an even share is 10%.`;
}

const RECALL_VERDICTS = {
  varies: "recall depends on where the fact stands",
  flat: "recall does not depend on where the fact stands: every depth is within 5 points of the mean",
  undecided: "these groups do not decide whether recall depends on where the fact stands",
  floor: "the model does not recall these facts, wherever they stand",
  ceiling: "the model recalls nearly all facts, wherever they stand",
};

/** Verdict, controls and agreement of one probe in words. */
export function recallText(name, curve) {
  const { controls, groups, facts, form, question, spearman_with_influence: rank } = curve;
  const p = curve.p === null ? "" : ` (${pText(curve.p)})`;
  const weak = controls.oracle < 0.5 ? " Less than half even then: this model is weak at recalling these facts." : "";
  const overlap = curve.verdict === "varies" && curve.low
    ? " The same facts stand at every depth, so bands of single places may overlap although the difference is sure."
    : "";
  const agreement = rank
    ? ` Influence ranks the depths as recall does with correlation ${number(rank.value, 2)} (${number(rank.low, 2)} to ${number(rank.high, 2)}; 1 is the same order).`
    : "";
  return (
    `${capital(words(name))}: ${RECALL_VERDICTS[curve.verdict] ?? curve.verdict}${p}. ` +
    `${counted(groups, "group")} of ${facts} facts, ${form} prompts, question ${question}. ` +
    `Without any context ${percent(controls.closed_book, 2)} are recalled, with the fact alone ${percent(controls.oracle, 2)}.${weak}${agreement}${overlap}`
  );
}

