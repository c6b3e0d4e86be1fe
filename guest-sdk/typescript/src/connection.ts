/** The connection for which the function runs: one end user's account at the provider. */
import { calling } from "./error.ts";
import { host } from "./host.ts";
import * as json from "./json.ts";

export interface Info {
  connectionId: string;
  integration: string;
  provider: string;
  environment: string;
  /** The connection's configuration, such as a subdomain. */
  config: Record<string, unknown>;
  tags: Record<string, string>;
}

export function info(): Info {
  const info = host().connection.get();
  return { ...info, config: json.parse(info.config), tags: json.parse(info.tags) };
}

/** Returns the JSON object that your backend and your functions share. */
export function metadata<T extends object = Record<string, unknown>>(): T {
  return json.parse(host().connection.metadata());
}

/** Replaces the metadata. */
export function setMetadata(metadata: object): void {
  calling(() => host().connection.setMetadata(json.stringify(metadata)));
}

/** Replaces the keys that `changes` contains, and keeps the others. */
export function updateMetadata(changes: object): void {
  calling(() => host().connection.updateMetadata(json.stringify(changes)));
}

/**
 * Returns the credentials, refreshed if they are about to expire. Throws `not-allowed` unless `syncline.toml` says
 * `credentials = true`, and `credentials-unavailable` if they cannot be refreshed.
 */
export function credentials<T extends object = Record<string, unknown>>(): T {
  return json.parse(calling(() => host().connection.credentials()));
}
