// The command `syncline-componentize`, run in small projects.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { test, type TestContext } from "node:test";

const SDK = fileURLToPath(new URL("..", import.meta.url));

function project(context: TestContext, files: Record<string, string>): string {
  const folder = mkdtempSync(join(tmpdir(), "syncline-componentize-"));
  context.after(() => rmSync(folder, { recursive: true }));
  for (const [name, content] of Object.entries({ "package.json": "{}", ...files })) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), content);
  }
  mkdirSync(join(folder, "node_modules/@syncline"), { recursive: true });
  symlinkSync(SDK, join(folder, "node_modules/@syncline/sdk"));
  symlinkSync(join(SDK, "node_modules/zod"), join(folder, "node_modules/zod"));
  return folder;
}

function build(folder: string, ...options: string[]): { status: number | null; stderr: string } {
  const command = join(SDK, "dist/componentize.js");
  const given = options.length > 0 ? options : ["--out", "build/out.wasm"];
  return spawnSync(process.execPath, [command, ...given], { cwd: folder, encoding: "utf8" });
}

const ECHO = `
import { action, integration } from "@syncline/sdk";
import { z } from "zod";
const Input = z.object({ name: z.string() });
export default integration({ actions: { echo: action(async (input) => Input.parse(input)) } });
`;

test("a project with packages makes a component", (context) => {
  const folder = project(context, { "src/index.ts": ECHO });
  const { status, stderr } = build(folder);
  assert.equal(status, 0, stderr);
  assert.deepEqual([...readFileSync(join(folder, "build/out.wasm")).subarray(0, 4)], [0, 0x61, 0x73, 0x6d]);
});

test("an unchanged source makes the same component", (context) => {
  const folder = project(context, { "src/index.ts": ECHO });
  const built = ["a", "b"].map((name) => {
    const { status, stderr } = build(folder, "--out", `build/${name}.wasm`);
    assert.equal(status, 0, stderr);
    return readFileSync(join(folder, `build/${name}.wasm`));
  });
  assert.ok(built[0]?.equals(built[1] as Buffer));
});

const REJECTED: [name: string, files: Record<string, string>, message: RegExp][] = [
  ["no entry file", {}, /^error: the entry file src\/index\.ts does not exist\. Create it, or/],
  ["a wrong main", { "package.json": '{"main":"a.ts"}' }, /^error: package\.json: the file "a\.ts" in "main" does not exist/],
  ["a syntax error", { "src/index.ts": "export default {\n  a: 1,,\n};" }, /^error: src\/index\.ts:2:8: .*\n\s+a: 1,,/],
  ["no default export", { "src/index.ts": "export const a = 1;" }, /^error: src\/index\.ts:1:1: .* has no default export/],
  [
    "a default export of another kind",
    { "src/index.ts": "export default { syncs: {} };" },
    /the default export must be created with `integration\(\{ … \}\)`/,
  ],
  ["an unknown package", { "src/index.ts": 'import "left-pad";\nexport default 1;' }, /^error: src\/index\.ts:1:8: .*\n.*\n\s+Run `npm install left-pad`/],
  ["a module of Node.js", { "src/index.ts": 'import "node:fs";\nexport default 1;' }, /Modules of Node\.js are not available/],
  [
    "an error at the top level",
    { "src/index.ts": 'import { run } from "@syncline/sdk";\n\nexport default run.info();' },
    /^error: src\/index\.ts:3:\d+: .*this can only be called while a function runs[^]*top level of each module/,
  ],
  ["await at the top level", { "src/index.ts": "await null;\nexport default 1;" }, /^error: src\/index\.ts:1:1: .*\n.*\n\s+Move the `await` into a function/],
];

for (const [name, files, message] of REJECTED) {
  test(`${name} is an error with its place and a next step`, (context) => {
    const { status, stderr } = build(project(context, files));
    assert.equal(status, 1);
    assert.match(stderr, message);
  });
}

test("missing WIT files are an error that names the command which creates them", (context) => {
  const folder = project(context, { "src/index.ts": ECHO });
  const sdk = join(realpathSync(folder), "sdk");
  cpSync(join(SDK, "dist"), join(sdk, "dist"), { recursive: true });
  cpSync(join(SDK, "package.json"), join(sdk, "package.json"));
  symlinkSync(join(SDK, "node_modules"), join(sdk, "node_modules"));
  const command = [join(sdk, "dist/componentize.js"), "--out", "build/out.wasm"];
  const { status, stderr } = spawnSync(process.execPath, command, { cwd: folder, encoding: "utf8" });
  assert.equal(status, 1);
  assert.ok(stderr.startsWith(`error: the WIT files of @syncline/sdk are missing in ${sdk}/wit`), stderr);
  assert.ok(stderr.includes(`run \`npm run build\` in ${sdk}.`), stderr);
  assert.doesNotMatch(stderr, /top level of each module/);
});

test("a missing option shows the usage", (context) => {
  const { status, stderr } = build(project(context, {}), "--timings");
  assert.equal(status, 1);
  assert.match(stderr, /`--out FILE\.wasm` is missing\n\nUsage: /);
});
