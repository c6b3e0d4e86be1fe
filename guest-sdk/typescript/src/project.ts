/** The part of `syncline.toml` that the fake host needs, as `syncline generate` prints it in `models.ts`. */

/** A JSON Schema (2020-12). */
export type Schema = { readonly [keyword: string]: unknown };

export interface ProjectFunction {
  /** The models whose records the function saves. */
  readonly models: readonly string[];
}

export interface ProjectIntegration {
  readonly provider: string;
  readonly syncs?: { readonly [name: string]: ProjectFunction };
  readonly actions?: {
    readonly [name: string]: ProjectFunction & { readonly input?: Schema; readonly output?: Schema };
  };
  readonly webhooks?: { readonly [name: string]: ProjectFunction };
  readonly lifecycle?: { readonly [name: string]: ProjectFunction };
}

export interface Project {
  readonly name: string;
  readonly models: {
    readonly [name: string]: { readonly onBadRecord?: "fail" | "set_aside"; readonly schema: Schema };
  };
  readonly integrations: { readonly [key: string]: ProjectIntegration };
}
