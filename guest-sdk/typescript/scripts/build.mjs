// Builds `dist`, and copies the WIT files into the package.
import { chmod, cp, readFile, rm } from "node:fs/promises";
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const folder = (path) => fileURLToPath(new URL(`../${path}`, import.meta.url));
const { name, version } = JSON.parse(await readFile(folder("package.json"), "utf8"));
const inCode = await readFile(folder("src/version.ts"), "utf8");
if (!inCode.includes(`"${name}"`) || !inCode.includes(`"${version}"`)) {
  throw new Error("src/version.ts and package.json differ in name or version");
}

await rm(folder("dist"), { recursive: true, force: true });
await rm(folder("wit/deps/syncline-integration"), { recursive: true, force: true });
await cp(folder("../../wit/0.1.1"), folder("wit/deps/syncline-integration"), { recursive: true });
execFileSync(process.execPath, [folder("node_modules/typescript/bin/tsc"), "--project", folder("tsconfig.json")], {
  stdio: "inherit",
});
// npm makes the command executable when it links the package, which may have happened before.
await chmod(folder("dist/componentize.js"), 0o755);
