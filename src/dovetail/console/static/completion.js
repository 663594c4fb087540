// A text field with suggestions of the server, from `suggest(value)`, which promises a list of texts.
// Arrows choose in the list under it, Enter takes, Escape closes.
// It has several lines, for prompts take whole texts; so it stays a textbox, and the suggestions are announced.

import { announce, el, fill, freshId, show } from "./dom.js";
import { plural, shortened, textOf } from "./format.js";

const QUIET_MS = 120; // after the last key
const SHOWN = 50;

export class CompletedField {
  constructor({ name, title, description, required, suggest }) {
    this.id = freshId("argument");
    this.suggest = suggest;
    this.options = [];
    this.active = -1;
    this.control = el("textarea", {
      ...{ id: this.id, rows: 1, autocomplete: "off", spellcheck: "false" },
      ...{
        "aria-autocomplete": suggest ? "list" : null,
        "aria-haspopup": suggest ? "listbox" : null,
        "aria-controls": `${this.id}-list`,
      },
      ...{ "aria-describedby": `${this.id}-help ${this.id}-error`, "aria-required": required ? "true" : null },
      ...{ oninput: () => this.changed(), onfocus: () => this.lookSoon(), onblur: () => this.close() },
      onkeydown: (event) => this.pressed(event),
    });
    this.list = el("ul", {
      id: `${this.id}-list`,
      role: "listbox",
      "aria-label": "Suggestions",
      class: "suggestions",
      hidden: true,
    });
    this.error = el("p", { class: "field-error", id: `${this.id}-error`, hidden: true });
    const star = required && el("span", { class: "required", "aria-hidden": "true" }, "*");
    const label = el(
      "div",
      { class: "field-label" },
      el("label", { for: this.id, class: "field-name" }, textOf(title) || name),
      star,
    );
    const help = el("p", { class: "field-help", id: `${this.id}-help` }, shortened(textOf(description), 600));
    this.element = el(
      "div",
      { class: "field completed" },
      label,
      el("div", { class: "combobox" }, this.control, this.list),
      help,
      this.error,
    );
    this.listeners = [];
  }

  get value() {
    return this.control.value;
  }

  set value(text) {
    this.control.value = text;
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  changed() {
    this.forgive();
    for (const listener of this.listeners) listener();
    this.lookSoon();
  }

  lookSoon() {
    clearTimeout(this.timer);
    if (this.suggest) this.timer = setTimeout(() => this.look(), QUIET_MS);
  }

  async look() {
    const asked = this.value;
    let found = [];
    try {
      found = (await this.suggest(asked)).filter((text) => typeof text === "string");
    } catch {
      // a field works without suggestions
    }
    if (asked !== this.value || document.activeElement !== this.control) return;
    this.open(found.filter((text) => text !== asked).slice(0, SHOWN));
  }

  open(texts) {
    this.active = -1;
    this.options = texts.map((text, at) => {
      const onmousedown = (event) => (event.preventDefault(), this.take(at));
      return el(
        "li",
        { role: "option", id: `${this.id}-${at}`, "aria-selected": "false", onmousedown },
        shortened(text, 200),
      );
    });
    this.texts = texts;
    fill(this.list, this.options);
    show(this.list, texts.length > 0);
    this.control.removeAttribute("aria-activedescendant");
    if (texts.length) announce(plural(texts.length, "suggestion"));
  }

  close() {
    clearTimeout(this.timer);
    if (!this.list.hidden) this.open([]);
  }

  take(at) {
    this.value = this.texts[at];
    this.open([]);
    for (const listener of this.listeners) listener();
  }

  move(by) {
    this.active = (this.active + by + this.options.length) % this.options.length;
    this.options.forEach((option, at) => option.setAttribute("aria-selected", String(at === this.active)));
    this.control.setAttribute("aria-activedescendant", this.options[this.active].id);
    this.options[this.active].scrollIntoView({ block: "nearest" });
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey) return;
    if (this.list.hidden) {
      if (event.key === "ArrowDown" && this.suggest && !this.value.includes("\n")) this.look();
      return;
    }
    const moves = { ArrowDown: 1, ArrowUp: this.active < 0 ? 0 : -1 };
    if (event.key in moves) this.move(moves[event.key]);
    else if (event.key === "Escape") this.open([]);
    else if (event.key === "Enter" && this.active >= 0) this.take(this.active);
    else return;
    event.preventDefault();
  }

  complain(words) {
    this.error.textContent = words;
    show(this.error, true);
    this.control.setAttribute("aria-invalid", "true");
    return this.control;
  }

  forgive() {
    show(this.error, false);
    this.control.removeAttribute("aria-invalid");
  }
}
