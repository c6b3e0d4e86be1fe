/** Hooks of Node.js that compile TypeScript files with esbuild. */
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { transform } from "esbuild";

interface Loaded {
  format: string;
  source?: string;
  shortCircuit?: boolean;
}

export async function load(
  url: string,
  context: object,
  nextLoad: (url: string, context: object) => Promise<Loaded>,
): Promise<Loaded> {
  const path = url.replace(/[?#].*$/, "");
  if (!/\.[cm]?tsx?$/.test(path) || path.includes("/node_modules/")) return nextLoad(url, context);
  const file = fileURLToPath(path);
  const { code } = await transform(await readFile(file, "utf8"), {
    loader: path.endsWith("x") ? "tsx" : "ts",
    format: "esm",
    target: "node20",
    sourcemap: "inline",
    sourcefile: file,
  });
  return { format: "module", source: code, shortCircuit: true };
}
