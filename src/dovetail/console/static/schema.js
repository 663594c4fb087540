// The reading of a JSON Schema for a form: which kind of field it needs, its choices, its first value.
// Schemas are untrusted: depth and size are bounded.

import { isObject, textOf } from "./format.js";

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
    if (!Array.isArray(schema[word]) || (word === "oneOf" && areChoices(schema.oneOf))) continue;
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

export function allowsNull(given, root) {
  const schema = typeof given?.$ref === "string" ? pointed(given.$ref, root) : given;
  const parts = [schema, ...[schema?.anyOf, schema?.oneOf].filter(Array.isArray).flat()].filter(isObject);
  return parts.some((part) => [part.type, part.const, part.enum].flat().some((each) => each === null || each === NULL));
}

const NULL = "null"; // as a type
const SIMPLE = ["string", "number", "integer", "boolean"];

/** The types of a value that is one of several simple ones; null if it may be more than that. */
export function simpleTypes(schema, root) {
  if (Array.isArray(schema.type)) return onlySimple(typesOf(schema));
  const forms = [schema.anyOf ?? schema.oneOf ?? []].flat().filter((part) => part?.type !== NULL);
  const types = forms.slice(0, 10).map((part) => typesOrWords(resolved(part, root)));
  return types.every((each) => each.length) ? onlySimple(types.flat()) : null;
}

function typesOrWords(schema) {
  return choicesOf(schema)?.map((choice) => typeof choice.value) ?? typesOf(schema);
}

/** The texts that one of several forms may have, if it can't be any text at all. */
export function wordsAmong(schema, root) {
  const forms = [schema.anyOf ?? schema.oneOf ?? []].flat().map((part) => resolved(part, root));
  if (forms.some((form) => !choicesOf(form) && typesOf(form).includes("string"))) return [];
  const values = forms.flatMap((form) => choicesOf(form) ?? []).map((choice) => choice.value);
  return values.filter((value) => typeof value === "string");
}

function onlySimple(types) {
  return types.length && types.every((type) => SIMPLE.includes(type)) ? [...new Set(types)] : null;
}

/** The values to choose from, as [{value, title}], or null if any value will do. */
export function choicesOf(schema) {
  const own = ownChoices(schema);
  if (own) return bounded(own);
  const list = [schema.oneOf, schema.anyOf].find(areChoices);
  return list ? bounded(list.flatMap(ownChoices)) : null;
}

function ownChoices(schema) {
  if (Array.isArray(schema?.enum)) {
    const names = Array.isArray(schema.enumNames) ? schema.enumNames : [];
    return schema.enum.filter((value) => value !== null).map((value, at) => choice(value, names[at]));
  }
  return isObject(schema) && Object.hasOwn(schema, "const") ? [choice(schema.const, schema.title)] : null;
}

function areChoices(list) {
  return Array.isArray(list) && list.length > 0 && list.every((part) => ownChoices(part) !== null);
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

/** One of: choice, choices, text, lines, secret, date, moment, time, number, flag, plain, list, group, json. */
export function kindOf(schema, root, depth = 0) {
  if (choicesOf(schema)) return "choice";
  const types = typesOf(schema);
  if (types.length !== 1) return simpleTypes(schema, root) ? "plain" : "json";
  if (["number", "integer"].includes(types[0])) return "number";
  if (types[0] === "boolean") return "flag";
  if (types[0] === "string") return textKind(schema);
  if (depth >= DEEPEST_FORM) return "json";
  if (types[0] === "array") return listKind(schema, root);
  return isObject(schema.properties) && Object.keys(schema.properties).length ? "group" : "json";
}

const TEXT_FORMATS = { date: "date", "date-time": "moment", time: "time", password: "secret" };
const FORMAT_NAMES = { date: "date", "date-time": "date and time", time: "time", password: "secret" };
const ONE_LINE = ["email", "uri", "url", "uuid", "hostname", "ipv4", "ipv6", "idn-email", "uri-reference", "regex"];

function textKind(schema) {
  if (isSecret(schema)) return "secret";
  if (Object.hasOwn(TEXT_FORMATS, schema.format)) return TEXT_FORMATS[schema.format];
  const short = ONE_LINE.includes(schema.format) || schema.maxLength <= 200 || typeof schema.pattern === "string";
  return short ? "text" : "lines";
}

function listKind(schema, root) {
  if (!isObject(schema.items) || Array.isArray(schema.prefixItems)) return "json";
  const items = resolved(schema.items, root);
  const choices = choicesOf(items);
  return choices && choices.length <= 30 && !(schema.uniqueItems === false) ? "choices" : "list";
}

export function isSecret(schema) {
  return schema?.writeOnly === true || schema?.format === "password";
}

/** The limits of a value, in a few words. */
export function hintOf(schema) {
  const format = Object.hasOwn(TEXT_FORMATS, schema.format) ? undefined : schema.format;
  return [
    within(schema.minimum, schema.maximum, ""),
    isLimit(schema.exclusiveMinimum) && `more than ${schema.exclusiveMinimum}`,
    isLimit(schema.exclusiveMaximum) && `less than ${schema.exclusiveMaximum}`,
    isLimit(schema.multipleOf) && `a multiple of ${schema.multipleOf}`,
    within(schema.minLength || undefined, schema.maxLength, " characters"),
    within(schema.minItems || undefined, schema.maxItems, " entries"),
    typeof format === "string" && format,
  ]
    .filter(Boolean)
    .join(", ");
}

function isLimit(value) {
  return typeof value === "number";
}

function within(least, most, noun) {
  if (isLimit(least) && isLimit(most)) return least === most ? `${least}${noun}` : `${least} to ${most}${noun}`;
  if (isLimit(least)) return `at least ${least}${noun}`;
  return isLimit(most) ? `up to ${most}${noun}` : "";
}

const SAMPLES = { string: "text", number: 1.5, integer: 1, boolean: true, array: [] };
const DEEPEST_SAMPLE = 3;

/** A value of about the right shape, to be seen where the user has to write JSON. */
export function skeleton(given, root, depth = 0) {
  const schema = resolved(given, root);
  const choices = choicesOf(schema);
  if (choices?.length) return choices[0].value;
  const [type] = typesOf(schema);
  if (Array.isArray(schema.prefixItems) && depth < DEEPEST_SAMPLE)
    return schema.prefixItems.slice(0, 5).map((part) => skeleton(part, root, depth + 1));
  if (Object.hasOwn(SAMPLES, type ?? "")) return SAMPLES[type];
  const [form] = [schema.anyOf ?? schema.oneOf ?? []].flat();
  if (!type && !form) return SAMPLES.string;
  if (depth >= DEEPEST_SAMPLE) return {};
  if (!type) return skeleton(form, root, depth + 1);
  if (!isObject(schema.properties)) return { name: skeleton(schema.additionalProperties, root, DEEPEST_SAMPLE) };
  const parts = Object.entries(schema.properties).slice(0, 5);
  return Object.fromEntries(parts.map(([name, part]) => [name, skeleton(part, root, depth + 1)]));
}

export function typeName(schema, root) {
  if (choicesOf(schema)) return "choice";
  const types = typesOf(schema);
  if (types[0] === "string" && Object.hasOwn(FORMAT_NAMES, schema.format)) return FORMAT_NAMES[schema.format];
  if (types[0] === "array" && isObject(schema.items)) {
    const inner = typesOf(resolved(schema.items, root))[0];
    return inner ? `list of ${inner === "array" ? "list" : inner}s` : "list";
  }
  if (types.length) return types.join(" or ");
  const forms = [schema.anyOf ?? schema.oneOf ?? []]
    .flat()
    .slice(0, 10)
    .map((part) => resolved(part, root))
    .flatMap((part) => (isObject(part.properties) && textOf(part.title)) || typesOrWords(part));
  return [...new Set(forms)].join(" or ") || "any JSON";
}
