// Makes a component of the bundled script.
import { readFile, writeFile } from "node:fs/promises";
import { componentize } from "@bytecodealliance/componentize-js";

const { component } = await componentize(await readFile("build/echo.js", "utf8"), {
  witPath: "../../../wit/0.1.0",
  worldName: "integration",
  // What the host does not offer, or a benchmark does not need.
  disableFeatures: ["http", "fetch-event"],
});
await writeFile("build/echo.wasm", component);
