/** The globals of a component that the engine lacks. This module runs before all others. */
import * as events from "./events.ts";
import { ComponentPromise, enqueue, takeUnhandled } from "./promise.ts";
import {
  ComponentAbortController,
  ComponentAbortSignal,
  ComponentHeaders,
  ComponentRequest,
  ComponentResponse,
} from "./fetch-types.ts";
import { structuredClone } from "./structured-clone.ts";
import { ComponentTextDecoder, ComponentTextEncoder } from "./text.ts";
import { ComponentURL, ComponentURLSearchParams } from "./url.ts";

const globals: Record<string, unknown> = {
  Promise: ComponentPromise,
  queueMicrotask: enqueue,
  setTimeout: (call: (...given: unknown[]) => void, delay: number, ...given: unknown[]) =>
    events.startTimer(() => call(...given), delay, false),
  setInterval: (call: (...given: unknown[]) => void, delay: number, ...given: unknown[]) =>
    events.startTimer(() => call(...given), delay, true),
  setImmediate: (call: (...given: unknown[]) => void, ...given: unknown[]) =>
    events.startTimer(() => call(...given), 0, false),
  clearTimeout: events.stopTimer,
  clearInterval: events.stopTimer,
  clearImmediate: events.stopTimer,
  TextEncoder: ComponentTextEncoder,
  TextDecoder: ComponentTextDecoder,
  URL: ComponentURL,
  URLSearchParams: ComponentURLSearchParams,
  structuredClone,
  Headers: ComponentHeaders,
  Request: ComponentRequest,
  Response: ComponentResponse,
  AbortController: ComponentAbortController,
  AbortSignal: ComponentAbortSignal,
  self: globalThis,
};
for (const [name, value] of Object.entries(globals)) define(globalThis, name, value);

// Its native form would return a promise of the engine.
define(Array, "fromAsync", async (items: AsyncIterable<unknown>, map?: (item: unknown, index: number) => unknown) => {
  const list: unknown[] = [];
  for await (const item of items) list.push(map ? await map(item, list.length) : item);
  return list;
});

export function define(target: object, name: string, value: unknown): void {
  Object.defineProperty(target, name, { value, writable: true, configurable: true, enumerable: false });
}

export { events, takeUnhandled };
