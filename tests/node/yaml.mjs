// What npm's yaml, which the official suite compares with, reads: `yaml.mjs <file with a JSON list of texts>`.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const installed = createRequire(new URL("../../.cache/node/package.json", import.meta.url));
const { parse } = installed("yaml");

function read(text) {
  try {
    return { value: parse(text, { logLevel: "error" }) };
  } catch (problem) {
    return { error: String(problem.message).split("\n")[0] };
  }
}

const texts = JSON.parse(readFileSync(process.argv[2], "utf8"));
console.log(JSON.stringify({ read: texts.map(read) }));
