// A call as text to paste: a curl command, a Python program, a `dovetail` command, from {kind, name, arguments}.
// A token and the values of headers are never written, only the names of their variables.

import { button, el, toast } from "./dom.js";
import { variablesOf } from "./headers.js";
import { mirroredHeaders } from "./mirror.js";
import { resolved, typesOf } from "./schema.js";
import { isObject } from "./format.js";

const VARIABLE = "DOVETAIL_CLIENT_TOKEN";
const METHODS = { tool: "tools/call", resource: "resources/read", prompt: "prompts/get" };

/** A header whose value the shell reads. Everything else, above all what a server has named, is quoted against that. */
class ReadHeader {
  constructor(text) {
    this.text = text;
  }
}

const TOKEN_HEADER = new ReadHeader(`Authorization: Bearer $${VARIABLE}`);
const SESSION_HEADER = new ReadHeader("Mcp-Session-Id: $SESSION");

/** Where there is a token, it says who we are; a header must not say it again. Out: [name, variable]. */
function variablesFor({ token, headers }) {
  const names = headers.filter((name) => !token || name.toLowerCase() !== "authorization");
  const variables = variablesOf(names);
  return names.map((name, at) => [name, variables[at]]);
}

function placeholder([name, variable]) {
  return new ReadHeader(`${name}: $${variable}`);
}

function paramsOf({ kind, name, arguments: values }) {
  return kind === "resource" ? { uri: name } : { name, arguments: values };
}

function quoted(text) {
  if (text instanceof ReadHeader) return `"${text.text}"`;
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// ── curl ──

export function asCurl(entry, { url, revision, isModern, stamp, token, headers, inputSchema }) {
  const method = METHODS[entry.kind];
  const secret = [...(token ? [TOKEN_HEADER] : []), ...variablesFor({ token, headers }).map(placeholder)];
  const shared = ["Content-Type: application/json", "Accept: application/json, text/event-stream", ...secret];
  const params = paramsOf(entry);
  if (isModern) {
    const mirrored = Object.entries(mirroredHeaders(method, params, inputSchema)).map(
      ([name, value]) => `${name}: ${value}`,
    );
    const { "io.modelcontextprotocol/logLevel": _, ...meta } = stamp;
    const message = { jsonrpc: "2.0", id: 1, method, params: { ...params, _meta: meta } };
    return post(url, [...shared, `MCP-Protocol-Version: ${revision}`, ...mirrored], message);
  }
  return inSession({ url, revision, shared, method, params });
}

/** Up to 2025-11-25 a session has to begin first. */
function inSession({ url, revision, shared, method, params }) {
  const clientInfo = { name: "curl", version: "1" };
  const begin = {
    jsonrpc: "2.0",
    id: 1,
    method: "initialize",
    params: { protocolVersion: revision, capabilities: {}, clientInfo },
  };
  const headers = [...shared, `MCP-Protocol-Version: ${revision}`, SESSION_HEADER];
  const initialized = { jsonrpc: "2.0", method: "notifications/initialized" };
  return [
    `SESSION=$(${post(url, shared, begin, "-si")} | tr -d '\\r' | sed -n 's/^mcp-session-id: //Ip')`,
    post(url, headers, initialized),
    post(url, headers, { jsonrpc: "2.0", id: 2, method, params }),
  ].join("\n");
}

function post(url, headers, message, flags = "-sN") {
  const lines = headers.map((header) => `-H ${quoted(header)}`);
  return [`curl ${flags} ${quoted(url)}`, ...lines, `-d ${quoted(JSON.stringify(message))}`].join(" \\\n  ");
}

// ── Python ──

const PYTHON_CALLS = {
  tool: ({ name, arguments: values }) => [
    `result = await client.call_tool(${literal(name)}, ${literal(values)})`,
    "print(result.data)",
  ],
  resource: ({ name }) => [`contents = await client.read_resource(${literal(name)})`, "print(contents)"],
  prompt: ({ name, arguments: values }) => [
    `prompt = await client.get_prompt(${literal(name)}, ${literal(values)})`,
    "print(prompt)",
  ],
};

export function asPython(entry, { url, revision, isNewest, token, headers }) {
  const known = variablesFor({ token, headers });
  const named = known.map(([name, variable]) => `${literal(name)}: os.environ["${variable}"]`);
  const options = [
    literal(url),
    ...(isNewest ? [] : [`protocol_version=${literal(revision)}`]),
    ...(token ? [`auth=os.environ["${VARIABLE}"]`] : []),
    ...(named.length ? [`headers={${named.join(", ")}}`] : []),
  ];
  const body = PYTHON_CALLS[entry.kind](entry).map((line) => `        ${line}`);
  return [
    "import asyncio",
    ...(token || named.length ? ["import os"] : []),
    ...["", "from dovetail import Client", "", "", "async def main() -> None:"],
    `    async with Client(${options.join(", ")}) as client:`,
    ...[...body, "", "", "asyncio.run(main())", ""],
  ].join("\n");
}

/** JSON as Python writes it. */
function literal(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (isObject(value))
    return `{${Object.entries(value)
      .map(([name, part]) => `${literal(name)}: ${literal(part)}`)
      .join(", ")}}`;
  return JSON.stringify(value);
}

// ── the command line ──

const COMMANDS = { tool: "call", resource: "read", prompt: "prompt" };

/** Null for a name that the command line would take for an option. Headers are for a URL, not for a program. */
export function asCommand(entry, { url, target, revision, isNewest, token, headers, inputSchema }) {
  if (entry.name.startsWith("-")) return null;
  const named = variablesFor({ token, headers });
  const values = entry.kind === "resource" ? {} : (entry.arguments ?? {});
  if (entry.kind === "prompt" && !Object.keys(values).every((name) => /^\w[^=:]*$/.test(name))) return null;
  const word = entry.kind === "prompt" ? textWord : (name, value) => typedWord(name, value, inputSchema);
  const words = entry.kind === "prompt" || isPlain(values)
    ? Object.entries(values).map(([name, value]) => word(name, value))
    : ["--args", quoted(JSON.stringify(values))];
  const options = [
    ...(isNewest ? [] : ["--revision", revision]),
    ...named.flatMap((header) => ["--header", quoted(placeholder(header))]),
  ];
  const where = named.length ? url : (target ?? url);
  return ["dovetail", COMMANDS[entry.kind], quoted(where), quoted(entry.name), ...words, ...options].join(" ");
}

/** Whether every name can stand before a `=`. */
function isPlain(values) {
  return Object.keys(values).every((name) => /^\w+$/.test(name));
}

/** The schema decides what `name=value` means: only what is the same in every case is written so. */
function typedWord(name, value, inputSchema) {
  const part = isObject(inputSchema?.properties) ? inputSchema.properties[name] : undefined;
  const isText = isObject(part) && typesOf(resolved(part, inputSchema)).join() === "string";
  const isBare = ["number", "boolean"].includes(typeof value) && !isText;
  const isSimple = typeof value === "string" ? isPlainText(value) : isBare;
  return quoted(isSimple ? `${name}=${value}` : `${name}:=${JSON.stringify(value)}`);
}

/** Of a prompt: with `:=` what follows is taken as it is. */
function textWord(name, value) {
  return quoted(`${name}${value.startsWith("@") ? ":=" : "="}${value}`);
}

const MEANT_OTHERWISE = /^(@.*|\s*[+-]?\p{Nd}[\p{Nd}_]*\s*|true|yes|on|false|no|off)$/isu; // file, number, switch

function isPlainText(text) {
  if (MEANT_OTHERWISE.test(text)) return false;
  try {
    JSON.parse(text);
    return false;
  } catch {
    return true;
  }
}

// ── buttons ──

const FORMS = { "Copy as curl": asCurl, "Copy as Python": asPython, "Copy as command": asCommand };

/** `read()` gives the entry, or null if there is none now. `onCopied(text)` sees what was copied. */
export function copyButtons(client, read, onCopied = () => {}) {
  const copy = async (name) => {
    const entry = read();
    if (!entry) return;
    const text = FORMS[name](entry, client.copyContext(entry));
    if (text === null) return toast("There is no command for a name that begins with a dash or has other signs.");
    onCopied(text);
    toast((await copied(text)) ? `${name.replace("Copy", "Copied")}.` : "The browser does not let the page copy.");
  };
  return el(
    "div",
    { class: "copies" },
    Object.keys(FORMS).map((name) => button(name, () => copy(name), { class: "small quiet" })),
  );
}

export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedByHand(text);
  }
}

/** For pages that are not on this machine and come over plain HTTP. */
function copiedByHand(text) {
  const area = el("textarea", { class: "away" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
