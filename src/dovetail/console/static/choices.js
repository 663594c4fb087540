// The fields of a form for values that are chosen or ticked; each is a Field as in `field.js`.

import { el } from "./dom.js";
import { Field, TextField } from "./field.js";
import { choicesOf, resolved } from "./schema.js";
import { shortened } from "./format.js";

export class ChoiceField extends TextField {
  makeControl() {
    this.choices = choicesOf(this.schema);
    const empty = el("option", { value: "" }, this.required ? "Choose…" : "–");
    const options = this.choices.map((choice, at) => el("option", { value: String(at) }, shortened(choice.title, 100)));
    if (this.required && options.length === 1) options[0].selected = true; // there is nothing to choose
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

/** Left out as long as the user has not touched it, unless it is required or has a value to begin with. */
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
    this.touched = value !== null;
    this.control.checked = value === true;
  }
}

/** Some of a few. */
export class ChoicesField extends Field {
  constructor(place) {
    super(place);
    this.touched = this.required;
    this.choices = choicesOf(resolved(this.schema.items, this.root));
    const described = { "aria-describedby": this.describedBy };
    this.boxes = this.choices.map(() => el("input", { type: "checkbox", ...described, onchange: () => this.touch() }));
    this.control = this.boxes[0];
    const options = this.choices.map((choice, at) =>
      el("label", { class: "option" }, this.boxes[at], shortened(choice.title, 100)),
    );
    this.element = el(
      "fieldset",
      { class: "field" },
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
    this.touched = values !== null;
  }
}
