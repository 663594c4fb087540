// The fields of a form that hold others, and the choice of a field for a schema. In: a schema and a first value.
// Out: a Field as in `field.js`.

import { add, button, el, fill } from "./dom.js";
import {
  ChoiceField,
  ChoicesField,
  DateField,
  Field,
  FlagField,
  JsonField,
  LinesField,
  MomentField,
  NumberField,
  SecretField,
  TextField,
  TimeField,
} from "./field.js";
import { kindOf, resolved } from "./schema.js";
import { isObject, textOf } from "./words.js";

const MAX_ENTRIES = 200;
const MAX_FIELDS = 300; // of a form as it is first drawn: a schema may contain itself many times

/** `path` is the list of names that lead to the field; `root` the schema that `$ref`s point into. */
export function makeField(given, { root, path, required = false, label, depth = 0, first, budget }) {
  const schema = resolved(given, root);
  budget.left -= 1;
  const kind = budget.left < 0 ? "json" : kindOf(schema, root, depth);
  const place = { schema, root, path, required, depth, budget, label: label ?? (textOf(schema.title) || path.at(-1)) };
  const field = new MAKERS[kind](place);
  const start = first !== undefined ? first : schema.default;
  if (start !== undefined && start !== null) field.write(start);
  return field;
}

export function freshBudget() {
  return { left: MAX_FIELDS };
}

class ListField extends Field {
  constructor(place) {
    super(place);
    this.entries = [];
    this.touched = this.required;
    this.rows = el("div", { class: "entries" });
    this.control = button("Add", () => this.grow(), {
      class: "small",
      "aria-label": `Add to ${this.label}`,
      "aria-describedby": `${this.id}-error`,
    });
    this.element = el(
      "fieldset",
      { class: "field" },
      this.caption("legend"),
      this.description,
      this.rows,
      this.control,
      this.error,
    );
  }

  grow(first) {
    if (this.entries.length >= MAX_ENTRIES) return this.complain([], `no more than ${MAX_ENTRIES} here; use JSON`);
    this.touched = true;
    this.entries.push(first);
    this.draw(this.entries.length - 1);
    this.forgive();
  }

  /** Entries are drawn anew with their present values: their places are part of their names. */
  draw(focused = -1) {
    this.fields = this.entries.map((first, at) => {
      const options = {
        root: this.root,
        path: [...this.path, String(at)],
        label: `${this.label} ${at + 1}`,
        depth: this.depth + 1,
        budget: freshBudget(),
      };
      return first instanceof Field ? first : makeField(this.schema.items, { ...options, first, required: true });
    });
    this.entries = [...this.fields];
    fill(
      this.rows,
      this.fields.map((field, at) => this.row(field, at)),
    );
    if (focused >= 0) this.fields[focused].control?.focus();
  }

  row(field, at) {
    const remove = button("×", () => this.remove(at), {
      class: "small",
      "aria-label": `Remove ${this.label} ${at + 1}`,
    });
    return el("div", { class: "entry" }, field.element, remove);
  }

  remove(at) {
    const values = this.fields.map((field) => safely(field));
    values.splice(at, 1);
    this.entries = values;
    this.draw();
    this.control.focus();
  }

  read() {
    if (!this.entries.length) return this.touched ? [] : undefined;
    return this.fields.map((field) => field.read() ?? "");
  }

  write(values) {
    this.entries = Array.isArray(values) ? values.slice(0, MAX_ENTRIES) : [];
    this.touched = true;
    this.draw();
  }

  complain(path, words) {
    const inner = this.fields?.[Number(path[0])];
    return path.length && inner ? inner.complain(path.slice(1), words) : super.complain(path, words);
  }

  forgive() {
    super.forgive();
    for (const field of this.fields ?? []) field.forgive();
  }
}

function safely(field) {
  try {
    return field.read();
  } catch {
    return undefined;
  }
}

/** The fields of an object; also the whole form. */
export class GroupField extends Field {
  constructor(place) {
    super(place);
    const needed = new Set(Array.isArray(this.schema.required) ? this.schema.required : []);
    this.fields = new Map();
    this.others = []; // values without a field
    for (const [name, part] of Object.entries(this.schema.properties ?? {}).slice(0, MAX_ENTRIES)) {
      const options = {
        root: this.root,
        path: [...this.path, name],
        required: needed.has(name),
        depth: this.depth + 1,
      };
      this.fields.set(name, makeField(part, { ...options, budget: this.budget }));
    }
    const inner = [...this.fields.values()].map((field) => field.element);
    this.element = this.path.length
      ? el("fieldset", { class: "field group" }, this.caption("legend"), this.description, inner, this.error)
      : add(el("div", { class: "fields" }), [inner, this.error]);
    this.untouched = JSON.stringify(safely(this)); // defaults inside of an object that need not be there
  }

  read() {
    const values = [...this.fields].map(([name, field]) => [name, field.read()]);
    const object = Object.fromEntries([...this.others, ...values.filter(([, value]) => value !== undefined)]);
    return this.required || JSON.stringify(object) !== this.untouched ? object : undefined;
  }

  write(object) {
    if (!isObject(object)) return;
    this.untouched = null;
    this.others = Object.entries(object).filter(([name]) => !this.fields.has(name)); // kept as they are
    for (const [name, field] of this.fields) if (Object.hasOwn(object, name)) field.write(object[name]);
  }

  complain(path, words) {
    const inner = this.fields.get(path[0]);
    return inner ? inner.complain(path.slice(1), words) : super.complain(path, [...path, words].join(" "));
  }

  forgive() {
    super.forgive();
    for (const field of this.fields.values()) field.forgive();
  }
}

const MAKERS = {
  ...{ text: TextField, lines: LinesField, secret: SecretField, date: DateField, moment: MomentField, time: TimeField },
  ...{ number: NumberField, flag: FlagField, choice: ChoiceField, choices: ChoicesField, list: ListField },
  ...{ group: GroupField, json: JsonField },
};
