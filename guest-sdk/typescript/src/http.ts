/**
 * Requests to the provider. The host adds the connection's credentials; a function never sees them.
 *
 *     const customer = await http.get("/v1/customers/cus_1", { query: { expand: "tax" } }).json<Customer>();
 */
import { SynclineError } from "./error.ts";
import { encodeBody, send } from "./fetch.ts";
import type { HostRequest, Pair } from "./host.ts";
import * as json from "./json.ts";
import { fetchPages, type Page, type Paging } from "./paging.ts";
import { ok, unexpected } from "./response.ts";

export type Body = string | Uint8Array | ArrayBuffer | URLSearchParams;

type QueryValue = string | number | bigint | boolean | null | undefined;

export interface RequestOptions {
  /** Parameters that the host encodes and appends to the URL. A list adds one for each element; `undefined` and `null` none. */
  query?: Readonly<Record<string, QueryValue | readonly QueryValue[]>> | undefined;
  headers?: Readonly<Record<string, string>> | undefined;
  /** A JSON body. Sets the header `content-type`, unless `headers` has one. */
  json?: unknown;
  /** A form body. Nested fields are written as `address[city]=Berlin`; `undefined` and `null` are omitted. */
  form?: object | undefined;
  /** Any other body. */
  body?: Body | undefined;
  /**
   * The number of retries after a network error, a 429 or a 5xx status. By default, the host retries methods that are
   * safe to repeat.
   */
  retries?: number | undefined;
  /** The time limit of one attempt in milliseconds. */
  timeoutMs?: number | undefined;
}

/**
 * A request that has been sent. `await` returns the response, whatever its status. The methods throw
 * `provider-http-error` if the status is 400 or above.
 */
export class PendingResponse implements PromiseLike<Response> {
  readonly #response: Promise<Response>;

  constructor(response: Promise<Response>) {
    this.#response = response;
  }

  then<A = Response, B = never>(
    fulfilled?: ((response: Response) => A | PromiseLike<A>) | null,
    rejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return this.#response.then(fulfilled, rejected);
  }

  /** Returns the response if its status is below 400. */
  ok(): Promise<Response> {
    return ok(this.#response);
  }

  /** Returns the body as text. */
  async text(): Promise<string> {
    return (await this.ok()).text();
  }

  /** Returns the parsed body. Integers beyond 2^53 become a `bigint`. */
  async json<T = unknown>(): Promise<T> {
    const response = await this.ok();
    const text = await response.text();
    try {
      return json.parse<T>(text);
    } catch (error) {
      throw unexpected(response, (error as Error).message);
    }
  }
}

export function get(url: string | URL, options?: RequestOptions): PendingResponse {
  return request("GET", url, options);
}

export function post(url: string | URL, options?: RequestOptions): PendingResponse {
  return request("POST", url, options);
}

export function put(url: string | URL, options?: RequestOptions): PendingResponse {
  return request("PUT", url, options);
}

export function patch(url: string | URL, options?: RequestOptions): PendingResponse {
  return request("PATCH", url, options);
}

/** Sends a `DELETE` request: `http.delete`. The word `delete` cannot be the name of a function. */
function del(url: string | URL, options?: RequestOptions): PendingResponse {
  return request("DELETE", url, options);
}
export { del as delete };

/**
 * Sends a request with any method. `url` is a path such as `/v1/customers`, which is resolved against the provider's
 * base URL, or an absolute URL on one of the provider's hosts or of the integration's `allow_hosts`.
 *
 * To send several requests at the same time, use `Promise.all`.
 */
export function request(method: string, url: string | URL, options: RequestOptions = {}): PendingResponse {
  return new PendingResponse(start(method, url, options));
}

async function start(method: string, url: string | URL, options: RequestOptions): Promise<Response> {
  return send(hostRequest(method, url, options));
}

/**
 * Requests the pages of a list, one after another:
 *
 *     for await (const page of http.pages<Order>("/orders", Paging.link())) orders.saveAll(page);
 */
export function pages<T>(
  url: string | URL,
  paging: Paging,
  options: RequestOptions & { method?: string } = {},
): AsyncGenerator<Page<T>, void, undefined> {
  return fetchPages<T>(hostRequest(options.method ?? "GET", url, options), paging);
}

function hostRequest(method: string, url: string | URL, options: RequestOptions): HostRequest {
  const headers = Object.entries(options.headers ?? {});
  const target = `${method} ${url}`;
  let body: Uint8Array | undefined;
  let contentType: string | undefined;
  if (options.json !== undefined) {
    body = new TextEncoder().encode(serialize(target, options.json));
    contentType = "application/json";
  } else if (options.form !== undefined) {
    [body] = encodeBody(form(options.form));
    contentType = "application/x-www-form-urlencoded";
  } else if (options.body !== undefined) {
    [body, contentType] = encodeBody(options.body);
  }
  if (contentType !== undefined && !headers.some(([name]) => name.toLowerCase() === "content-type")) {
    headers.push(["content-type", contentType]);
  }
  const query = Object.entries(options.query ?? {}).flatMap(([name, value]) =>
    (Array.isArray(value) ? (value as QueryValue[]) : [value as QueryValue])
      .filter((value) => value !== undefined && value !== null)
      .map((value): Pair => [name, String(value)]),
  );
  return { method, url: String(url), query, headers, body, retries: options.retries, timeoutMs: options.timeoutMs };
}

function serialize(target: string, body: unknown): string {
  try {
    return json.stringify(body);
  } catch (error) {
    const message = `could not serialize the body of ${target} as JSON: ${(error as Error).message}`;
    throw new SynclineError("invalid-request", message, undefined, { cause: error });
  }
}

function form(body: object): string {
  const fields = new URLSearchParams();
  const append = (name: string, value: unknown): void => {
    if (value === undefined || value === null) return;
    if (typeof value !== "object") fields.append(name, String(value));
    else if (value instanceof Date) fields.append(name, value.toISOString());
    else for (const [key, inner] of Object.entries(value)) append(`${name}[${key}]`, inner);
  };
  for (const [name, value] of Object.entries(body)) append(name, value);
  return fields.toString();
}
