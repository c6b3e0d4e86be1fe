/** The exports of a component, on top of its imports. The entry of each build calls `component`. */
import { define, events, takeUnhandled } from "./runtime/globals.ts";
import { createConsole } from "./runtime/console.ts";
import { originalStack, SOURCE_MAP, type SourceMap } from "./runtime/source-map.ts";
import * as checkpoint from "syncline:integration/checkpoint@0.1.1";
import * as connection from "syncline:integration/connection@0.1.1";
import * as environment from "syncline:integration/environment@0.1.1";
import * as log from "syncline:integration/log@0.1.1";
import * as provider from "syncline:integration/provider@0.1.1";
import * as records from "syncline:integration/records@0.1.1";
import * as run from "syncline:integration/run@0.1.1";
import * as clock from "wasi:clocks/monotonic-clock@0.2.6";
import * as random from "wasi:random/random@0.2.6";
import { SynclineError } from "./error.ts";
import { fetch } from "./fetch.ts";
import { host, setHost, type Host, type HostRequest, type HostResponse } from "./host.ts";
import { Integration } from "./integration.ts";

const imports: Host = {
  send: (request) => events.queueRequest<HostRequest, HostResponse>(request),
  records,
  checkpoint,
  connection,
  environment,
  log,
  run,
};

const outside: events.Outside<HostRequest, HostResponse> = {
  send: (requests) => {
    if (requests.length > 1) {
      return provider
        .sendAll(requests)
        .map((answer) => (answer.tag === "ok" ? { ok: answer.val } : { failure: { payload: answer.val } }));
    }
    try {
      return [{ ok: provider.send(requests[0] as HostRequest) }];
    } catch (failure) {
      return [{ failure }];
    }
  },
  sleep: (milliseconds) => clock.subscribeDuration(Math.ceil(milliseconds * 1_000_000)).block(),
};

define(globalThis, "fetch", fetch);
define(
  globalThis,
  "console",
  createConsole((level, message) => runs && log.write(level, message, undefined)),
);
// Each call of the host takes time, so the clock is read only by functions that need it.
let started: number | undefined;
const now = () => clock.now() / 1_000_000;
define(globalThis, "performance", { now: () => now() - (started ??= now()) });
events.setClock(now);
define(globalThis, "crypto", { getRandomValues, randomUUID });
// The engine's generator has the same state in every run, because it is part of the component's snapshot.
Math.random = () => {
  const [high, low] = getRandomValues(new Uint32Array(2)) as unknown as [number, number];
  return ((high >>> 5) * 0x4000000 + (low >>> 6)) / 2 ** 53;
};

/** Whether a function runs. At build time, the host is not there. */
let runs = false;

/** Returns the interface `functions` of the world for the default export of the entry file. */
export function component(exported: unknown): object {
  if (!(exported instanceof Integration)) {
    throw new TypeError("the default export must be created with `integration({ … })`");
  }
  return {
    describe: () => exported.describe(),
    invoke: (kind: string, name: string, input: string | null | undefined) => invoke(exported, kind, name, input),
  };
}

// The build turns automatic garbage collection off, because the first collection of each short run would read and copy
// the whole snapshot. The engine still frees everything but cycles at once. Cycles are collected after some requests.
const REQUESTS_PER_COLLECTION = 20;
let requestsSinceCollection = 0;

function collectSometimes(): void {
  requestsSinceCollection += 1;
  if (requestsSinceCollection < REQUESTS_PER_COLLECTION) return;
  requestsSinceCollection = 0;
  __cqjs.runGc();
}

type Outcome = { output: string | undefined } | { error: unknown };

function invoke(integration: Integration, kind: string, name: string, input: string | null | undefined) {
  runs = true;
  setHost(imports);
  let outcome: Outcome | undefined;
  integration.start(
    kind,
    name,
    input ?? undefined,
    (output) => (outcome = { output }),
    (error) => (outcome = { error }),
  );
  const settled = events.runUntil(() => outcome !== undefined, outside, collectSometimes);
  reportLeft(events.clear());
  if (!settled || outcome === undefined) {
    return trap("the function waits for a promise that nothing resolves", undefined);
  }
  if ("output" in outcome) return outcome.output;
  const { error } = outcome;
  if (error instanceof SynclineError) throw new Failed(error);
  return trap(error instanceof Error ? String(error) : `thrown: ${String(error)}`, error);
}

/** The error of a `result`, for the engine. */
class Failed extends Error {
  readonly payload: object;

  constructor(error: SynclineError) {
    super(error.message);
    this.payload = error.toFailure();
  }
}

function reportLeft(requests: number): void {
  if (requests > 0) {
    log.write("warn", `${requests} requests were not sent, because the function returned without waiting for them`, undefined);
  }
  for (const reason of takeUnhandled() ?? []) {
    const { frames, place } = stackOf(reason);
    const where = place ? ` at ${place}` : "";
    log.write("error", `a promise was rejected without a handler${where}: ${String(reason)}\n${frames.join("\n")}`.trimEnd(), undefined);
  }
}

/** Ends the run with an error of the function's code. */
function trap(message: string, error: unknown): never {
  const { frames, place } = stackOf(error);
  const causes: string[] = [];
  for (let cause = (error as Error | undefined)?.cause; cause !== undefined; cause = (cause as Error).cause) {
    causes.push(`caused by ${String(cause)}`, ...stackOf(cause).frames.map((frame) => `    ${frame}`));
    if (typeof cause !== "object" || cause === null) break;
  }
  if (frames.length > 0 || causes.length > 0) {
    log.write("error", [message, ...frames.map((frame) => `    ${frame}`), ...causes].join("\n"), undefined);
  }
  log.panicked(message, place);
  // The engine writes it to the log and traps.
  const crash = new Error(message);
  crash.stack = "";
  throw crash;
}

function stackOf(error: unknown): { frames: string[]; place: string | undefined } {
  const stack = error instanceof Error ? (error.stack ?? "") : "";
  return originalStack((globalThis as { [SOURCE_MAP]?: SourceMap })[SOURCE_MAP], stack);
}

function getRandomValues<T extends ArrayBufferView>(array: T): T {
  if (!runs) throw new Error("random numbers are not available outside of functions");
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  bytes.set(random.getRandomBytes(bytes.length));
  return array;
}

function randomUUID(): string {
  const bytes = getRandomValues(new Uint8Array(16));
  bytes[6] = ((bytes[6] as number) & 0x0f) | 0x40;
  bytes[8] = ((bytes[8] as number) & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
