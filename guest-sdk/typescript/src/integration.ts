/** The functions of an integration, and their registration. */
import { SynclineError } from "./error.ts";
import * as json from "./json.ts";
import { takeUnsaved } from "./records.ts";
import { name as sdkName, version as sdkVersion } from "./version.ts";

type MaybePromise<T> = T | Promise<T>;

/** A function that runs on a schedule and saves records. */
export interface Sync {
  readonly kind: "sync";
  readonly description: string;
  readonly run: () => MaybePromise<unknown>;
}

/** A function that a client calls. */
export interface Action<Input = unknown, Output = unknown> {
  readonly kind: "action";
  readonly description: string;
  readonly run: (input: Input) => MaybePromise<Output>;
}

/** The input of a webhook function. Names of headers are in lower case. */
export interface WebhookCall<Body = unknown> {
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Body;
}

/** A function that handles a provider's webhook. */
export interface Webhook<Body = unknown> {
  readonly kind: "webhook";
  readonly description: string;
  readonly run: (call: WebhookCall<Body>) => MaybePromise<unknown>;
}

export type LifecycleEvent = "connection-validating" | "connection-created" | "connection-deleting";

/** A function that handles an event of a connection. */
export interface Lifecycle {
  readonly kind: "lifecycle";
  readonly description: string;
  readonly run: (event: LifecycleEvent) => MaybePromise<unknown>;
}

/** Creates a sync. Its result is ignored. */
export function sync(run: Sync["run"]): Sync;
export function sync(description: string, run: Sync["run"]): Sync;
export function sync(...given: [Sync["run"]] | [string, Sync["run"]]): Sync {
  return { kind: "sync", ...parts(given) };
}

/** Creates an action. The caller receives its result as JSON; `undefined` means no output. */
export function action<Input, Output>(run: Action<Input, Output>["run"]): Action<Input, Output>;
export function action<Input, Output>(
  description: string,
  run: Action<Input, Output>["run"],
): Action<Input, Output>;
export function action<Input, Output>(
  ...given: [Action<Input, Output>["run"]] | [string, Action<Input, Output>["run"]]
): Action<Input, Output> {
  return { kind: "action", ...parts(given) };
}

/** Creates a webhook function. Its result is ignored. */
export function webhook<Body = unknown>(run: Webhook<Body>["run"]): Webhook<Body>;
export function webhook<Body = unknown>(description: string, run: Webhook<Body>["run"]): Webhook<Body>;
export function webhook<Body>(...given: [Webhook<Body>["run"]] | [string, Webhook<Body>["run"]]): Webhook<Body> {
  return { kind: "webhook", ...parts(given) };
}

/** Creates a lifecycle function. An error of `connection-validating` rejects the connection with its message. */
export function lifecycle(run: Lifecycle["run"]): Lifecycle;
export function lifecycle(description: string, run: Lifecycle["run"]): Lifecycle;
export function lifecycle(...given: [Lifecycle["run"]] | [string, Lifecycle["run"]]): Lifecycle {
  return { kind: "lifecycle", ...parts(given) };
}

function parts<Run>(given: [Run] | [string, Run]): { description: string; run: Run } {
  return given.length === 1 ? { description: "", run: given[0] } : { description: given[0], run: given[1] };
}

/**
 * The names of an integration's functions and the types of its actions. `syncline generate` prints them in `models.ts`,
 * so that the compiler compares the functions with `syncline.toml`.
 */
export interface FunctionTypes {
  syncs: string;
  actions: object;
  webhooks: string;
  lifecycle: string;
}

type Group<Kind extends string, Names extends PropertyKey, Functions> = [Names] extends [never]
  ? { readonly [K in Kind]?: Record<never, never> }
  : { readonly [K in Kind]: Functions };

/** The functions that an integration with these types must have. */
export type FunctionsOf<F extends FunctionTypes> = Group<"syncs", F["syncs"], { readonly [N in F["syncs"]]: Sync }> &
  Group<
    "actions",
    keyof F["actions"],
    {
      readonly [N in keyof F["actions"]]: F["actions"][N] extends { input: infer I; output: infer O }
        ? Action<I, O>
        : never;
    }
  > &
  Group<"webhooks", F["webhooks"], { readonly [N in F["webhooks"]]: Webhook<never> }> &
  Group<"lifecycle", F["lifecycle"], { readonly [N in F["lifecycle"]]: Lifecycle }>;

/** Functions without types from `models.ts`. */
export interface AnyFunctions {
  readonly syncs?: Readonly<Record<string, Sync>>;
  readonly actions?: Readonly<Record<string, Action<never, unknown>>>;
  readonly webhooks?: Readonly<Record<string, Webhook<never>>>;
  readonly lifecycle?: Readonly<Partial<Record<LifecycleEvent, Lifecycle>>>;
}

interface AnyFunction {
  readonly kind: string;
  readonly description: string;
  readonly run: (input: never) => unknown;
}

const GROUPS = { syncs: "sync", actions: "action", webhooks: "webhook", lifecycle: "lifecycle" } as const;

/** The functions of an integration, which the entry file exports as its default. */
export class Integration {
  readonly #functions = new Map<string, AnyFunction>();

  constructor(functions: AnyFunctions) {
    for (const [group, members] of Object.entries(functions)) {
      const kind = (GROUPS as Record<string, string>)[group];
      if (kind === undefined) {
        throw new TypeError(`\`${group}\` is not a kind of function; use ${Object.keys(GROUPS).join(", ")}`);
      }
      for (const [name, value] of Object.entries((members ?? {}) as Record<string, AnyFunction | undefined>)) {
        if (value?.kind !== kind || typeof value.run !== "function") {
          const got = value?.kind === undefined ? typeof value : `created with \`${value.kind}()\``;
          throw new TypeError(`\`${group}.${name}\` must be created with \`${kind}()\`, but it is ${got}`);
        }
        this.#functions.set(`${kind} ${name}`, value);
      }
    }
  }

  /** Returns the list of functions for the host. */
  describe(): string {
    const functions = [...this.#functions].map(([key, { kind, description }]) => ({
      kind,
      name: key.slice(kind.length + 1),
      description,
    }));
    return JSON.stringify({ sdk: { name: sdkName, version: sdkVersion }, functions });
  }

  /** Runs a function. Input and output are JSON texts. */
  invoke(kind: string, name: string, input: string | undefined): Promise<string | undefined> {
    return new Promise((resolve, reject) => this.start(kind, name, input, resolve, reject));
  }

  /** Like `invoke`, without a promise for functions that are not async. */
  start(
    kind: string,
    name: string,
    input: string | undefined,
    succeeded: (output: string | undefined) => void,
    failed: (error: unknown) => void,
  ): void {
    const ended = (output: unknown): void => {
      let text: string | undefined;
      try {
        text = kind === "action" && output !== undefined ? serializeOutput(output) : undefined;
      } catch (error) {
        broken(error);
        return;
      }
      const unsaved = takeUnsaved();
      if (unsaved === undefined) succeeded(text);
      else failed(unsaved);
    };
    const broken = (error: unknown): void => {
      // The function's own error is more important.
      takeUnsaved();
      failed(error);
    };
    let result: unknown;
    try {
      const called = this.#functions.get(`${kind} ${name}`);
      if (called === undefined) {
        throw new SynclineError("unknown-function", `this component has no ${kind} \`${name}\``);
      }
      result = called.run(this.#argument(kind, input) as never);
    } catch (error) {
      broken(error);
      return;
    }
    if (typeof (result as PromiseLike<unknown> | undefined)?.then === "function") {
      (result as PromiseLike<unknown>).then(ended, broken);
    } else {
      ended(result);
    }
  }

  #argument(kind: string, input: string | undefined): unknown {
    if (kind === "sync" || input === undefined) return undefined;
    const value: unknown = json.parse(input);
    return kind === "lifecycle" ? (value as { event: LifecycleEvent }).event : value;
  }
}

function serializeOutput(output: unknown): string {
  try {
    return json.stringify(output);
  } catch (error) {
    const message = `could not serialize the output as JSON: ${(error as Error).message}`;
    throw new SynclineError("invalid-output", message, undefined, { cause: error });
  }
}

/**
 * Registers the functions of an integration. The entry file exports the result as its default:
 *
 *     export default integration<Integrations["github"]>({ syncs: { issues } });
 */
export function integration(functions: AnyFunctions): Integration;
export function integration<F extends FunctionTypes>(functions: FunctionsOf<F>): Integration;
export function integration(functions: AnyFunctions): Integration {
  return new Integration(functions);
}
