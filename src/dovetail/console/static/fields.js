// The fields of a form that hold others, and the choice of a Field (see `field.js`) for a schema.

import { ChoiceField, ChoicesField, FlagField } from "./choices.js";
import { add, button, el } from "./dom.js";
import {
  DateField,
  Field,
  JsonField,
  LinesField,
  MomentField,
  NumberField,
  PlainField,
  SecretField,
  TextField,
  TimeField,
} from "./field.js";
import { allowsNull, kindOf, resolved } from "./schema.js";
import { isObject, plural, textOf } from "./format.js";

const MAX_ENTRIES = 200;
const MAX_FIELDS = 300; // of a form as it is first drawn: a schema may contain itself many times

/** `name`: in its object; `root`: the schema that `$ref`s point into; `orNull`: if it is empty, null is sent. */
export function makeField(given, { root, name, required = false, depth = 0, first, budget, ...rest }) {
  const schema = resolved(given, root);
  budget.left -= 1;
  const kind = budget.left < 0 ? "json" : kindOf(schema, root, depth);
  const isNullable = allowsNull(given, root);
  const place = { schema, root, name, required, depth, budget, isNullable, label: textOf(schema.title) || name };
  const field = new MAKERS[kind]({ ...place, ...rest });
  const start = first !== undefined ? first : schema.default;
  if (start !== undefined && start !== null) field.write(start);
  return field;
}

/** What a field reads. In what is wrong, its name becomes part of the path. */
function readInner(field, name, wrong) {
  const inner = [];
  const value = field.read(inner);
  for (const { path, message } of inner) wrong.push({ path: [name, ...path], message });
  return value;
}

export function freshBudget() {
  return { left: MAX_FIELDS };
}

class ListField extends Field {
  constructor(place) {
    super(place);
    this.entries = []; // each {field, remove, element}
    this.touched = this.required;
    this.rows = el("div", { class: "entries" });
    this.control = button("Add", () => this.grow(), { class: "small", "aria-describedby": this.describedBy });
    this.element = el(
      "fieldset",
      { class: "field" },
      this.caption("legend"),
      this.description,
      this.rows,
      this.control,
      this.error,
    );
    this.number();
  }

  get fields() {
    return this.entries.map((entry) => entry.field);
  }

  /** A new entry, where the focus goes. */
  grow() {
    if (this.entries.length >= MAX_ENTRIES) return this.complain([], `No more than ${MAX_ENTRIES} here; use JSON.`);
    this.forgiveItself();
    this.append();
    focusFirst(this.entries.at(-1).field.element);
  }

  append(first) {
    const options = { root: this.root, name: "", label: "", isEntry: true, depth: this.depth + 1 };
    const field = makeField(this.schema.items, { ...options, first, required: true, budget: freshBudget() });
    const entry = { field, remove: button("×", () => this.remove(entry), { class: "small" }) };
    entry.element = el("div", { class: "entry" }, field.element, entry.remove);
    this.entries.push(entry);
    this.rows.append(entry.element);
    this.touched = true;
    this.number();
  }

  remove(entry) {
    const at = this.entries.indexOf(entry);
    this.entries.splice(at, 1);
    entry.element.remove();
    this.forgiveItself();
    this.number();
    (this.entries[Math.min(at, this.entries.length - 1)]?.remove ?? this.control).focus();
  }

  /** Entries are named by their places. */
  number() {
    this.control.setAttribute("aria-label", `Add to ${this.label}`);
    for (const [at, { field, remove }] of this.entries.entries()) {
      field.rename(`${this.label} ${at + 1}`);
      remove.setAttribute("aria-label", `Remove ${this.label} ${at + 1}`);
    }
  }

  rename(label) {
    super.rename(label);
    this.number();
  }

  read(wrong = []) {
    if (!this.entries.length) return this.touched ? [] : undefined;
    const empty = allowsNull(this.schema.items, this.root) ? null : "";
    return this.fields.map((field, at) => readInner(field, String(at), wrong) ?? empty);
  }

  write(values) {
    this.entries = [];
    this.rows.replaceChildren();
    this.touched = values !== null;
    for (const value of Array.isArray(values) ? values.slice(0, MAX_ENTRIES) : []) this.append(value);
  }

  complain(path, words) {
    const inner = this.fields[Number(path[0])];
    return path.length && inner ? inner.complain(path.slice(1), words) : super.complain(path, words);
  }

  forgiveItself() {
    super.forgive();
  }

  forgive() {
    super.forgive();
    for (const field of this.fields) field.forgive();
  }
}

function focusFirst(element) {
  element.querySelector("input, select, textarea, button")?.focus();
}

/** The fields of an object; also the whole form. */
export class GroupField extends Field {
  constructor(place) {
    super(place);
    const needed = new Set(Array.isArray(this.schema.required) ? this.schema.required : []);
    this.fields = new Map();
    this.error.tabIndex = -1; // it has no control that the focus could go to
    this.others = []; // values without a field
    const parts = Object.entries(this.schema.properties ?? {});
    for (const [name, part] of parts.slice(0, MAX_ENTRIES)) {
      const orNull = needed.has(name) && allowsNull(part, this.root);
      const required = needed.has(name) && !orNull;
      const options = { root: this.root, name, required, orNull, depth: this.depth + 1, budget: this.budget };
      this.fields.set(name, makeField(part, options));
    }
    const left = parts.length - this.fields.size;
    const inner = [
      ...[...this.fields.values()].map((field) => field.element),
      left > 0 && el("p", { class: "field-help" }, `${plural(left, "field")} more: write the arguments as JSON.`),
    ];
    this.element =
      this.name === null
        ? add(el("div", { class: "fields" }), [inner, this.error])
        : el("fieldset", { class: "field group" }, this.caption("legend"), this.description, inner, this.error);
    this.untouched = JSON.stringify(this.values([])); // defaults inside of an object that need not be there
  }

  get ifEmpty() {
    return super.ifEmpty || (this.required ? "" : "left out if empty");
  }

  values(wrong) {
    const values = [...this.fields].map(([name, field]) => {
      const value = readInner(field, name, wrong);
      return [name, value === undefined && field.orNull ? null : value];
    });
    return Object.fromEntries([...this.others, ...values.filter(([, value]) => value !== undefined)]);
  }

  read(wrong = []) {
    const before = wrong.length;
    const object = this.values(wrong);
    const isThere = this.required || wrong.length > before || JSON.stringify(object) !== this.untouched;
    return isThere ? object : undefined;
  }

  write(object) {
    if (!isObject(object)) return;
    this.untouched = null;
    this.others = Object.entries(object).filter(([name]) => !this.fields.has(name)); // kept as they are
    for (const [name, field] of this.fields) if (Object.hasOwn(object, name)) field.write(object[name]);
  }

  complain(path, words) {
    const inner = this.fields.get(path[0]);
    return inner ? inner.complain(path.slice(1), words) : super.complain(path, words);
  }

  forgive() {
    super.forgive();
    for (const field of this.fields.values()) field.forgive();
  }
}

const MAKERS = {
  ...{ text: TextField, lines: LinesField, secret: SecretField, date: DateField, moment: MomentField, time: TimeField },
  ...{ number: NumberField, flag: FlagField, choice: ChoiceField, choices: ChoicesField, list: ListField },
  ...{ plain: PlainField, group: GroupField, json: JsonField },
};
