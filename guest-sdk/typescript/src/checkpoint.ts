/** Where a sync resumes. A `Writer` sets the checkpoint together with the records that it belongs to. */
import { calling } from "./error.ts";
import { host } from "./host.ts";
import * as json from "./json.ts";

/** Returns the checkpoint, or `undefined` on the first run and after a reset. */
export function get<T extends object = Record<string, unknown>>(): T | undefined {
  const text = calling(() => host().checkpoint.get());
  return text == null ? undefined : json.parse<T>(text);
}

/** Returns the checkpoint if it was set with `Writer.cursor`. */
export function cursor(): string | undefined {
  return get<{ cursor?: string }>()?.cursor;
}
