/** The host that functions talk to: the real one in a component, and the fake one of `@syncline/sdk/testing` in tests. */
import { SynclineError } from "./error.ts";

export type Pair = [name: string, value: string];

export interface HostRequest {
  method: string;
  url: string;
  query: Pair[];
  headers: Pair[];
  body?: Uint8Array | undefined;
  retries?: number | undefined;
  timeoutMs?: number | undefined;
}

export interface HostResponse {
  status: number;
  headers: Pair[];
  body: Uint8Array;
}

export interface Batch {
  model: string;
  items: string;
  variant?: string | undefined;
}

export interface Deletion {
  model: string;
  ids: string[];
  variant?: string | undefined;
}

export type Change =
  | { tag: "save"; val: Batch }
  | { tag: "update"; val: Batch }
  | { tag: "delete"; val: Deletion };

export interface HostCounts {
  added: number;
  updated: number;
  deleted: number;
  unchanged: number;
}

export type Level = "debug" | "info" | "warn" | "error";

/** The imports of the world `integration`. JSON values are texts. Only `send` is asynchronous. */
export interface Host {
  send(request: HostRequest): Promise<HostResponse>;
  records: {
    commit(changes: Change[], checkpoint: string | undefined): HostCounts;
    get(model: string, ids: string[]): (string | null | undefined)[];
  };
  checkpoint: { get(): string | null | undefined };
  connection: {
    get(): {
      connectionId: string;
      integration: string;
      provider: string;
      environment: string;
      config: string;
      tags: string;
    };
    metadata(): string;
    setMetadata(metadata: string): void;
    updateMetadata(changes: string): void;
    credentials(): string;
  };
  environment: { variables(): Pair[] };
  log: {
    write(level: Level, message: string, fields: string | undefined): void;
    panicked(message: string, location: string | undefined): void;
  };
  run: {
    get(): { id: string; variant: string; attempt: number };
    isFull(): boolean;
    progress(done: number, total: number | undefined): void;
    cancelled(): boolean;
    now(): number;
  };
}

// On `globalThis`, so that two copies of the SDK in one program share a host.
const SLOT = Symbol.for("@syncline/sdk/host");
const slots = globalThis as { [SLOT]?: Host | undefined };

/** Returns the host. Throws outside of a function. */
export function host(): Host {
  const host = slots[SLOT];
  if (host) return host;
  throw new SynclineError(
    "no-host",
    "this can only be called while a function runs; in a unit test, run the function with a `Host` of " +
      "`@syncline/sdk/testing`",
  );
}

export function setHost(host: Host | undefined): Host | undefined {
  const previous = slots[SLOT];
  slots[SLOT] = host;
  return previous;
}
