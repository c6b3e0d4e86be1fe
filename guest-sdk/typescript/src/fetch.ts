/** Requests to the host and its responses in the form of `fetch`. */
import { fromHost, SynclineError } from "./error.ts";
import { host, type HostRequest, type Pair } from "./host.ts";

/** Method and URL of the request of each response, for messages. */
const targets = new WeakMap<Response, string>();

/** Returns method and URL of the request of a response. */
export function targetOf(response: Response): string {
  return targets.get(response) ?? (response.url || "the request");
}

const WITHOUT_BODY = new Set([101, 204, 205, 304]);

/** Sends a request to the host and returns its response. */
export async function send(request: HostRequest, signal?: AbortSignal | null): Promise<Response> {
  signal?.throwIfAborted();
  let answer;
  try {
    answer = await host().send(request);
  } catch (thrown) {
    throw fromHost(thrown);
  }
  signal?.throwIfAborted();
  const body = WITHOUT_BODY.has(answer.status) ? null : (answer.body as BodyInit);
  const response = new Response(body, { status: answer.status, headers: answer.headers });
  Object.defineProperty(response, "url", { value: request.url, configurable: true });
  targets.set(response, `${request.method} ${request.url}`);
  return response;
}

/**
 * The ordinary `fetch`, which a component has as a global. The host sends the request, adds the connection's
 * credentials if the URL belongs to the provider, retries it and follows redirects. A URL can be a path such as
 * `/v1/customers`, which is resolved against the provider's base URL. Other hosts must be in `allow_hosts`.
 */
export async function fetch(input: string | URL | Request, init: RequestInit = {}): Promise<Response> {
  const request = typeof input === "object" && "method" in input ? input : undefined;
  const headers = new Headers(init.headers ?? request?.headers);
  let body: Uint8Array | undefined;
  if (init.body != null) {
    const [bytes, type] = encodeBody(init.body);
    body = bytes;
    if (type !== undefined && !headers.has("content-type")) headers.set("content-type", type);
  } else if (request?.body != null) {
    body = new Uint8Array(await request.arrayBuffer());
  }
  return send(
    {
      method: (init.method ?? request?.method ?? "GET").toUpperCase(),
      url: request ? request.url : String(input),
      query: [],
      headers: [...headers] as Pair[],
      body,
      timeoutMs: timeoutOf(init.signal),
    },
    init.signal ?? request?.signal,
  );
}

/** The time limit of a signal of `AbortSignal.timeout`, in a component. */
function timeoutOf(signal: AbortSignal | null | undefined): number | undefined {
  return (signal as { timeoutMs?: number } | null | undefined)?.timeoutMs;
}

/** Returns the bytes of a body and its default content type. */
export function encodeBody(body: unknown): [bytes: Uint8Array, contentType: string | undefined] {
  if (typeof body === "string") return [new TextEncoder().encode(body), "text/plain;charset=UTF-8"];
  if (body instanceof URLSearchParams) {
    return [new TextEncoder().encode(body.toString()), "application/x-www-form-urlencoded;charset=UTF-8"];
  }
  if (body instanceof Uint8Array) return [body, undefined];
  if (body instanceof ArrayBuffer) return [new Uint8Array(body), undefined];
  if (ArrayBuffer.isView(body)) return [new Uint8Array(body.buffer, body.byteOffset, body.byteLength), undefined];
  throw new SynclineError(
    "invalid-request",
    "the body of a request must be a string, a Uint8Array, an ArrayBuffer or URLSearchParams",
  );
}
