// Chunks as they are pasted, read as the command line reads its files: JSON, JSON lines, or cells by
// the first line's tab, semicolon or comma, else by spaces, where a heading line may name the
// columns. What cannot be read is refused with its line.

import { Refusal } from "./api.js";

const COLUMNS = ["id", "tokens", "text", "relevance", "group", "pinned", "document", "position"];
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const EXPECTED = "expected a name, a whole number of tokens and a relevance";
const HEADINGS =
  "a heading names the columns id, tokens (or text) and relevance, and may name group, pinned, document and position; " +
  "without a heading a line is name, tokens, relevance";

function refuse(message) {
  throw new Refusal(0, { errors: [{ field: "chunks", message }] });
}

/**
 * `chunks` as the service takes them, and `lines`: the line that each came from, where there are
 * lines. Throws a Refusal that names the line at fault.
 */
export function parseChunks(text) {
  const lines = text.split(/\r?\n/).map((line, at) => ({ line, at: at + 1 })).filter(({ line }) => line.trim());
  if (lines.length === 0) refuse("none given; one a line: name, tokens, relevance");
  if ("[{".includes(text.trim()[0])) return parseJson(text, lines);
  return parseTable(lines);
}

/** A list of chunks, one chunk, an object that holds the list, or a chunk on each line. */
function parseJson(text, lines) {
  const apart = lines.length > 1 && lines.every(({ line }) => /^\s*\{.*\}\s*$/.test(line));
  if (apart) {
    const chunks = lines.map(({ line, at }) => object(json(line, `line ${at}: `), `line ${at}`));
    return { chunks, lines: lines.map(({ at }) => at) };
  }
  const value = json(text, "");
  if (Array.isArray(value)) return { chunks: list(value), lines: [] };
  if ("relevance" in value) return { chunks: [value], lines: [] };
  const other = Object.keys(value).find((name) => name !== "chunks");
  if (other !== undefined || !Array.isArray(value.chunks)) {
    refuse("paste the list of chunks alone; the other fields of a request are set below");
  }
  return { chunks: list(value.chunks), lines: [] };
}

function json(text, where) {
  try {
    return JSON.parse(text);
  } catch (error) {
    return refuse(`${where}not JSON: ${error.message}`);
  }
}

function list(values) {
  if (values.length === 0) refuse("none given");
  return values.map((value, at) => object(value, `number ${at + 1}`));
}

function object(value, where) {
  const fits = value !== null && typeof value === "object" && !Array.isArray(value);
  if (!fits) refuse(`${where}: expected {"id": ..., "tokens": ..., "relevance": ...}`);
  return value;
}

function parseTable(lines) {
  const mark = ["\t", ";", ","].find((each) => lines[0].line.includes(each)) ?? " ";
  const rows = lines.map(({ line, at }) => ({ at, cells: split(line, mark, at) }));
  const columns = heading(rows[0]);
  if (columns) rows.shift();
  if (rows.length === 0) refuse("none given below the heading");
  const chunks = rows.map(({ cells, at }) => (columns ? byName(cells, columns, mark, at) : byPlace(cells, mark, at)));
  return { chunks, lines: rows.map(({ at }) => at) };
}

/** Where a field such as `chunks.3.tokens` of the service's refusal was pasted: "line 5: tokens". */
export function entry(field, lines) {
  const [, index, inner] = /^chunks\.(\d+)(?:\.(.+))?/.exec(field) ?? [];
  if (index === undefined) return null;
  const where = index in lines ? `line ${lines[index]}` : `number ${Number(index) + 1}`;
  return inner ? `${where}: ${inner}` : where;
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
  // A chunk has at least one number that can be read among its last two cells.
  if (names.length < 2 || cells.slice(-2).some((cell) => NUMBER.test(cell.replace(",", ".")))) return null;
  const strange = names.find((name) => !COLUMNS.includes(name));
  if (strange !== undefined) refuse(`line ${at}: unknown column "${strange}"; ${HEADINGS}`);
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
  return { id: name || `chunk-${at}`, tokens: count(tokens, at), relevance: decimal(relevance, mark, at) };
}

function byName(cells, columns, mark, at) {
  if (cells.length !== columns.length) refuse(`line ${at}: ${cells.length} cells under ${columns.length} columns`);
  const given = Object.fromEntries(columns.map((name, place) => [name, cells[place]]).filter(([, cell]) => cell));
  const chunk = { id: `chunk-${at}`, ...given, relevance: decimal(given.relevance ?? "", mark, at) };
  if (given.tokens) chunk.tokens = count(given.tokens, at);
  if (given.position) chunk.position = number(given.position, "position", at);
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
  return number(pointed, "relevance", at, cell);
}

function number(text, name, at, cell = text) {
  const value = NUMBER.test(text) ? Number(text) : NaN;
  if (!Number.isFinite(value)) refuse(`line ${at}: ${name}: "${cell}" is not a number`);
  return value;
}
