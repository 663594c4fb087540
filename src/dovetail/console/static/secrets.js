// The arguments of a call without the values of secret fields, for the history.
// They are found behind `$ref`s, in lists, in one of several forms. A value that may be secret is not kept either.

import { isSecret, pointed } from "./schema.js";
import { isObject } from "./format.js";

const DEEPEST_KEPT = 30;
const MOST_FORMS = 300; // that one value may have
const FORMS = ["anyOf", "oneOf", "allOf", "if", "then", "else"];

export function withoutSecrets(schema, values) {
  return kept(values, [schema], { root: schema, depth: 0 }) ?? {};
}

/** What may be kept of a value that has these schemas; undefined: nothing. */
function kept(value, schemas, { root, depth }) {
  const forms = formsOf(schemas, root);
  if (forms === null || forms.some(isSecret)) return undefined;
  if (value === null || typeof value !== "object") return value;
  if (depth >= DEEPEST_KEPT) return undefined;
  const inner = { root, depth: depth + 1 };
  if (Array.isArray(value)) {
    const items = value.map((item, at) => {
      const below = forms.flatMap((form) => itemSchemas(form, at));
      return kept(item, below, inner);
    });
    return items.filter((item) => item !== undefined);
  }
  const parts = Object.entries(value).map(([name, part]) => {
    const below = forms.flatMap((form) => propertySchemas(form, name));
    return [name, kept(part, below, inner)];
  });
  return Object.fromEntries(parts.filter(([, part]) => part !== undefined));
}

/** The schemas themselves and all that they refer to or choose from; null if that can't be said. */
function formsOf(schemas, root) {
  const forms = new Set(schemas.filter(isObject));
  for (const form of forms) {
    if (forms.size > MOST_FORMS) return null;
    if (typeof form.$ref === "string") {
      const target = pointed(form.$ref, root);
      if (!target) return null;
      forms.add(target);
    }
    const choices = [...FORMS.map((word) => form[word]), Object.values(form.dependentSchemas ?? {})];
    for (const choice of choices.flat()) if (isObject(choice)) forms.add(choice);
  }
  return [...forms];
}

function itemSchemas(form, at) {
  const first = [form.prefixItems, form.items].find(Array.isArray) ?? [];
  return [first[at], Array.isArray(form.items) ? form.additionalItems : form.items, form.contains];
}

/** Patterns of names are not tried: each may be meant. */
function propertySchemas(form, name) {
  const properties = isObject(form.properties) ? form.properties : {};
  const patterns = Object.values(isObject(form.patternProperties) ? form.patternProperties : {});
  if (Object.hasOwn(properties, name)) return [properties[name], ...patterns];
  return [form.additionalProperties, form.unevaluatedProperties, ...patterns];
}
