// The check of a value against a schema: problems as [{path, message}], in words for the user who fills in a form.
// A subset of JSON Schema; what is not understood is left to the server.

import { allowsNull, choicesOf, resolved, typesOf } from "./schema.js";
import { isObject, plural } from "./format.js";

const MAX_DEPTH = 40;
const MAX_PROBLEMS = 50;
const MAX_CHECKS = 50_000; // a schema may refer to itself in many ways; the rest is left to the server
const LONGEST_MATCHED = 2000; // characters that a pattern is tried on
const LONGEST_PATTERN = 200;
const MOST_WAYS = 20_000; // in which a pattern may be tried at one place of a text

export function problemsOf(value, schema, root = schema) {
  const problems = [];
  try {
    check(value, schema, { root, problems, path: [], depth: 0, budget: { left: MAX_CHECKS } });
  } catch {
    return []; // a schema that is none: the server knows
  }
  return problems;
}

function check(value, given, at) {
  at.budget.left -= 1;
  if (at.budget.left < 0 || at.depth > MAX_DEPTH || at.problems.length >= MAX_PROBLEMS || given === true) return;
  if (value === null && allowsNull(given, at.root)) return;
  const schema = resolved(given, at.root);
  const report = (message) => at.problems.push({ path: at.path, message });
  if (!hasType(value, schema)) return report(`must be ${nouns(typesOf(schema))}`);
  const choices = choicesOf(schema);
  if (choices && !choices.some((choice) => same(choice.value, value))) {
    return report(
      `must be one of ${choices
        .slice(0, 10)
        .map((choice) => choice.title)
        .join(", ")}`,
    );
  }
  if (!choices && !fitsAny(value, schema, at)) return report("fits none of the allowed forms");
  if (typeof value === "string") checkText(value, schema, report);
  else if (typeof value === "number") checkNumber(value, schema, report);
  else if (Array.isArray(value)) checkList(value, schema, at, report);
  else if (isObject(value)) checkObject(value, schema, at, report);
}

const TYPE_CHECKS = {
  string: (value) => typeof value === "string",
  number: (value) => typeof value === "number",
  integer: (value) => Number.isInteger(value),
  boolean: (value) => typeof value === "boolean",
  array: Array.isArray,
  object: isObject,
};

function hasType(value, schema) {
  const types = typesOf(schema).filter((type) => Object.hasOwn(TYPE_CHECKS, type));
  return !types.length || types.some((type) => TYPE_CHECKS[type](value));
}

const NOUNS = {
  string: "text",
  number: "a number",
  integer: "a whole number",
  boolean: "true or false",
  array: "a list",
  object: "an object",
};

/** Types, in words. */
export function nouns(types) {
  return types.map((type) => (Object.hasOwn(NOUNS, type) ? NOUNS[type] : type)).join(" or ");
}

function fitsAny(value, schema, at) {
  for (const list of [schema.anyOf, schema.oneOf]) {
    if (!Array.isArray(list) || !list.length) continue;
    const fits = list.slice(0, 50).some((part) => {
      const inner = { ...at, problems: [], depth: at.depth + 1 };
      check(value, part, inner);
      return !inner.problems.length;
    });
    if (!fits) return false;
  }
  return true;
}

function checkText(text, schema, report) {
  const length = [...text].length;
  if (length < schema.minLength) report(`must have at least ${plural(schema.minLength, "character")}`);
  if (length > schema.maxLength) report(`must have at most ${plural(schema.maxLength, "character")}`);
  if (!matches(text, schema.pattern)) report(`must match ${schema.pattern}`);
  const format = Object.hasOwn(FORMATS, schema.format) ? FORMATS[schema.format] : null;
  if (format && !format.test(text)) report(format.words);
}

function matches(text, pattern) {
  if (typeof pattern !== "string" || text.length > LONGEST_MATCHED || !isQuick(pattern)) return true;
  try {
    return new RegExp(pattern, "u").test(text);
  } catch {
    return true; // another dialect: the server knows
  }
}

/** Whether it can't take for ever: no group is repeated, and there are few ways to share a text among the repeats. */
function isQuick(pattern) {
  if (pattern.length > LONGEST_PATTERN) return false;
  const bare = pattern
    .replace(/\\./gs, "x")
    .replace(/\[[^\]]*\]/g, "x")
    .replace(/\(\?(?:[:=!]|<[=!]|<\w+>)/g, "(");
  if (/\)[*+?{]/.test(bare)) return false;
  const variable = bare.match(/[*+]\??|\{\d+,\d*\}|[?|]/g) ?? [];
  return variable.map(waysOf).reduce((product, ways) => product * ways, 1) <= MOST_WAYS;
}

function waysOf(mark) {
  if (mark === "?" || mark === "|") return 2;
  const [least, most] = mark.slice(1, -1).split(",");
  return most ? Number(most) - Number(least) + 1 : LONGEST_MATCHED;
}

const FORMATS = {
  email: { test: (text) => /^[^\s@]+@[^\s@]+$/.test(text), words: "must be an e-mail address, as in ann@example.com" },
  uri: { test: (text) => URL.canParse(text), words: "must be a URL, as in https://example.com/" },
  date: { test: (text) => /^\d{4}-\d\d-\d\d$/.test(text), words: "must be a date, as in 2026-07-28" },
  "date-time": {
    test: (text) => !Number.isNaN(Date.parse(text)),
    words: "must be a date and time, as in 2026-07-28T12:00:00Z",
  },
};

function checkNumber(number, schema, report) {
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf } = schema;
  if (number < minimum) report(`must be at least ${minimum}`);
  if (number > maximum) report(`must be at most ${maximum}`);
  if (number <= exclusiveMinimum) report(`must be more than ${exclusiveMinimum}`);
  if (number >= exclusiveMaximum) report(`must be less than ${exclusiveMaximum}`);
  if (Number.isInteger(number) && !Number.isSafeInteger(number))
    report("is too large for a browser; use the command line");
  if (multipleOf > 0 && Math.abs(number / multipleOf - Math.round(number / multipleOf)) > 1e-9) {
    report(`must be a multiple of ${multipleOf}`);
  }
}

function checkList(list, schema, at, report) {
  if (list.length < schema.minItems) report(`must have at least ${plural(schema.minItems, "entry", "entries")}`);
  if (list.length > schema.maxItems) report(`must have at most ${plural(schema.maxItems, "entry", "entries")}`);
  if (schema.uniqueItems === true && new Set(list.map((item) => JSON.stringify(item))).size < list.length) {
    report("must not have the same entry twice");
  }
  const first = Array.isArray(schema.prefixItems) ? schema.prefixItems : [];
  for (const [place, item] of list.entries()) {
    const part = first[place] ?? schema.items;
    if (isObject(part)) check(item, part, below(at, String(place)));
  }
}

function checkObject(object, schema, at, report) {
  const properties = isObject(schema.properties) ? schema.properties : {};
  for (const name of Array.isArray(schema.required) ? schema.required : []) {
    if (!Object.hasOwn(object, name)) at.problems.push({ path: [...at.path, name], message: "is required" });
  }
  for (const [name, value] of Object.entries(object)) {
    if (Object.hasOwn(properties, name)) check(value, properties[name], below(at, name));
    else if (isObject(schema.additionalProperties)) check(value, schema.additionalProperties, below(at, name));
    else if (schema.additionalProperties === false) report(`has no field ${name}`);
  }
}

function below(at, name) {
  return { ...at, path: [...at.path, name], depth: at.depth + 1 };
}

function same(one, other) {
  return one === other || JSON.stringify(one) === JSON.stringify(other);
}
