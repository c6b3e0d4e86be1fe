/** Checks of responses. */

import { SynclineError } from "./error.ts";
import { targetOf } from "./fetch.ts";

/** Maximum number of body bytes in the details of a `provider-http-error`. */
const MAX_ERROR_BODY_BYTES = 10_000;

/**
 * Throws `provider-http-error` for a response with a status of 400 or above, for which the caller of an action receives
 * status 424. The details contain the status, the headers, and the first 10,000 bytes of the body.
 *
 *     const response = await ok(fetch("/v1/customers/cus_1"));
 */
export async function ok(pending: Response | PromiseLike<Response>): Promise<Response> {
  const response = await pending;
  if (response.status < 400) return response;
  const headers: Record<string, string> = {};
  // A session cookie is a secret, and details are stored and shown.
  for (const [name, value] of response.headers) if (name !== "set-cookie") headers[name] = value;
  const bytes = new Uint8Array(await response.arrayBuffer()).subarray(0, MAX_ERROR_BODY_BYTES);
  const details = { status: response.status, headers, body: new TextDecoder().decode(bytes) };
  throw new SynclineError("provider-http-error", `${targetOf(response)} returned status ${response.status}`, details);
}

/** The error for a well-formed response that the function cannot use. */
export function unexpected(response: Response, problem: string): SynclineError {
  return new SynclineError("unexpected-response", `${targetOf(response)} returned an unexpected body: ${problem}`);
}
