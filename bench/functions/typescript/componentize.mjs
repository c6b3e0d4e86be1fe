// Builds a component from the bundled script.
import { readFile, writeFile } from "node:fs/promises";
import { componentize } from "componentize-qjs";

const { component } = await componentize({
  jsSource: await readFile("build/echo.js", "utf8"),
  witPath: "../../../wit/0.1.0",
  world: "integration",
  // The host never calls functions concurrently.
  sync: true,
});
await writeFile("build/echo.wasm", component);
