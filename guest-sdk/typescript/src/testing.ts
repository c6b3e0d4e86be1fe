/**
 * A fake host, with which functions are tested without a sandbox or a network. It stores records like the real host, and
 * checks records, inputs and outputs against the models of `syncline.toml`.
 *
 *     const host = new Host(project);
 *     host.answer("GET /v1/customers?limit=100", [{ id: "cus_1" }]);
 *     await host.sync(shop, "customers");
 *     assert.equal(host.records("Customer").length, 1);
 */
import { Validator, type OutputUnit } from "@cfworker/json-schema";
import { SynclineError, type Failure } from "./error.ts";
import { fetch } from "./fetch.ts";
import { setHost, type Change, type Host as Imports, type HostRequest, type HostResponse, type Level } from "./host.ts";
import type { Integration, LifecycleEvent } from "./integration.ts";
import * as json from "./json.ts";
import type { Project, ProjectAction, ProjectFunction, ProjectIntegration, Schema } from "./project.ts";

export type { Level } from "./host.ts";

/** A request that a function has sent. */
export interface SentRequest {
  /** Method, URL and query without percent-encoding, such as `GET /v1/customers?limit=100`. */
  line: string;
  /** The headers that the function has set. */
  headers: Record<string, string>;
  /** The body. Empty if there was none. */
  body: string;
}

/** A successful commit, which is one transaction. */
export interface Commit {
  /** The payload is `undefined` for deleted records. */
  changes: { model: string; id: string; payload: unknown }[];
  /** The checkpoint that was set in the same transaction. */
  checkpoint: unknown;
}

/** A line of the run's log. */
export interface LogLine {
  level: Level;
  message: string;
  fields: unknown;
}

/** A record that a model with `on_bad_record = "set_aside"` has not accepted. */
export interface DeadLetter {
  id: string;
  payload: unknown;
  problem: string;
}

type Kind = "sync" | "action" | "webhook" | "lifecycle";
type Payload = Record<string, unknown>;

const GROUPS = { sync: "syncs", action: "actions", webhook: "webhooks", lifecycle: "lifecycle" } as const;

export class Host {
  readonly #project: Project;
  readonly #integration: ProjectIntegration;
  readonly #key: string;
  readonly #validators = new Map<unknown, Validator>();
  readonly #answers = new Map<string, HostResponse[]>();
  #records = new Map<string, Map<string, Payload>>();
  readonly #deadLetters = new Map<string, DeadLetter[]>();
  readonly #commits: Commit[] = [];
  readonly #requests: SentRequest[] = [];
  readonly #log: LogLine[] = [];
  readonly #variables = new Map<string, string>();
  #metadata: Payload = {};
  #config: Payload = {};
  #credentials: Payload | undefined;
  #checkpoint: string | undefined;
  #progress: { done: number; total: number | undefined } | undefined;
  #cancelled = false;
  #isFull = false;
  #function: ProjectFunction = { models: [] };

  /**
   * Creates a host without records, metadata, variables or responses. `project` is exported by the generated file
   * `models.ts`. Name the integration if the project has several.
   */
  constructor(project: Project, integration?: string) {
    const keys = Object.keys(project.integrations);
    const key = integration ?? keys[0];
    const found = key === undefined ? undefined : project.integrations[key];
    if (found === undefined || (integration === undefined && keys.length > 1)) {
      throw new Error(`name one of the project's integrations: \`new Host(project, "…")\` with ${keys.join(", ")}`);
    }
    this.#project = project;
    this.#integration = found;
    this.#key = key as string;
  }

  /** Runs a sync. Its errors are thrown. */
  async sync(integration: Integration, name: string): Promise<void> {
    await this.#run(integration, "sync", name, undefined);
  }

  /** Runs an action, and checks its input and output against the models. */
  async action<Output = unknown>(integration: Integration, name: string, input?: unknown): Promise<Output> {
    const action = this.#find("action", name) as ProjectAction;
    const text = input === undefined ? undefined : json.stringify(input);
    if (action.input) this.#check(action.input, text ?? "null", "invalid_action_input", `the input of \`${name}\``);
    const output = await this.#run(integration, "action", name, text);
    if (action.output) {
      this.#check(action.output, output ?? "null", "invalid_action_output", `the output of \`${name}\``);
    }
    return (output === undefined ? undefined : json.parse(output)) as Output;
  }

  /** Runs a webhook function. */
  async webhook(
    integration: Integration,
    name: string,
    call: { headers?: Record<string, string>; body: unknown },
  ): Promise<void> {
    const headers = Object.entries(call.headers ?? {}).map(([name, value]) => [name.toLowerCase(), value]);
    const input = { headers: Object.fromEntries(headers) as Record<string, string>, body: call.body };
    await this.#run(integration, "webhook", name, json.stringify(input));
  }

  /** Runs a lifecycle function. */
  async lifecycle(integration: Integration, event: LifecycleEvent): Promise<void> {
    await this.#run(integration, "lifecycle", event, json.stringify({ event }));
  }

  /**
   * Sets a response. `line` is method, URL and query without percent-encoding, such as `GET /v1/customers?limit=100`.
   * The body is JSON, unless it is a string or bytes. Several responses for one line are returned in turn, and the last
   * one is repeated.
   */
  answer(line: string, body: unknown, options: { status?: number; headers?: Record<string, string> } = {}): this {
    const isJson = typeof body !== "string" && !(body instanceof Uint8Array);
    const bytes = body instanceof Uint8Array ? body : new TextEncoder().encode(isJson ? json.stringify(body) : body as string);
    const headers = new Headers(isJson ? { "content-type": "application/json" } : {});
    for (const [name, value] of Object.entries(options.headers ?? {})) headers.set(name, value);
    const response = { status: options.status ?? 200, headers: [...headers] as [string, string][], body: bytes };
    this.#answers.set(line, [...(this.#answers.get(line) ?? []), response]);
    return this;
  }

  /** Stores a record as if an earlier run had saved it. */
  keep(model: string, record: object): this {
    const id = idOf(record as Payload);
    if (id === undefined) throw new Error(`a record of \`${model}\` has no \`id\``);
    this.#of(this.#records, model).set(id, json.parse(json.stringify(record)));
    return this;
  }

  /** Sets the checkpoint that the run starts with. */
  setCheckpoint(checkpoint: object): this {
    this.#checkpoint = json.stringify(checkpoint);
    return this;
  }

  /** Sets the connection's metadata. */
  setMetadata(metadata: object): this {
    this.#metadata = { ...metadata };
    return this;
  }

  /** Sets the connection's configuration. */
  setConnectionConfig(config: object): this {
    this.#config = { ...config };
    return this;
  }

  /** Sets the credentials. Without them, reading the credentials fails with `not-allowed`. */
  setCredentials(credentials: object): this {
    this.#credentials = { ...credentials };
    return this;
  }

  /** Sets a variable of the environment. */
  setVariable(name: string, value: string): this {
    this.#variables.set(name, value);
    return this;
  }

  /** Asks the function to stop. */
  cancel(): this {
    this.#cancelled = true;
    return this;
  }

  /** Makes the run full: the host deletes the records that it does not save. */
  runFully(): this {
    this.#isFull = true;
    return this;
  }

  /** Returns the current records of a model, sorted by id. */
  records<T = Payload>(model: string): T[] {
    const kept = [...(this.#records.get(model) ?? [])];
    return kept.sort(([a], [b]) => (a < b ? -1 : 1)).map(([, payload]) => payload as T);
  }

  /** Returns the records that a model with `on_bad_record = "set_aside"` has not accepted. */
  deadLetters(model: string): DeadLetter[] {
    return [...(this.#deadLetters.get(model) ?? [])];
  }

  /** Returns the current checkpoint. */
  checkpoint<T = Payload>(): T | undefined {
    return this.#checkpoint === undefined ? undefined : json.parse(this.#checkpoint);
  }

  /** Returns the connection's current metadata. */
  metadata<T = Payload>(): T {
    return this.#metadata as T;
  }

  commits(): Commit[] {
    return [...this.#commits];
  }

  requests(): SentRequest[] {
    return [...this.#requests];
  }

  log(): LogLine[] {
    return [...this.#log];
  }

  /** Returns the progress that the function last reported. */
  progress(): { done: number; total: number | undefined } | undefined {
    return this.#progress;
  }

  async #run(integration: Integration, kind: Kind, name: string, input: string | undefined): Promise<string | undefined> {
    this.#function = this.#find(kind, name);
    const previousHost = setHost(this.#imports);
    const previousFetch = globalThis.fetch;
    globalThis.fetch = fetch as typeof globalThis.fetch;
    try {
      return await integration.invoke(kind, name, input);
    } finally {
      globalThis.fetch = previousFetch;
      setHost(previousHost);
    }
  }

  #find(kind: Kind, name: string): ProjectFunction {
    const found = this.#integration[GROUPS[kind]][name];
    if (found) return found;
    const names = Object.keys(this.#integration[GROUPS[kind]]).join(", ") || "no function";
    throw new Error(`syncline.toml has no ${kind} \`${name}\` in \`${this.#key}\`; it has ${names}`);
  }

  readonly #imports: Imports = {
    send: async (request) => this.#send(request),
    records: {
      commit: (changes, checkpoint) => this.#commit(changes, checkpoint),
      get: (model, ids) => {
        this.#requireModel(model);
        return ids.map((id) => {
          const payload = this.#records.get(model)?.get(id);
          return payload && json.stringify(payload);
        });
      },
    },
    checkpoint: { get: () => this.#checkpoint },
    connection: {
      get: () => ({
        connectionId: "connection-1",
        integration: this.#key,
        provider: this.#integration.provider,
        environment: "test",
        config: json.stringify(this.#config),
        tags: "{}",
      }),
      metadata: () => json.stringify(this.#metadata),
      setMetadata: (metadata) => {
        this.#metadata = json.parse(metadata);
      },
      updateMetadata: (changes) => {
        Object.assign(this.#metadata, json.parse(changes));
      },
      credentials: () => {
        if (this.#credentials) return json.stringify(this.#credentials);
        throw refusal("not-allowed", "the test has not set credentials with `setCredentials`");
      },
    },
    environment: { variables: () => [...this.#variables] },
    log: {
      write: (level, message, fields) => {
        this.#log.push({ level, message, fields: fields === undefined ? undefined : json.parse(fields) });
      },
      panicked: () => undefined,
    },
    run: {
      get: () => ({ id: "00000000-0000-4000-8000-000000000000", variant: "base", attempt: 1 }),
      isFull: () => this.#isFull,
      progress: (done, total) => {
        this.#progress = { done, total };
      },
      cancelled: () => this.#cancelled,
      now: () => Date.now(),
    },
  };

  #send(request: HostRequest): HostResponse {
    let line = `${request.method} ${request.url}`;
    for (const [name, value] of request.query) line += `${line.includes("?") ? "&" : "?"}${name}=${value}`;
    const body = new TextDecoder().decode(request.body);
    this.#requests.push({ line, headers: Object.fromEntries(request.headers), body });
    const answers = this.#answers.get(line);
    const answer = answers && answers.length > 1 ? answers.shift() : answers?.[0];
    if (answer) return answer;
    const known = [...this.#answers.keys()].map((known) => `\n  ${known}`).join("") || " nothing";
    throw new Error(`no response is set for \`${line}\`; responses are set for${known}`);
  }

  #commit(changes: Change[], checkpoint: string | undefined) {
    const counts = { added: 0, updated: 0, deleted: 0, unchanged: 0 };
    const commit: Commit = { changes: [], checkpoint: undefined };
    const records = new Map([...this.#records].map(([model, kept]) => [model, new Map(kept)]));
    const deadLetters: [string, DeadLetter][] = [];
    for (const { tag, val } of changes) {
      this.#requireModel(val.model);
      const kept = this.#of(records, val.model);
      if (tag === "delete") {
        for (const id of val.ids) {
          if (kept.delete(id)) counts.deleted += 1;
          commit.changes.push({ model: val.model, id, payload: undefined });
        }
        continue;
      }
      const bad: { index: number; path: string; problem: string }[] = [];
      (json.parse(val.items) as Payload[]).forEach((item, index) => {
        const id = idOf(item);
        if (id === undefined) {
          bad.push({ index, path: "/id", problem: "the record needs an `id`, which is a string or an integer" });
          return;
        }
        const before = kept.get(id);
        if (tag === "update" && before === undefined) return;
        const payload = tag === "update" ? (merge(before, item) as Payload) : item;
        const problem = this.#problem({ $ref: `#/$defs/${val.model}` }, json.stringify(payload));
        if (problem !== undefined) {
          if (this.#project.models[val.model]?.onBadRecord === "set_aside") {
            deadLetters.push([val.model, { id, payload: item, problem: `at ${problem.path}: ${problem.problem}` }]);
          } else bad.push({ index, ...problem });
          return;
        }
        kept.set(id, payload);
        commit.changes.push({ model: val.model, id, payload });
        if (before === undefined) counts.added += 1;
        else if (json.stringify(sorted(before)) === json.stringify(sorted(payload))) counts.unchanged += 1;
        else counts.updated += 1;
      });
      if (bad.length > 0) {
        const first = bad[0] as (typeof bad)[0];
        const message =
          `${bad.length} records do not match the model \`${val.model}\`; ` +
          `the first at index ${first.index}, at ${first.path}: ${first.problem}`;
        throw refusal("invalid-records", message, bad);
      }
    }
    if (checkpoint !== undefined) {
      const value: unknown = json.parse(checkpoint);
      if (typeof value !== "object" || Array.isArray(value)) {
        throw refusal("invalid-checkpoint", "the checkpoint must be an object or `null`");
      }
      commit.checkpoint = value;
      this.#checkpoint = value === null ? undefined : checkpoint;
    }
    this.#records = records;
    for (const [model, letter] of deadLetters) {
      this.#deadLetters.set(model, [...(this.#deadLetters.get(model) ?? []), letter]);
    }
    this.#commits.push(commit);
    return counts;
  }

  #requireModel(model: string): void {
    if (this.#function.models.includes(model)) return;
    const models = this.#function.models.map((name) => `\`${name}\``).join(", ") || "no model";
    throw refusal("unknown-model", `syncline.toml does not list the model \`${model}\` for the function; it lists ${models}`);
  }

  #of<T>(map: Map<string, Map<string, T>>, model: string): Map<string, T> {
    const inner = map.get(model) ?? new Map<string, T>();
    map.set(model, inner);
    return inner;
  }

  #check(schema: Schema, text: string, code: string, subject: string): void {
    const problem = this.#problem(schema, text);
    if (problem) throw new SynclineError(code, `${subject} does not match its model at ${problem.path}: ${problem.problem}`);
  }

  #problem(schema: Schema, text: string): { path: string; problem: string } | undefined {
    const key = schema.$ref ?? schema;
    let validator = this.#validators.get(key);
    if (validator === undefined) {
      const $defs = Object.fromEntries(Object.entries(this.#project.models).map(([name, model]) => [name, model.schema]));
      validator = new Validator({ ...schema, $defs } as never, "2020-12", false);
      this.#validators.set(key, validator);
    }
    const { valid, errors } = validator.validate(JSON.parse(text));
    if (valid) return undefined;
    const deepest = errors.reduce<OutputUnit | undefined>(
      (found, error) => (found && depth(found) >= depth(error) ? found : error),
      undefined,
    );
    return { path: deepest?.instanceLocation.slice(1) || "/", problem: deepest?.error ?? "does not match" };
  }
}

function depth(error: OutputUnit): number {
  return error.instanceLocation.split("/").length;
}

/** An error as a call of the real host throws it. */
function refusal(code: string, message: string, details?: unknown): Error {
  const payload: Failure = { code, message, ...(details === undefined ? {} : { details: json.stringify(details) }) };
  return Object.assign(new Error(message), { payload });
}

function idOf(record: Payload): string | undefined {
  const { id } = record;
  if (typeof id === "bigint" || (typeof id === "number" && Number.isInteger(id))) return String(id);
  if (typeof id !== "string" || id.includes("\0")) return undefined;
  const { length } = new TextEncoder().encode(id);
  return length >= 1 && length <= 255 ? id : undefined;
}

function merge(kept: unknown, changes: unknown): unknown {
  if (!isObject(kept) || !isObject(changes)) return changes;
  const merged = { ...kept };
  for (const [key, value] of Object.entries(changes)) merged[key] = merge(kept[key], value);
  return merged;
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (!isObject(value)) return value;
  return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)).map(([key, inner]) => [key, sorted(inner)]));
}

function isObject(value: unknown): value is Payload {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
