// Chunks from pasted lines, read as the command line reads its files: cells by the first line's tab,
// semicolon or comma, else by spaces; a heading line may name the columns. What cannot be meant is
// refused, by line.

import { Refusal } from "./api.js";

const COLUMNS = ["id", "tokens", "text", "relevance", "group", "pinned"];
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const EXPECTED = "expected a name, a whole number of tokens and a relevance";

function refuse(message) {
  throw new Refusal(0, { errors: [{ field: "chunks", message }] });
}

/** Chunks as the service takes them. Throws a Refusal that names the line at fault. */
export function parseChunks(text) {
  const lines = text.split(/\r?\n/).map((line, at) => ({ line, at: at + 1 })).filter(({ line }) => line.trim());
  if (lines.length === 0) refuse("none given; one a line: name, tokens, relevance");
  const mark = ["\t", ";", ","].find((each) => lines[0].line.includes(each)) ?? " ";
  const rows = lines.map(({ line, at }) => ({ at, cells: split(line, mark, at) }));
  const columns = heading(rows[0]);
  if (columns) rows.shift();
  if (rows.length === 0) refuse("none given below the heading");
  return rows.map(({ cells, at }) => (columns ? byName(cells, columns, mark, at) : byPlace(cells, mark, at)));
}

/** Which line a field such as `chunks.3.tokens` of the service's refusal came from. */
export function lineOf(field, chunks) {
  const index = /^chunks\.(\d+)/.exec(field)?.[1];
  return index === undefined ? null : (chunks[index]?.line ?? null);
}

function split(line, mark, at) {
  if (mark === " ") return line.trim().split(/\s+/);
  const cells = [];
  let rest = line;
  do {
    // A cell in quotation marks may hold the mark itself; two of them are one.
    const found = /^\s*"((?:[^"]|"")*)"\s*/.exec(rest);
    const end = found ? found[0].length : rest.indexOf(mark);
    if (found && end < rest.length && rest[end] !== mark) refuse(`line ${at}: something follows a closing quotation mark`);
    const stop = end < 0 ? rest.length : end;
    cells.push(found ? found[1].replaceAll('""', '"') : rest.slice(0, stop).trim());
    rest = stop < rest.length ? rest.slice(stop + 1) : null;
  } while (rest !== null);
  return cells;
}

function heading({ cells, at }) {
  const names = cells.map((cell) => cell.toLowerCase());
  if (!names.some((name) => COLUMNS.includes(name)) || cells.slice(-2).some((cell) => NUMBER.test(cell))) return null;
  const strange = names.find((name) => !COLUMNS.includes(name));
  if (strange !== undefined) refuse(`line ${at}: unknown column "${strange}"; known: ${COLUMNS.join(", ")}`);
  if (new Set(names).size < names.length) refuse(`line ${at}: a column is there twice`);
  if (!names.includes("relevance")) refuse(`line ${at}: no column relevance`);
  if (!names.includes("tokens") && !names.includes("text")) refuse(`line ${at}: no column tokens`);
  return names;
}

function byPlace(cells, mark, at) {
  if (cells.length < 2) refuse(`line ${at}: ${EXPECTED}`);
  // Two numbers with decimal commas look like three cells or four.
  if (mark !== " " && cells.length > 3) {
    const advice = mark === "," ? "; write decimals with a point, or put semicolons between the cells" : "";
    refuse(`line ${at}: ${cells.length} cells, ${EXPECTED}${advice}`);
  }
  const [tokens, relevance] = cells.slice(-2);
  const name = cells.slice(0, -2).join(" ");
  return { id: name || `chunk-${at}`, tokens: count(tokens, at), relevance: decimal(relevance, mark, at), line: at };
}

function byName(cells, columns, mark, at) {
  if (cells.length !== columns.length) refuse(`line ${at}: ${cells.length} cells under ${columns.length} columns`);
  const given = Object.fromEntries(columns.map((name, place) => [name, cells[place]]).filter(([, cell]) => cell));
  const chunk = { id: `chunk-${at}`, ...given, relevance: decimal(given.relevance ?? "", mark, at), line: at };
  if (given.tokens) chunk.tokens = count(given.tokens, at);
  if (/^\d+$/.test(given.pinned ?? "")) chunk.pinned = Number(given.pinned);
  return chunk;
}

function count(cell, at) {
  const value = NUMBER.test(cell) ? Number(cell) : NaN;
  if (!Number.isInteger(value) || value < 1) refuse(`line ${at}: tokens: "${cell}" is not a whole number from 1`);
  return value;
}

/** A number; its decimals may follow a comma where commas do not stand between cells. */
function decimal(cell, mark, at) {
  const pointed = mark === ";" || mark === "\t" ? cell.replace(/^([^.,]*),([^.,]*)$/, "$1.$2") : cell;
  const value = NUMBER.test(pointed) ? Number(pointed) : NaN;
  if (!Number.isFinite(value)) refuse(`line ${at}: relevance: "${cell}" is not a number`);
  return value;
}
