// A form made from a JSON Schema, as fields or as JSON, with the problems that a server found beside them.
// `read()` gives the values, or null after every problem was written beside its field.

import { announce, button, el, fill, freshId, show } from "./dom.js";
import { freshBudget, GroupField } from "./fields.js";
import { resolved } from "./schema.js";
import { problemsOf } from "./validate.js";
import { isObject, isSameJson, plural, pretty } from "./format.js";

const FREE = ["anyOf", "oneOf", "allOf", "additionalProperties", "patternProperties"]; // what has no fields of its own

export class Form {
  /** `json`: whether the whole may also be written as JSON, which is sent unchecked. */
  constructor(schema, { first, json = true } = {}) {
    this.schema = resolved(schema, schema);
    this.place = el("div");
    this.id = freshId("json");
    this.error = el("p", { class: "field-error", id: `${this.id}-error`, hidden: true });
    this.text = el("textarea", {
      ...{ id: this.id, class: "code", rows: 8, spellcheck: "false", "aria-describedby": `${this.id}-error` },
      oninput: () => this.forgive(),
    });
    this.raw = el(
      "div",
      { class: "field", hidden: true },
      el("label", { for: this.id, class: "field-label" }, "Arguments as JSON"),
      this.text,
      this.error,
    );
    this.toggle = json && button("As JSON", () => this.switchView(), { class: "small quiet", "aria-pressed": "false" });
    this.element = el("div", { class: "form" }, this.place, this.raw);
    this.draw(first ?? {});
    if (json && this.isEmpty && FREE.some((word) => this.schema[word])) this.show(true);
  }

  get isEmpty() {
    return !this.group.fields.size;
  }

  /** Other values, exactly: what the fields would change is shown as JSON. */
  load(values) {
    this.draw(values);
    const unreadable = [];
    const shown = this.group.read(unreadable);
    if (this.toggle && (unreadable.length || !isSameJson(shown, values))) this.show(true);
  }

  draw(values) {
    this.group = new GroupField({
      schema: this.schema,
      root: this.schema,
      name: null,
      required: true,
      depth: 0,
      label: "",
      budget: freshBudget(),
    });
    this.group.write(values);
    fill(this.place, this.isEmpty ? el("p", { class: "muted" }, "No arguments.") : this.group.element);
    this.text.value = pretty(values);
  }

  get asJson() {
    return !this.raw.hidden;
  }

  switchView() {
    if (this.asJson) {
      const values = this.readJson();
      if (!values) return;
      this.draw(values);
      const changed = this.changedBy(values);
      if (changed.length) return this.complainAll(changed);
    } else {
      this.forgive();
      const values = this.readFields(false);
      if (!values) return; // what can't be read would be lost
      this.text.value = pretty(values);
    }
    this.show(!this.asJson);
  }

  /** What is not in the fields as it was given. Nothing and null are both an empty field. */
  changedBy(values) {
    const shown = this.group.read([]) ?? {};
    const names = Object.keys(values).filter((name) => values[name] !== null && !isSameJson(shown[name], values[name]));
    return names.map((name) => ({ path: [name], message: "its field can't show this value" }));
  }

  show(asJson) {
    show(this.raw, asJson);
    show(this.place, !asJson);
    if (this.toggle) this.toggle.setAttribute("aria-pressed", String(asJson));
  }

  read() {
    this.forgive();
    return this.asJson ? this.readJson() : this.readFields(true);
  }

  readJson() {
    try {
      const values = JSON.parse(this.text.value.trim() || "{}");
      if (isObject(values)) return values;
      this.complainAll([{ path: [], message: 'must be an object, as in {"name": "value"}' }]);
    } catch (failure) {
      this.complainAll([{ path: [], message: `is not JSON: ${failure.message}` }]);
    }
    return null;
  }

  readFields(checked) {
    const unreadable = [];
    const values = this.group.read(unreadable) ?? {};
    const problems = checked ? problemsOf(values, this.schema) : [];
    const all = [...unreadable, ...problems.filter(({ path }) => !unreadable.some((each) => isSame(each.path, path)))];
    if (all.length) this.complainAll(all);
    return all.length ? null : values;
  }

  /** Every problem beside its field, and the focus on the first. */
  complainAll(problems) {
    for (const { path, message } of problems) this.complain(path, sentence(message));
    announce(`${plural(problems.length, "problem")} in the form.`);
    const first = (selector) => this.element.querySelector(selector);
    (first("[aria-invalid='true']") ?? first(".field-error:not([hidden])"))?.focus();
  }

  complain(path, words) {
    if (!this.asJson) return this.group.complain(path, words);
    const said = [path.join("."), words].filter(Boolean).join(": ");
    this.error.textContent = this.error.hidden ? said : `${this.error.textContent} ${said}`;
    show(this.error, true);
    this.text.setAttribute("aria-invalid", "true");
    return this.text;
  }

  forgive() {
    this.group.forgive();
    show(this.error, false);
    this.text.removeAttribute("aria-invalid");
  }
}

function isSame(path, other) {
  return path.length === other.length && path.every((name, at) => name === other[at]);
}

function sentence(words) {
  const text = String(words);
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

/** The problems that a server's refusal names, as far as they can be read: `- field: words`, or `data.errors`. */
export function problemsNamed(text, data) {
  const listed = Array.isArray(data?.errors) ? data.errors.slice(0, 50) : [];
  const found = listed.map((error) =>
    isObject(error) ? named(error.path ?? error.field, error.message) : line(String(error)),
  );
  const lines = String(text ?? "")
    .split("\n")
    .slice(1, 51);
  return [
    ...found,
    ...(found.some(Boolean) ? [] : lines.map((each) => (each.startsWith("- ") ? line(each.slice(2)) : null))),
  ].filter(Boolean);
}

function line(text) {
  const parts = /^([\w.[\]-]{1,200}): (.+)$/s.exec(text);
  return parts && named(parts[1], parts[2]);
}

function named(path, message) {
  if (path === undefined || typeof message !== "string") return null;
  const names = Array.isArray(path)
    ? path.map(String)
    : String(path)
        .replace(/\[(\d+)\]/g, ".$1")
        .split(".");
  return { path: names.filter((name) => name !== ""), message };
}
