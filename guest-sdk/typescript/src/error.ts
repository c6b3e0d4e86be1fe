/** The error type of functions: a code for programs, a message for people, and details. */
import * as json from "./json.ts";

/** A failure as the host passes it, with details as JSON text. */
export interface Failure {
  code: string;
  message: string;
  details?: string | null;
}

/**
 * The reason why an operation failed. A function that throws it ends its run with it. The caller of an action sees the
 * message and the details, so they must not contain secrets.
 */
export class SynclineError extends Error {
  override readonly name = "SynclineError";
  /** A stable identifier in kebab case, such as `customer-is-archived`. The host can add new codes. */
  readonly code: string;
  /** Any JSON value, for programs. */
  readonly details: unknown;

  constructor(code: string, message: string, details?: unknown, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
    this.details = details;
  }

  /** An error for an input that the function cannot use. */
  static invalidInput(message: string, details?: unknown): SynclineError {
    return new SynclineError("invalid-input", message, details);
  }

  /** Returns the error as the host receives it. Details that JSON cannot represent are dropped. */
  toFailure(): Failure {
    let details: string | undefined;
    try {
      details = this.details === undefined ? undefined : json.stringify(this.details);
    } catch {
      details = undefined;
    }
    return { code: this.code, message: this.message, ...(details === undefined ? {} : { details }) };
  }
}

/** Calls a function of the host and converts its failure. */
export function calling<T>(work: () => T): T {
  try {
    return work();
  } catch (thrown) {
    throw fromHost(thrown);
  }
}

/** Converts what a call of the host has thrown. */
export function fromHost(thrown: unknown): unknown {
  const failure = (thrown as { payload?: Failure } | undefined)?.payload;
  if (typeof failure?.code !== "string") return thrown;
  const details = typeof failure.details === "string" ? json.parse(failure.details) : undefined;
  return new SynclineError(failure.code, failure.message, details);
}
