/** `structuredClone`, without transfers. */

export function structuredClone<T>(value: T): T {
  return clone(value, new Map()) as T;
}

function clone(value: unknown, copies: Map<unknown, unknown>): unknown {
  if (typeof value === "function" || typeof value === "symbol") {
    throw new DOMException(`${String(value)} could not be cloned`, "DataCloneError");
  }
  if (typeof value !== "object" || value === null) return value;
  const known = copies.get(value);
  if (known !== undefined) return known;
  const remember = <C>(copy: C): C => {
    copies.set(value, copy);
    return copy;
  };
  if (value instanceof Date) return remember(new Date(value));
  if (value instanceof RegExp) return remember(new RegExp(value));
  if (value instanceof ArrayBuffer) return remember(value.slice(0));
  if (ArrayBuffer.isView(value)) {
    const View = value.constructor as new (buffer: unknown, offset: number, length: number) => unknown;
    const length = value instanceof DataView ? value.byteLength : (value as Uint8Array).length;
    return remember(new View(clone(value.buffer, copies), value.byteOffset, length));
  }
  if (value instanceof Map) {
    const copy = remember(new Map());
    for (const [key, inner] of value) copy.set(clone(key, copies), clone(inner, copies));
    return copy;
  }
  if (value instanceof Set) {
    const copy = remember(new Set());
    for (const inner of value) copy.add(clone(inner, copies));
    return copy;
  }
  if (value instanceof Error) {
    const copy = remember(new (value.constructor as ErrorConstructor)(value.message));
    if ("cause" in value) copy.cause = clone(value.cause, copies);
    return copy;
  }
  const copy = remember<Record<string, unknown>>(Array.isArray(value) ? ([] as never) : {});
  for (const key of Object.keys(value)) copy[key] = clone((value as Record<string, unknown>)[key], copies);
  return copy;
}
