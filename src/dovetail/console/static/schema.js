// Reading a JSON Schema for a form. In: a schema, and the whole one that its `$ref`s point into.
// Out: which kind of field it needs, its choices, its first value. Schemas are untrusted: depth and size are bounded.

import { isObject } from "./words.js";

const MAX_HOPS = 30; // from one `$ref` to the next
const MAX_CHOICES = 1000;
const DEEPEST_FORM = 5;

/** The schema behind `$ref`, and without the `null` of an optional value. */
export function resolved(schema, root) {
  let current = isObject(schema) ? schema : {};
  for (let hop = 0; hop < MAX_HOPS; hop += 1) {
    const next = step(current, root);
    if (!next) return current;
    const { $ref, anyOf, oneOf, allOf, ...around } = current; // titles and defaults may stand beside
    current = { ...next, ...around };
  }
  return {};
}

function step(schema, root) {
  if (typeof schema.$ref === "string") return pointed(schema.$ref, root) ?? {};
  for (const word of ["anyOf", "oneOf", "allOf"]) {
    if (!Array.isArray(schema[word]) || (word === "oneOf" && isTitled(schema.oneOf))) continue;
    const real = schema[word].filter((part) => part?.type !== "null");
    if (real.length === 1 && isObject(real[0])) return real[0];
  }
  return null;
}

export function pointed(reference, root) {
  if (!/^#(\/|$)/.test(reference)) return null; // nothing is ever fetched
  let place = root;
  for (const name of namesIn(reference)) {
    if (place === null || typeof place !== "object" || !Object.hasOwn(place, name)) return null;
    place = place[name];
  }
  return isObject(place) ? place : null;
}

/** The steps of a `$ref`; one that is badly written leads nowhere. */
function namesIn(reference) {
  const parts = reference.split("/").slice(1);
  try {
    return parts.map((part) => decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~"));
  } catch {
    return parts;
  }
}

export function typesOf(schema) {
  const types = [schema.type].flat().filter((type) => typeof type === "string" && type !== "null");
  if (types.length) return types;
  if (isObject(schema.properties)) return ["object"];
  return [];
}

/** The values to choose from, as [{value, title}], or null if any value will do. */
export function choicesOf(schema) {
  if (Array.isArray(schema.enum)) {
    const names = Array.isArray(schema.enumNames) ? schema.enumNames : [];
    return bounded(schema.enum.filter((value) => value !== null).map((value, at) => choice(value, names[at])));
  }
  if (Object.hasOwn(schema, "const")) return [choice(schema.const, schema.title)];
  for (const list of [schema.oneOf, schema.anyOf]) {
    if (isTitled(list)) return bounded(list.map((part) => choice(part.const, part.title)));
  }
  return null;
}

function isTitled(list) {
  return Array.isArray(list) && list.length > 0 && list.every((part) => isObject(part) && Object.hasOwn(part, "const"));
}

function choice(value, title) {
  return {
    value,
    title: typeof title === "string" ? title : typeof value === "string" ? value : JSON.stringify(value),
  };
}

function bounded(choices) {
  return choices.slice(0, MAX_CHOICES);
}

/** One of: choice, choices, text, lines, secret, date, moment, time, number, flag, list, group, json. */
export function kindOf(schema, root, depth = 0) {
  if (choicesOf(schema)) return "choice";
  const types = typesOf(schema);
  if (types.length !== 1) return "json";
  if (["number", "integer"].includes(types[0])) return "number";
  if (types[0] === "boolean") return "flag";
  if (types[0] === "string") return textKind(schema);
  if (depth >= DEEPEST_FORM) return "json";
  if (types[0] === "array") return listKind(schema, root);
  return isObject(schema.properties) && Object.keys(schema.properties).length ? "group" : "json";
}

const TEXT_FORMATS = { date: "date", "date-time": "moment", time: "time", password: "secret" };
const ONE_LINE = ["email", "uri", "url", "uuid", "hostname", "ipv4", "ipv6", "idn-email", "uri-reference", "regex"];

function textKind(schema) {
  if (isSecret(schema)) return "secret";
  if (Object.hasOwn(TEXT_FORMATS, schema.format)) return TEXT_FORMATS[schema.format];
  const short = ONE_LINE.includes(schema.format) || schema.maxLength <= 200 || typeof schema.pattern === "string";
  return short ? "text" : "lines";
}

function listKind(schema, root) {
  if (!isObject(schema.items)) return "json";
  const items = resolved(schema.items, root);
  const choices = choicesOf(items);
  return choices && choices.length <= 30 && !(schema.uniqueItems === false) ? "choices" : "list";
}

export function isSecret(schema) {
  return schema?.writeOnly === true || schema?.format === "password";
}

/** What a field is for, and its limits, in a few words. */
export function hintOf(schema) {
  const parts = [];
  if (schema.minimum !== undefined && schema.maximum !== undefined)
    parts.push(`${schema.minimum} to ${schema.maximum}`);
  else if (schema.minimum !== undefined) parts.push(`at least ${schema.minimum}`);
  else if (schema.maximum !== undefined) parts.push(`at most ${schema.maximum}`);
  if (schema.maxLength !== undefined) parts.push(`up to ${schema.maxLength} characters`);
  if (typeof schema.format === "string" && !Object.hasOwn(TEXT_FORMATS, schema.format)) parts.push(schema.format);
  return parts.join(", ");
}

export function typeName(schema, root) {
  if (choicesOf(schema)) return "choice";
  const types = typesOf(schema);
  if (types[0] === "array" && isObject(schema.items)) {
    const inner = typesOf(resolved(schema.items, root))[0];
    return inner ? `list of ${inner}` : "list";
  }
  if (types.length) return types.join(" or ");
  const forms = [schema.anyOf ?? schema.oneOf ?? []]
    .flat()
    .slice(0, 10)
    .flatMap((part) => typesOf(resolved(part, root)));
  return [...new Set(forms)].join(" or ") || "any JSON";
}
