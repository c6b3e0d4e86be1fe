/**
 * JSON without loss of integers. `JSON.parse` rounds integers beyond 2^53, so these functions use `bigint` for them.
 */

// Private marks in strings. No other string can begin with one, because such strings get a second mark.
const MARK = "\u0000#";
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** Parses JSON. Integers that `number` cannot represent exactly become a `bigint`. */
export function parse<T = unknown>(text: string): T {
  const value: unknown = JSON.parse(text);
  if (!/\d{16}/.test(text)) return value as T;
  const marked = text.replace(TOKEN, (token) => {
    if (token.startsWith('"')) return token.includes("\\u0000#") ? token.replaceAll("\\u0000#", "\\u0000##") : token;
    return /^-?\d{16,}$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"\\u0000#${token}"` : token;
  });
  return JSON.parse(marked, (_key, value: unknown) => {
    if (typeof value !== "string" || !value.includes(MARK)) return value;
    return /^\u0000#-?\d+$/.test(value) ? BigInt(value.slice(MARK.length)) : value.replaceAll("\u0000##", MARK);
  }) as T;
}

/** Writes JSON. A `bigint` is written with all its digits. `undefined` becomes `null`. */
export function stringify(value: unknown): string {
  try {
    return JSON.stringify(value) ?? "null";
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    return stringifyWithBigints(value, error);
  }
}

function stringifyWithBigints(value: unknown, failure: TypeError): string {
  let found = false;
  const marked = JSON.stringify(value, (_key, value: unknown) => {
    if (typeof value === "bigint") {
      found = true;
      return `${MARK}${value}`;
    }
    return typeof value === "string" ? value.replaceAll(MARK, "\u0000##") : value;
  });
  if (!found) throw failure;
  return marked.replace(/"\\u0000#(-?\d+)"/g, "$1").replaceAll("\\u0000##", "\\u0000#");
}
