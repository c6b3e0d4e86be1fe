/** `console`, which writes to the run's log. */
import type { Level } from "../host.ts";

type Write = (level: Level, message: string) => void;

/** Creates a console. Without a run, it writes nothing. */
export function createConsole(write: Write): object {
  const logger =
    (level: Level) =>
    (...given: unknown[]): void =>
      write(level, format(given));
  return {
    log: logger("info"),
    info: logger("info"),
    debug: logger("debug"),
    trace: logger("debug"),
    dir: logger("info"),
    table: logger("info"),
    warn: logger("warn"),
    error: logger("error"),
    assert: (condition: unknown, ...given: unknown[]) => {
      if (!condition) write("error", format(["assertion failed", ...given]));
    },
    group() {},
    groupEnd() {},
    time() {},
    timeEnd() {},
  };
}

/** Joins values as `console.log` does, with the placeholders `%s`, `%d`, `%i`, `%f`, `%j`, `%o` and `%O`. */
export function format(given: unknown[]): string {
  const rest = [...given];
  let text = "";
  if (typeof rest[0] === "string") {
    text = (rest.shift() as string).replace(/%[sdifjoO%]/g, (placeholder) => {
      if (placeholder === "%%") return "%";
      if (rest.length === 0) return placeholder;
      const value = rest.shift();
      return /%[di]/.test(placeholder) ? String(Math.trunc(Number(value))) : show(value);
    });
    if (rest.length > 0) text += " ";
  }
  return text + rest.map(show).join(" ");
}

function show(value: unknown): string {
  if (typeof value === "string") return value;
  if (typeof value === "bigint") return `${value}n`;
  if (value instanceof Error) return value.stack ? `${value}\n${value.stack}`.trimEnd() : String(value);
  if (typeof value !== "object" || value === null) return String(value);
  const parents: unknown[] = [];
  try {
    return JSON.stringify(value, function (this: unknown, _key, inner: unknown) {
      while (parents.length > 0 && parents.at(-1) !== this) parents.pop();
      if (typeof inner === "bigint") return `${inner}n`;
      if (inner instanceof Map || inner instanceof Set) return [...inner];
      if (inner instanceof Error) return String(inner);
      if (typeof inner !== "object" || inner === null) return inner;
      if (parents.includes(inner)) return "[circular]";
      parents.push(inner);
      return inner;
    });
  } catch (error) {
    return `[not shown: ${(error as Error).message}]`;
  }
}
