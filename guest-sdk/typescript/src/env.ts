/** Variables that the operator defines for functions. */
import { host } from "./host.ts";

/** Returns the value of a variable. */
export function get(name: string): string | undefined {
  return host().environment.variables().find(([present]) => present === name)?.[1];
}

/** Returns all variables that the function may read. */
export function all(): Record<string, string> {
  return Object.fromEntries(host().environment.variables());
}
