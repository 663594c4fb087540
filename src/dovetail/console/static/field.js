// The fields of a form for one typed value, one class for each kind.
// A Field has its `element`, `read(wrong)` for its value (undefined: left out), `write(value)`, and
// `complain(path, words)`. What was typed but is no value at all is added to `wrong`, as {path, message}.

import { el, freshId, show } from "./dom.js";
import { hintOf, isSecret, simpleTypes, skeleton, typeName, wordsAmong } from "./schema.js";
import { nouns } from "./validate.js";
import { pretty, shortened, textOf } from "./format.js";

const LONGEST_HELP = 2000; // characters

/** Thrown by `parse()` if what was typed is no value. */
class Unreadable extends Error {}

export class Field {
  /** `name` is null for the form itself; `isEntry`: it has a place in a list, and no name. */
  constructor(place) {
    Object.assign(this, place);
    this.id = freshId("field");
    this.error = el("p", { class: "field-error", id: `${this.id}-error`, hidden: true });
    const help = textOf(this.schema.description).trim();
    this.description = this.help("help", help.length > LONGEST_HELP ? `${help.slice(0, LONGEST_HELP)}…` : help);
    this.note = this.help("note", this.advice());
  }

  help(part, words) {
    return el("p", { class: "field-help", id: `${this.id}-${part}` }, words);
  }

  /** How to fill it in, where that is not plain. */
  advice() {
    return "";
  }

  get describedBy() {
    const described = [this.description, this.note].filter((each) => each.textContent);
    return [...described, this.error].map((each) => each.id).join(" ");
  }

  /** Ties a control to its label, help and error. */
  attributes(more = {}) {
    const required = this.required ? "true" : null;
    return { id: this.id, "aria-describedby": this.describedBy, "aria-required": required, ...more };
  }

  /** The name, as a label or a legend, and beside it what is not part of the name. */
  caption(tag, more = {}) {
    const type = [typeName(this.schema, this.root), hintOf(this.schema), this.ifEmpty];
    const hidden = { "aria-hidden": "true" };
    const beside = [
      this.required && !this.isEntry && el("span", { class: "required", title: "required", ...hidden }, "*"),
      el("span", { class: "field-type", ...hidden }, type.filter(Boolean).join(" · ")),
      this.label !== this.name && !this.isEntry && el("code", { class: "field-key", ...hidden }, this.name),
    ];
    this.nameText = document.createTextNode(this.label);
    const caption = el(tag, { class: "field-name", ...more }, this.nameText, tag === "legend" && beside);
    return tag === "legend" ? caption : el("div", { class: "field-label" }, caption, beside);
  }

  get ifEmpty() {
    return this.orNull ? "null if empty" : "";
  }

  rename(label) {
    this.label = label;
    this.nameText.data = label;
  }

  wrap(...controls) {
    return el(
      "div",
      { class: "field" },
      this.caption("label", { for: this.id }),
      ...controls,
      this.error,
      this.note,
      this.description,
    );
  }

  /** Beside what was said before. */
  complain(path, given) {
    const words = path.length ? `${path.join(".")}: ${given}` : given; // inside of JSON
    this.error.textContent = this.error.hidden ? words : `${this.error.textContent} ${words}`;
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

  read(wrong = []) {
    if (this.control.validity.badInput) return this.isWrong(wrong, "is not complete"); // a date of which half is there
    if (this.control.value === "") return undefined;
    try {
      return this.parse(this.control.value);
    } catch (failure) {
      if (!(failure instanceof Unreadable)) throw failure;
      return this.isWrong(wrong, failure.message);
    }
  }

  isWrong(wrong, message) {
    wrong.push({ path: [], message });
    return undefined;
  }

  parse(text) {
    return text;
  }

  write(value) {
    this.control.value = value === null ? "" : typeof value === "string" ? value : JSON.stringify(value);
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

  parse(text) {
    return /^\d\d:\d\d$/.test(text) ? `${text}:00` : text;
  }
}

/** Shown in local time, sent in UTC; what it began with is sent as it was. */
export class MomentField extends TextField {
  makeControl() {
    return el("input", this.attributes({ type: "datetime-local", step: "1", oninput: () => this.explain() }));
  }

  advice(sent = "UTC") {
    return `Your time (${Intl.DateTimeFormat().resolvedOptions().timeZone}), sent as ${sent}.`;
  }

  explain() {
    this.note.textContent = this.advice(this.read());
  }

  parse(text) {
    if (text === this.begin?.shown) return this.begin.value;
    const time = new Date(text);
    if (Number.isNaN(time.getTime())) throw new Unreadable("must be a date and time");
    return time.toISOString().replace(".000Z", "Z");
  }

  write(value) {
    const time = new Date(value ?? Number.NaN);
    if (Number.isNaN(time.getTime())) return void (this.control.value = "");
    this.control.value = new Date(time - time.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
    this.begin = { shown: this.control.value, value };
    this.explain();
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
    if (text.trim() === "" || !Number.isFinite(number)) throw new Unreadable("must be a number");
    return number;
  }
}

/** A text, a number, true or false: whichever of them the schema lets it be. */
export class PlainField extends TextField {
  makeControl() {
    return el("input", this.attributes({ type: this.isHidden ? "password" : "text", placeholder: this.example() }));
  }

  get types() {
    return simpleTypes(this.schema, this.root);
  }

  get isHidden() {
    return [this.schema.anyOf, this.schema.oneOf].flat().some(isSecret);
  }

  advice() {
    if (!this.types.includes("string")) return "";
    const others = this.types.filter((type) => type !== "string");
    const words = shortened(wordsAmong(this.schema, this.root).join(", "), 200);
    if (words) return `May be${others.length ? ` ${nouns(others)}, or` : ""}: ${words}.`; // there are no other texts
    const taken = others.some((type) => type !== "boolean") ? "5" : "true";
    return `Text needs no quotes. Write "${taken}" with quotes if it is meant as text.`;
  }

  parse(text) {
    const value = valueIn(text.trim());
    if (value !== undefined && this.takes(value)) return value;
    if (this.types.includes("string")) return text;
    throw new Unreadable(`must be ${nouns(this.types)}`);
  }

  /** Undefined if the text is no value here. */
  meant(text) {
    try {
      return this.parse(text);
    } catch {
      return undefined;
    }
  }

  takes(value) {
    if (value === null) return this.isNullable;
    const isWhole = Number.isInteger(value) && this.types.includes("integer");
    return isWhole || this.types.includes(typeof value);
  }

  write(value) {
    const isRead = typeof value !== "string" || value === "" || this.meant(value) !== value;
    this.control.value = isRead ? JSON.stringify(value) : value;
  }
}

/** Undefined if it is no JSON. */
function valueIn(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export class JsonField extends TextField {
  makeControl() {
    const look = { rows: 3, spellcheck: "false", class: "code" };
    return el("textarea", this.attributes({ ...look, placeholder: this.example() }));
  }

  example() {
    const [example] = Array.isArray(this.schema.examples) ? this.schema.examples : [];
    return `JSON, e.g. ${shortened(JSON.stringify(example ?? skeleton(this.schema, this.root)), 200)}`;
  }

  parse(text) {
    try {
      return JSON.parse(text);
    } catch (failure) {
      throw new Unreadable(`is not JSON: ${failure.message}. Texts need quotes.`);
    }
  }

  write(value) {
    this.control.value = pretty(value);
  }
}
