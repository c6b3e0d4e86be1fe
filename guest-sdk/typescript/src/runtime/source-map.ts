/** Places in the author's sources for places in the bundled script. */

/** A source map (revision 3) without the sources' contents. The build puts it on `globalThis`. */
export interface SourceMap {
  sources: string[];
  mappings: string;
}

export const SOURCE_MAP = "__synclineSourceMap";

interface Place {
  source: string;
  line: number;
  column: number;
}

/** Returns the place in the sources. Lines and columns begin at 1. */
export function originalPlace(map: SourceMap, line: number, column: number): Place | undefined {
  let [source, originalLine, originalColumn] = [0, 0, 0];
  const lines = map.mappings.split(";");
  let found: Place | undefined;
  for (let at = 0; at < Math.min(line, lines.length); at += 1) {
    let generatedColumn = 0;
    for (const segment of (lines[at] as string).split(",")) {
      if (segment === "") continue;
      const fields = decode(segment);
      generatedColumn += fields[0] ?? 0;
      if (fields.length < 4) continue;
      source += fields[1] as number;
      originalLine += fields[2] as number;
      originalColumn += fields[3] as number;
      if (at === line - 1 && (found === undefined || generatedColumn <= column - 1)) {
        found = { source: map.sources[source] ?? "", line: originalLine + 1, column: originalColumn + 1 };
      }
    }
  }
  return found;
}

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/** Decodes the numbers of a segment, which have five bits in each character. */
function decode(segment: string): number[] {
  const numbers: number[] = [];
  let value = 0;
  let shift = 0;
  for (const character of segment) {
    const digit = DIGITS.indexOf(character);
    value += (digit & 31) << shift;
    shift += 5;
    if (digit < 32) {
      numbers.push(value & 1 ? -(value >> 1) : value >> 1);
      value = 0;
      shift = 0;
    }
  }
  return numbers;
}

const FRAME = /^\s*at (?:(.*?) \()?componentize-qjs:user\.js:(\d+):(\d+)\)?\s*$/;

/** Converts a stack of the engine: only frames of the author's sources and of packages, with their places. */
export function originalStack(map: SourceMap | undefined, stack: string): { frames: string[]; place: string | undefined } {
  const frames: string[] = [];
  let place: string | undefined;
  for (const line of stack.split("\n")) {
    const [, name, lineNumber, column] = FRAME.exec(line) ?? [];
    if (lineNumber === undefined) continue;
    const original = map && originalPlace(map, Number(lineNumber), Number(column));
    if (original === undefined || original.source.startsWith("syncline-sdk:")) continue;
    const text = `${original.source}:${original.line}:${original.column}`;
    frames.push(name ? `at ${name} (${text})` : `at ${text}`);
    if (place === undefined && !original.source.includes("node_modules/")) place = text;
  }
  return { frames, place: place ?? frames[0]?.replace(/^at (?:.*\()?|\)$/g, "") };
}
