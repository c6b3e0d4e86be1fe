// The package as npm publishes it, installed in a folder outside of the repository.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

const SDK = fileURLToPath(new URL("..", import.meta.url));

test("the packed SDK builds a component without the repository", (context) => {
  const folder = mkdtempSync(join(tmpdir(), "syncline-package-"));
  context.after(() => rmSync(folder, { recursive: true }));
  const run = (cwd: string, command: string, ...given: string[]) =>
    execFileSync(command, given, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  // The package was built before the tests.
  const [{ filename }] = JSON.parse(run(SDK, "npm", "pack", "--json", "--ignore-scripts", "--pack-destination", folder)) as [
    { filename: string },
  ];
  writeFileSync(join(folder, "package.json"), "{}");
  mkdirSync(join(folder, "src"));
  writeFileSync(
    join(folder, "src/index.ts"),
    'import { integration, sync } from "@syncline/sdk";\nexport default integration({ syncs: { a: sync(async () => {}) } });\n',
  );
  run(folder, "npm", "install", "--prefer-offline", "--no-audit", "--no-fund", `./${filename}`);
  run(folder, join(folder, "node_modules/.bin/syncline-componentize"), "--out", "out.wasm");
  assert.ok(existsSync(join(folder, "out.wasm")));
});
