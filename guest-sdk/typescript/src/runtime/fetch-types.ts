/** `Headers`, `Request`, `Response`, `AbortController` and `AbortSignal`, without streams. */
import { startTimer } from "./events.ts";
import { ComponentTextDecoder, encodeUtf8 } from "./text.ts";

type Pairs = Iterable<readonly [string, string]>;
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;

export class ComponentHeaders {
  /** Names are in lower case. A header that occurs twice is listed twice. */
  readonly #list: [string, string][] = [];

  constructor(init?: Pairs | Record<string, string> | null) {
    if (init == null) return;
    const pairs = Symbol.iterator in init ? (init as Pairs) : Object.entries(init);
    for (const [name, value] of pairs) this.append(name, value);
  }

  append(name: string, value: string): void {
    this.#list.push([nameOf(name), valueOf(value)]);
  }

  set(name: string, value: string): void {
    this.delete(name);
    this.append(name, value);
  }

  delete(name: string): void {
    const lower = nameOf(name);
    for (let at = this.#list.length - 1; at >= 0; at -= 1) if (this.#list[at]?.[0] === lower) this.#list.splice(at, 1);
  }

  has(name: string): boolean {
    return this.get(name) !== null;
  }

  get(name: string): string | null {
    const lower = nameOf(name);
    const values = this.#list.filter(([present]) => present === lower).map(([, value]) => value);
    return values.length === 0 ? null : values.join(", ");
  }

  getSetCookie(): string[] {
    return this.#list.filter(([name]) => name === "set-cookie").map(([, value]) => value);
  }

  forEach(call: (value: string, name: string, headers: this) => void, receiver?: unknown): void {
    for (const [name, value] of this) call.call(receiver, value, name, this);
  }

  *entries(): IterableIterator<[string, string]> {
    const names = [...new Set(this.#list.map(([name]) => name))].sort();
    for (const name of names) {
      if (name === "set-cookie") for (const cookie of this.getSetCookie()) yield [name, cookie];
      else yield [name, this.get(name) as string];
    }
  }

  *keys(): IterableIterator<string> {
    for (const [name] of this) yield name;
  }

  *values(): IterableIterator<string> {
    for (const [, value] of this) yield value;
  }

  [Symbol.iterator](): IterableIterator<[string, string]> {
    return this.entries();
  }
}

function nameOf(name: string): string {
  const text = String(name);
  if (!TOKEN.test(text)) throw new TypeError(`\`${text}\` is not a valid name of a header`);
  return text.toLowerCase();
}

function valueOf(value: string): string {
  const text = String(value).replace(/^[\t\n\r ]+|[\t\n\r ]+$/g, "");
  if (/[\0\r\n]/.test(text)) throw new TypeError("the value of a header must not contain a line break or NUL");
  return text;
}

abstract class Message {
  readonly headers: ComponentHeaders;
  readonly #bytes: Uint8Array | null;
  #used = false;

  constructor(body: unknown, headers: ConstructorParameters<typeof ComponentHeaders>[0]) {
    this.headers = new ComponentHeaders(headers);
    const [bytes, type] = bodyOf(body);
    this.#bytes = bytes;
    if (type !== undefined && !this.headers.has("content-type")) this.headers.set("content-type", type);
  }

  get bodyUsed(): boolean {
    return this.#used;
  }

  /** Streams are not supported: this throws, so that libraries do not take the body for an empty one. */
  get body(): null {
    if (this.#bytes === null) return null;
    throw new TypeError("a component has no streams; use `text()`, `json()` or `arrayBuffer()` instead of `body`");
  }

  async bytes(): Promise<Uint8Array> {
    if (this.#used) throw new TypeError("the body has been read already");
    this.#used = this.#bytes !== null;
    return this.#bytes ?? new Uint8Array();
  }

  async arrayBuffer(): Promise<ArrayBuffer> {
    const bytes = await this.bytes();
    return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength) as ArrayBuffer;
  }

  async text(): Promise<string> {
    return new ComponentTextDecoder().decode(await this.bytes());
  }

  async json(): Promise<unknown> {
    return JSON.parse(await this.text());
  }

  /** The body, for a copy of this object. */
  protected copy(): Uint8Array | null {
    if (this.#used) throw new TypeError("the body has been read already");
    return this.#bytes;
  }

  /** Whether there is a body, and the body. */
  static bodyOf(message: Message): Uint8Array | null {
    return message.#bytes;
  }
}

export class ComponentRequest extends Message {
  readonly method: string;
  readonly url: string;
  readonly signal: ComponentAbortSignal;

  constructor(input: string | URL | ComponentRequest, init: RequestInit = {}) {
    const from = input instanceof ComponentRequest ? input : undefined;
    super(init.body ?? from?.copy() ?? null, (init.headers ?? from?.headers) as never);
    this.method = (init.method ?? from?.method ?? "GET").toUpperCase();
    this.url = from ? from.url : String(input);
    this.signal = (init.signal as ComponentAbortSignal | null | undefined) ?? from?.signal ?? new ComponentAbortSignal();
  }

  override get body(): null {
    // `fetch` of the SDK asks only whether there is one.
    return Message.bodyOf(this) as null;
  }

  clone(): ComponentRequest {
    return new ComponentRequest(this);
  }
}

export class ComponentResponse extends Message {
  readonly status: number;
  readonly statusText: string;
  readonly type = "default";
  readonly redirected = false;
  readonly url: string = "";

  constructor(body?: unknown, init: ResponseInit = {}) {
    super(body ?? null, init.headers as never);
    this.status = init.status ?? 200;
    this.statusText = init.statusText ?? "";
  }

  get ok(): boolean {
    return this.status >= 200 && this.status < 300;
  }

  clone(): ComponentResponse {
    const { status, statusText } = this;
    const copy = new ComponentResponse(this.copy(), { status, statusText, headers: this.headers as never });
    Object.defineProperty(copy, "url", { value: this.url });
    return copy;
  }

  static json(value: unknown, init: ResponseInit = {}): ComponentResponse {
    const response = new ComponentResponse(JSON.stringify(value), init);
    if (!new ComponentHeaders(init.headers as never).has("content-type")) {
      response.headers.set("content-type", "application/json");
    }
    return response;
  }
}

function bodyOf(body: unknown): [bytes: Uint8Array | null, contentType: string | undefined] {
  if (body === null || body === undefined) return [null, undefined];
  if (body instanceof Uint8Array) return [body, undefined];
  if (body instanceof ArrayBuffer) return [new Uint8Array(body), undefined];
  if (ArrayBuffer.isView(body)) return [new Uint8Array(body.buffer, body.byteOffset, body.byteLength), undefined];
  if (body instanceof URLSearchParams) {
    return [encodeUtf8(body.toString()), "application/x-www-form-urlencoded;charset=UTF-8"];
  }
  return [encodeUtf8(String(body)), "text/plain;charset=UTF-8"];
}

export class ComponentAbortSignal {
  aborted = false;
  reason: unknown;
  onabort: (() => void) | null = null;
  readonly #listeners = new Set<() => void>();
  /** The time limit of `AbortSignal.timeout`, which the host applies to requests. */
  timeoutMs: number | undefined;

  static abort(reason?: unknown): ComponentAbortSignal {
    const signal = new ComponentAbortSignal();
    abort(signal, reason);
    return signal;
  }

  static timeout(milliseconds: number): ComponentAbortSignal {
    const signal = new ComponentAbortSignal();
    signal.timeoutMs = milliseconds;
    const expire = () => abort(signal, new DOMException("the operation timed out", "TimeoutError"));
    startTimer(expire, milliseconds, false);
    return signal;
  }

  static any(signals: Iterable<ComponentAbortSignal>): ComponentAbortSignal {
    const any = new ComponentAbortSignal();
    for (const signal of signals) {
      if (signal.aborted) abort(any, signal.reason);
      else signal.addEventListener("abort", () => abort(any, signal.reason));
      any.timeoutMs = Math.min(any.timeoutMs ?? Infinity, signal.timeoutMs ?? Infinity);
    }
    if (any.timeoutMs === Infinity) any.timeoutMs = undefined;
    return any;
  }

  throwIfAborted(): void {
    if (this.aborted) throw this.reason;
  }

  addEventListener(type: string, listener: () => void): void {
    if (type === "abort") this.#listeners.add(listener);
  }

  removeEventListener(_type: string, listener: () => void): void {
    this.#listeners.delete(listener);
  }

  static {
    abort = (signal, reason) => {
      if (signal.aborted) return;
      signal.aborted = true;
      signal.reason = reason ?? new DOMException("the operation was aborted", "AbortError");
      signal.onabort?.();
      for (const listener of signal.#listeners) listener();
    };
  }
}

var abort: (signal: ComponentAbortSignal, reason?: unknown) => void;

export class ComponentAbortController {
  readonly signal = new ComponentAbortSignal();

  abort(reason?: unknown): void {
    abort(this.signal, reason);
  }
}
