/** The part of `syncline.toml` that the fake host needs, as `syncline generate` prints it in `models.ts`. */

/** A JSON Schema (2020-12). References such as `#/$defs/Customer` are to `Project.models`. */
export type Schema = { readonly [keyword: string]: unknown };

export interface ProjectModel {
  readonly schema: Schema;
  readonly onBadRecord?: "fail" | "set_aside";
}

export interface ProjectFunction {
  /** The models whose records the function saves. */
  readonly models: readonly string[];
}

export interface ProjectAction extends ProjectFunction {
  readonly input?: Schema;
  readonly output?: Schema;
}

export interface ProjectIntegration {
  readonly provider: string;
  readonly syncs: { readonly [name: string]: ProjectFunction };
  readonly actions: { readonly [name: string]: ProjectAction };
  readonly webhooks: { readonly [name: string]: ProjectFunction };
  readonly lifecycle: { readonly [event: string]: ProjectFunction };
}

export interface Project {
  readonly name: string;
  readonly models: { readonly [name: string]: ProjectModel };
  readonly integrations: { readonly [key: string]: ProjectIntegration };
}
