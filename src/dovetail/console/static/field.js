// The fields of a form that hold one value, one class for each kind. In: a schema and where it stands.
// Out: a Field: `element` to show, `read()` for its value (undefined: left out), `write(value)`, `complain(path, words)`.

import { el, freshId, show } from "./dom.js";
import { choicesOf, hintOf, resolved, typeName } from "./schema.js";
import { pretty, shortened, textOf } from "./words.js";

/** Thrown by `read()` if what was typed is no value at all. */
export class Unreadable extends Error {
  constructor(path, message) {
    super(message);
    this.path = path;
  }
}

export class Field {
  constructor(place) {
    Object.assign(this, place);
    this.id = freshId("field");
    this.error = el("p", { class: "field-error", id: `${this.id}-error`, hidden: true });
    this.description = el(
      "p",
      { class: "field-help", id: `${this.id}-help` },
      shortened(textOf(this.schema.description), 600),
    );
    show(this.description, Boolean(this.schema.description));
  }

  /** Ties a control to its label, help and error. */
  attributes(more = {}) {
    const described = `${this.schema.description ? `${this.id}-help ` : ""}${this.id}-error`;
    return { id: this.id, "aria-describedby": described, "aria-required": this.required ? "true" : null, ...more };
  }

  /** The name, as a label or a legend, and beside it what is not part of the name. */
  caption(tag, more = {}) {
    const name = this.path.at(-1);
    const isPlace = /^\d+$/.test(name); // in a list
    const type = [typeName(this.schema, this.root), hintOf(this.schema)].filter(Boolean).join(" · ");
    const beside = [
      this.required && !isPlace && el("span", { class: "required", "aria-hidden": "true", title: "required" }, "*"),
      el("span", { class: "field-type", "aria-hidden": "true" }, type),
      this.label !== name && !isPlace && el("code", { class: "field-key", "aria-hidden": "true" }, name),
    ];
    const caption = el(tag, { class: "field-name", ...more }, this.label, tag === "legend" && beside);
    return tag === "legend" ? caption : el("div", { class: "field-label" }, caption, beside);
  }

  wrap(...controls) {
    return el(
      "div",
      { class: "field" },
      this.caption("label", { for: this.id }),
      ...controls,
      this.description,
      this.error,
    );
  }

  complain(path, words) {
    this.error.textContent = words;
    show(this.error, true);
    this.control?.setAttribute("aria-invalid", "true");
    return this.control ?? this.error;
  }

  forgive() {
    show(this.error, false);
    this.control?.removeAttribute("aria-invalid");
  }
}

/** A control whose value is a text. */
export class TextField extends Field {
  constructor(place) {
    super(place);
    this.control = this.makeControl();
    this.control.addEventListener("input", () => this.forgive());
    this.element = this.wrap(this.control);
  }

  makeControl() {
    return el(
      "input",
      this.attributes({ type: "text", autocomplete: "off", spellcheck: "false", placeholder: this.example() }),
    );
  }

  example() {
    const [example] = Array.isArray(this.schema.examples) ? this.schema.examples : [];
    return typeof example === "string" || typeof example === "number" ? `e.g. ${shortened(example, 60)}` : null;
  }

  read() {
    return this.control.value === "" ? undefined : this.parse(this.control.value);
  }

  parse(text) {
    return text;
  }

  write(value) {
    this.control.value = typeof value === "string" ? value : JSON.stringify(value);
  }
}

export class LinesField extends TextField {
  makeControl() {
    return el("textarea", this.attributes({ rows: 1, spellcheck: "false", placeholder: this.example() }));
  }
}

export class SecretField extends TextField {
  makeControl() {
    return el("input", this.attributes({ type: "password", autocomplete: "off" }));
  }
}

export class DateField extends TextField {
  makeControl() {
    return el("input", this.attributes({ type: "date" }));
  }
}

export class TimeField extends TextField {
  makeControl() {
    return el("input", this.attributes({ type: "time", step: "1" }));
  }
}

/** Shown in local time, sent in UTC. */
export class MomentField extends TextField {
  makeControl() {
    return el("input", this.attributes({ type: "datetime-local", step: "1" }));
  }

  parse(text) {
    const time = new Date(text);
    if (Number.isNaN(time.getTime())) throw new Unreadable(this.path, "must be a date and time");
    return time.toISOString();
  }

  write(value) {
    const time = new Date(value);
    if (Number.isNaN(time.getTime())) return;
    this.control.value = new Date(time - time.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
  }
}

export class NumberField extends TextField {
  makeControl() {
    const mode = this.schema.type === "integer" ? "numeric" : "decimal";
    return el(
      "input",
      this.attributes({ type: "text", inputmode: mode, autocomplete: "off", placeholder: this.example() }),
    );
  }

  parse(text) {
    const number = Number(text.trim());
    if (text.trim() === "" || !Number.isFinite(number)) throw new Unreadable(this.path, "must be a number");
    return number;
  }
}

export class JsonField extends TextField {
  makeControl() {
    return el("textarea", this.attributes({ rows: 3, spellcheck: "false", class: "code", placeholder: "JSON" }));
  }

  parse(text) {
    try {
      return JSON.parse(text);
    } catch (failure) {
      throw new Unreadable(this.path, `is not JSON: ${failure.message}. Texts need quotes.`);
    }
  }

  write(value) {
    this.control.value = pretty(value);
  }
}

export class ChoiceField extends TextField {
  makeControl() {
    this.choices = choicesOf(this.schema);
    const empty = el("option", { value: "" }, this.required ? "Choose…" : "–");
    const options = this.choices.map((choice, at) => el("option", { value: String(at) }, shortened(choice.title, 100)));
    return el("select", this.attributes(), empty, options);
  }

  parse(text) {
    return this.choices[Number(text)].value;
  }

  write(value) {
    const at = this.choices.findIndex((choice) => JSON.stringify(choice.value) === JSON.stringify(value));
    this.control.value = at < 0 ? "" : String(at);
  }
}

/** Left out as long as nobody touched it, unless it is required or has a value to begin with. */
export class FlagField extends Field {
  constructor(place) {
    super(place);
    this.touched = this.required;
    this.control = el(
      "input",
      this.attributes({ type: "checkbox", "aria-required": null, onchange: () => (this.touched = true) }),
    );
    this.element = el(
      "div",
      { class: "field flag" },
      this.control,
      this.caption("label", { for: this.id }),
      this.description,
      this.error,
    );
  }

  read() {
    return this.touched ? this.control.checked : undefined;
  }

  write(value) {
    this.touched = true;
    this.control.checked = value === true;
  }
}

/** Some of a few. */
export class ChoicesField extends Field {
  constructor(place) {
    super(place);
    this.touched = this.required;
    this.choices = choicesOf(resolved(this.schema.items, this.root));
    this.boxes = this.choices.map(() => el("input", { type: "checkbox", onchange: () => this.touch() }));
    const options = this.choices.map((choice, at) =>
      el("label", { class: "option" }, this.boxes[at], shortened(choice.title, 100)),
    );
    const described = { "aria-describedby": `${this.id}-error` };
    this.element = el(
      "fieldset",
      { class: "field", ...described },
      this.caption("legend"),
      el("div", { class: "options" }, options),
      this.description,
      this.error,
    );
  }

  touch() {
    this.touched = true;
    this.forgive();
  }

  read() {
    const chosen = this.choices.filter((_, at) => this.boxes[at].checked).map((choice) => choice.value);
    return this.touched || chosen.length ? chosen : undefined;
  }

  write(values) {
    const wanted = new Set((Array.isArray(values) ? values : []).map((value) => JSON.stringify(value)));
    this.choices.forEach((choice, at) => (this.boxes[at].checked = wanted.has(JSON.stringify(choice.value))));
    this.touched = true;
  }
}
