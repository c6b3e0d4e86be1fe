/** The run's log. `console.log` and the other methods of `console` write to it as well. */
import { host, type Level } from "./host.ts";
import * as json from "./json.ts";

export type { Level } from "./host.ts";

/** Writes a line. `fields` is an object with details. */
export function write(level: Level, message: string, fields?: object): void {
  host().log.write(level, message, fields === undefined ? undefined : json.stringify(fields));
}

export function debug(message: string, fields?: object): void {
  write("debug", message, fields);
}

export function info(message: string, fields?: object): void {
  write("info", message, fields);
}

export function warn(message: string, fields?: object): void {
  write("warn", message, fields);
}

export function error(message: string, fields?: object): void {
  write("error", message, fields);
}
