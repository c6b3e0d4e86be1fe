declare module "syncline:integration/checkpoint@0.1.1" {
  export const get: import("./host.ts").Host["checkpoint"]["get"];
}
declare module "syncline:integration/connection@0.1.1" {
  type Connection = import("./host.ts").Host["connection"];
  export const get: Connection["get"];
  export const metadata: Connection["metadata"];
  export const setMetadata: Connection["setMetadata"];
  export const updateMetadata: Connection["updateMetadata"];
  export const credentials: Connection["credentials"];
}
declare module "syncline:integration/environment@0.1.1" {
  export const variables: import("./host.ts").Host["environment"]["variables"];
}
declare module "syncline:integration/log@0.1.1" {
  type Log = import("./host.ts").Host["log"];
  export const write: Log["write"];
  export const panicked: Log["panicked"];
}
declare module "syncline:integration/provider@0.1.1" {
  type HostRequest = import("./host.ts").HostRequest;
  type HostResponse = import("./host.ts").HostResponse;
  export function send(request: HostRequest): HostResponse;
  export function sendAll(
    requests: HostRequest[],
  ): ({ tag: "ok"; val: HostResponse } | { tag: "err"; val: import("./error.ts").Failure })[];
}
declare module "syncline:integration/records@0.1.1" {
  type Records = import("./host.ts").Host["records"];
  export const commit: Records["commit"];
  export const get: Records["get"];
}
declare module "syncline:integration/run@0.1.1" {
  type Run = import("./host.ts").Host["run"];
  export const get: Run["get"];
  export const isFull: Run["isFull"];
  export const progress: Run["progress"];
  export const cancelled: Run["cancelled"];
  export const now: Run["now"];
}
declare module "wasi:clocks/monotonic-clock@0.2.6" {
  export function now(): number;
  export function subscribeDuration(nanoseconds: number): { block(): void };
}
declare module "wasi:random/random@0.2.6" {
  export function getRandomBytes(length: number): Uint8Array;
}
/** The engine's own functions. */
declare const __cqjs: { runGc(): void };
