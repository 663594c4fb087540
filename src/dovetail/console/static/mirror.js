// The headers that repeat the body of a request, since 2026-07-28: Mcp-Method, Mcp-Name and Mcp-Param-*.

import { isObject } from "./format.js";

const NAMED_BY = {
  ...{ "tools/call": "name", "prompts/get": "name", "resources/read": "uri" },
  ...{ "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId" },
};
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,100}$/;
const MIRRORED_TYPES = ["string", "integer", "boolean"];
const MAX_DEPTH = 20;

export function mirroredHeaders(method, params, inputSchema) {
  const headers = { "Mcp-Method": encoded(method) };
  const name = params[NAMED_BY[method]];
  if (typeof name === "string") headers["Mcp-Name"] = encoded(name);
  if (method === "tools/call" && inputSchema) Object.assign(headers, argumentHeaders(inputSchema, params.arguments));
  return headers;
}

function argumentHeaders(schema, values, depth = 0) {
  const headers = {};
  if (!isObject(schema?.properties) || !isObject(values) || depth > MAX_DEPTH) return headers;
  for (const [name, part] of Object.entries(schema.properties)) {
    const value = Object.hasOwn(values, name) ? values[name] : undefined;
    const mark = part?.["x-mcp-header"];
    if (typeof mark === "string" && TOKEN.test(mark) && MIRRORED_TYPES.includes(part.type) && isMirrorable(value)) {
      headers[`Mcp-Param-${mark}`] = encoded(String(value));
    }
    Object.assign(headers, argumentHeaders(part, value, depth + 1));
  }
  return headers;
}

function isMirrorable(value) {
  return typeof value === "string" || typeof value === "boolean" || Number.isSafeInteger(value);
}

/** As it is if a header can hold it, else as Base64. */
function encoded(text) {
  const plain = /^[\t\x20-\x7e]*$/.test(text) && text === text.trim();
  if (plain && !(text.startsWith("=?base64?") && text.endsWith("?="))) return text;
  const binary = Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");
  return `=?base64?${btoa(binary)}?=`;
}
