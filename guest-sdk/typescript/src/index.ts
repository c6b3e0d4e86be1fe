/** Functions of Syncline integrations in TypeScript. */
export { SynclineError } from "./error.ts";
export {
  action,
  integration,
  lifecycle,
  sync,
  webhook,
  type Action,
  type FunctionTypes,
  type Integration,
  type Lifecycle,
  type LifecycleEvent,
  type Sync,
  type Webhook,
  type WebhookCall,
} from "./integration.ts";
export * as http from "./http.ts";
export type { Body, RequestOptions } from "./http.ts";
export { Paging, type Page, type PagingOptions } from "./paging.ts";
export { ok } from "./response.ts";
export { Writer, records, type Counts, type Id } from "./records.ts";
export * as checkpoint from "./checkpoint.ts";
export * as connection from "./connection.ts";
export * as env from "./env.ts";
export * as json from "./json.ts";
export * as log from "./log.ts";
export * as run from "./run.ts";
export type { Project, ProjectIntegration, ProjectModel, Schema } from "./project.ts";
