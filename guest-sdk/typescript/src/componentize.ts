#!/usr/bin/env node
/** The command `syncline-componentize`: builds the component of the project in the current folder. */
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, rename, rm, stat, utimes, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { componentize } from "componentize-qjs";
import * as esbuild from "esbuild";
import { originalPlace, originalStack, SOURCE_MAP, type SourceMap } from "./runtime/source-map.ts";

const USAGE = `Usage: syncline-componentize --out FILE.wasm [--watch] [--timings]

Builds the component of the project in the current folder. Its entry file is "main" of package.json, by default
src/index.ts.

  --out FILE.wasm  the component to write
  --watch          build again after each change, until the command is stopped
  --timings        print how long each step has taken`;

const SDK = dirname(fileURLToPath(import.meta.url));
const PACKAGE = dirname(SDK);
const WIT = join(PACKAGE, "wit");
/** Copied from the repository when the SDK is built. */
const INTERFACES = join(WIT, "deps", "syncline-integration");

const ENGINE = (createRequire(import.meta.url)("componentize-qjs/package.json") as { version: string }).version;

/** A mistake that the author can correct. */
class Mistake extends Error {}

interface Options {
  project: string;
  out: string;
  timings: boolean;
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      out: { type: "string" },
      watch: { type: "boolean", default: false },
      timings: { type: "boolean", default: false },
      help: { type: "boolean", short: "h", default: false },
    },
  });
  if (values.help) {
    console.log(USAGE);
    return;
  }
  if (values.out === undefined) throw new Mistake(`\`--out FILE.wasm\` is missing\n\n${USAGE}`);
  if (!existsSync(join(INTERFACES, "world.wit"))) {
    throw new Mistake(
      `the WIT files of @syncline/sdk are missing in ${INTERFACES}. In a copy of the Syncline repository, ` +
        `run \`npm run build\` in ${PACKAGE}. Otherwise, install the package again`,
    );
  }
  const options = { project: process.cwd(), out: resolve(values.out), timings: values.timings ?? false };
  if (values.watch) await watch(options);
  else await buildOnce(options);
}

async function buildOnce(options: Options): Promise<void> {
  const started = performance.now();
  let result;
  try {
    result = await esbuild.build(await bundling(options.project));
  } catch (error) {
    throw explained(error, options.project);
  }
  await finish(options, result, started);
}

async function watch(options: Options): Promise<void> {
  const end: esbuild.Plugin = {
    name: "syncline-watch",
    setup(build) {
      let started = 0;
      build.onStart(() => {
        started = performance.now();
      });
      build.onEnd(async (result) => {
        try {
          if (result.errors.length > 0) throw explained({ errors: result.errors }, options.project);
          await finish(options, result as esbuild.BuildResult<{ write: false }>, started);
        } catch (error) {
          report(error);
        }
      });
    },
  };
  const bundle = await bundling(options.project);
  const context = await esbuild.context({ ...bundle, plugins: [...(bundle.plugins ?? []), end] });
  await context.watch();
}

/** Makes the component of a bundled script, and writes it. */
async function finish(
  options: Options,
  result: esbuild.BuildResult<{ write: false }>,
  started: number,
): Promise<void> {
  for (const warning of result.warnings) console.error(await formatted(warning, "warning"));
  const bundled = performance.now();
  const { script, map } = scriptOf(result, options.project);
  const component = await componentOf(options.project, script, map);
  const made = performance.now();
  await writeWhole(options.out, component);
  if (options.timings) {
    const milliseconds = (from: number, to: number) => `${Math.round(to - from)} ms`;
    console.error(
      `bundle ${milliseconds(started, bundled)}, component ${milliseconds(bundled, made)}, ` +
        `${component.length} bytes in ${relative(options.project, options.out)}`,
    );
  }
}

/** The number of components that the cache of a project keeps. */
const CACHED = 8;

/**
 * Makes the component of a script, or takes it from the project's cache. The engine's snapshot contains a time and random
 * numbers, so only the cache makes two builds of one source equal.
 */
async function componentOf(project: string, script: string, map: SourceMap): Promise<Uint8Array> {
  const cache = join(project, "node_modules", ".cache", "syncline-componentize");
  const hash = createHash("sha256").update(script).update(ENGINE);
  for (const file of (await readdir(WIT, { recursive: true })).sort()) {
    if (file.endsWith(".wit")) hash.update(file).update(await readFile(join(WIT, file)));
  }
  const file = join(cache, `${hash.digest("hex")}.wasm`);
  if (existsSync(file)) {
    await utimes(file, new Date(), new Date());
    return readFile(file);
  }
  let component: Uint8Array;
  try {
    ({ component } = await componentize({
      jsSource: script,
      witPath: WIT,
      world: "component",
      sync: true,
      disableGc: true,
    }));
  } catch (error) {
    throw initializationFailed(error as Error, map);
  }
  await writeWhole(file, component);
  await removeOldest(cache);
  return component;
}

async function removeOldest(cache: string): Promise<void> {
  const files = await Promise.all(
    (await readdir(cache))
      .filter((name) => name.endsWith(".wasm"))
      .map(async (name) => ({ path: join(cache, name), used: (await stat(join(cache, name))).mtimeMs })),
  );
  files.sort((a, b) => b.used - a.used);
  await Promise.all(files.slice(CACHED).map(({ path }) => rm(path, { force: true })));
}

/** Writes a file such that no other process reads half of it. */
async function writeWhole(file: string, bytes: Uint8Array): Promise<void> {
  await mkdir(dirname(file), { recursive: true });
  const temporary = `${file}.${process.pid}.tmp`;
  await writeFile(temporary, bytes);
  await rename(temporary, file);
}

async function bundling(project: string): Promise<esbuild.BuildOptions & { write: false }> {
  const entry = await entryFile(project);
  return {
    stdin: {
      contents:
        `import { component } from "@syncline/sdk/component";\n` +
        `import exported from ${JSON.stringify(`./${relative(project, entry).replaceAll("\\", "/")}`)};\n` +
        "export const functions = component(exported);\n",
      resolveDir: project,
      sourcefile: "syncline-sdk:entry",
      loader: "js",
    },
    absWorkingDir: project,
    outfile: join(project, "component.js"),
    bundle: true,
    write: false,
    metafile: true,
    format: "esm",
    platform: "browser",
    mainFields: ["module", "main"],
    conditions: ["worker"],
    target: "es2022",
    // Async functions use the promises of the SDK, whose jobs the SDK can run.
    supported: { "async-await": false, "async-generator": false, "for-await": false },
    external: ["syncline:*", "wasi:*"],
    define: { global: "globalThis", "process.env.NODE_ENV": '"production"' },
    charset: "utf8",
    legalComments: "none",
    sourcemap: "external",
    sourcesContent: false,
    logLevel: "silent",
    plugins: [sdk],
  };
}

/** The SDK that runs this build, even if the project's packages contain several. */
const sdk: esbuild.Plugin = {
  name: "syncline-sdk",
  setup(build) {
    const files: Record<string, string> = { "@syncline/sdk": "index.js", "@syncline/sdk/component": "component.js" };
    build.onResolve({ filter: /^@syncline\/sdk(\/component)?$/ }, ({ path }) => ({
      path: join(SDK, files[path] as string),
      sideEffects: path.endsWith("component"),
    }));
  },
};

async function entryFile(project: string): Promise<string> {
  const manifest = join(project, "package.json");
  if (!existsSync(manifest)) {
    throw new Mistake(`there is no package.json in ${project}. Run this command in the folder of the component`);
  }
  let main: unknown;
  try {
    ({ main } = JSON.parse(await readFile(manifest, "utf8")) as { main?: unknown });
  } catch (error) {
    throw new Mistake(`package.json is not valid JSON: ${(error as Error).message}`);
  }
  if (main !== undefined && typeof main !== "string") throw new Mistake('package.json: "main" must be a string');
  const entry = join(project, main ?? "src/index.ts");
  if (existsSync(entry)) return entry;
  throw new Mistake(
    main === undefined
      ? 'the entry file src/index.ts does not exist. Create it, or name another file as "main" in package.json'
      : `package.json: the file ${JSON.stringify(main)} in "main" does not exist`,
  );
}

/** Returns the script of the component, which ends with its source map. */
function scriptOf(result: esbuild.BuildResult<{ write: false }>, project: string): { script: string; map: SourceMap } {
  const output = (suffix: string) => result.outputFiles.find(({ path }) => path.endsWith(suffix))?.text ?? "";
  const { sources, mappings } = JSON.parse(output(".js.map")) as SourceMap;
  const map = { sources: sources.map((source) => sourceName(project, source)), mappings };
  return { script: `${output(".js")}globalThis.${SOURCE_MAP} = ${JSON.stringify(map)};\n`, map };
}

/** A name that does not depend on the place of the project or the SDK. */
function sourceName(project: string, source: string): string {
  const path = resolve(project, source);
  if (path.startsWith(SDK)) return `syncline-sdk:${relative(SDK, path)}`.replaceAll("\\", "/");
  const packages = path.lastIndexOf("/node_modules/");
  return packages === -1 ? relative(project, path).replaceAll("\\", "/") : path.slice(packages + 1);
}

/** Adds the next step to errors of the bundler. */
function explained(error: unknown, project: string): unknown {
  const { errors } = error as { errors?: esbuild.Message[] };
  if (errors === undefined) return error;
  return new Mistake(
    errors
      .map((message) => {
        if (message.location?.file === "syncline-sdk:entry" && message.text.includes("No matching export")) {
          const file = /No matching export in "(.*?)"/.exec(message.text)?.[1] ?? "the entry file";
          return `${file}:1:1: the entry file has no default export. End it with \`export default integration({ … })\``;
        }
        const { location, text } = message;
        const place = location ? `${location.file}:${location.line}:${location.column + 1}: ` : "";
        const line = location?.lineText ? `\n    ${location.lineText.trim()}` : "";
        return `${place}${text}${line}${nextStep(text, project)}`;
      })
      .join("\n"),
  );
}

function nextStep(text: string, project: string): string {
  const missing = /Could not resolve "(.*?)"/.exec(text)?.[1];
  if (missing !== undefined) {
    const node = missing.startsWith("node:") || NODE_MODULES.has(missing);
    if (node) {
      return `\n  Modules of Node.js are not available in a component, which has no files, sockets or processes. Use fetch and the SDK`;
    }
    if (missing.startsWith(".") || missing.startsWith("/")) return "\n  Check the path; relative imports need the file's extension";
    const name = missing.split("/").slice(0, missing.startsWith("@") ? 2 : 1).join("/");
    return `\n  Run \`npm install ${name}\` in ${project}, or correct the name`;
  }
  if (text.startsWith("Top-level await")) {
    return "\n  Move the `await` into a function. The top level of a module runs when the component is built";
  }
  return "";
}

const NODE_MODULES = new Set(
  "assert buffer child_process cluster crypto dgram dns events fs http http2 https module net os path process querystring readline stream string_decoder timers tls tty url util v8 vm worker_threads zlib".split(
    " ",
  ),
);

/** The error of a script that fails while the component is made. Its top level runs then. */
function initializationFailed(error: Error, map: SourceMap): Mistake {
  const text = error.message.replaceAll(/Failed to (?:declare|evaluate|finish|read)[^:]*: /g, "").trim();
  const { frames, place } = originalStack(map, text);
  const message = text
    .split("\n")
    .filter((line) => line.trim() !== "" && !/^\s*at /.test(line))
    .join("\n")
    .replace(/^Error: /, "");
  const syntax = /componentize-qjs:user\.js:(\d+):(\d+)/.exec(text);
  const at = place ?? (syntax ? textOf(originalPlace(map, Number(syntax[1]), Number(syntax[2]))) : undefined);
  const next =
    "\n  The top level of each module runs when the component is built. Move calls of the host into a function";
  return new Mistake(`${at ? `${at}: ` : ""}${message}${frames.map((frame) => `\n    ${frame}`).join("")}${next}`);
}

function textOf(place: ReturnType<typeof originalPlace>): string | undefined {
  return place && `${place.source}:${place.line}:${place.column}`;
}

async function formatted(message: esbuild.Message, kind: "error" | "warning"): Promise<string> {
  return (await esbuild.formatMessages([message], { kind, color: false })).join("").trimEnd();
}

function report(error: unknown): void {
  console.error(error instanceof Mistake ? `error: ${error.message}` : error);
}

main().catch((error: unknown) => {
  const usage = error instanceof TypeError && (error as NodeJS.ErrnoException).code?.startsWith("ERR_PARSE_ARGS");
  report(usage ? new Mistake(`${(error as Error).message}\n\n${USAGE}`) : error);
  process.exitCode = 1;
});
