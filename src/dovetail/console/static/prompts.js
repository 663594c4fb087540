// The section "Prompts": fields for their arguments, with completion, and the messages that a prompt gives.

import { CallPanel, summaryOf } from "./callpanel.js";
import { CompletedField } from "./completion.js";
import { copyButtons } from "./snippets.js";
import { el, isGo } from "./dom.js";
import { problemsNamed } from "./form.js";
import { detailHead, ListSection } from "./listsection.js";
import { isObject, textOf } from "./format.js";

export function promptSection(client) {
  return new ListSection(client, {
    name: "prompts",
    noun: "prompts",
    feature: "prompts",
    lists: [["prompts/list", "prompts", ""]],
    entry: (prompt) => ({
      key: textOf(prompt.name),
      title: textOf(prompt.name),
      about: textOf(prompt.description) || textOf(prompt.title),
    }),
    makeDetail: (prompt) => new PromptDetail(client, prompt),
    empty: ["No prompts.", "This server offers none."],
    welcome: ["No prompts here.", "Add one to the server with @server.prompt; the list follows by itself."],
  });
}

class PromptDetail {
  constructor(client, prompt) {
    this.client = client;
    this.prompt = prompt;
    this.panel = new CallPanel(client, {
      kind: "prompt",
      label: "Get prompt",
      submit: () => this.submit(),
      idle: "Fill in the form and press Get prompt.",
    });
    const wanted = Array.isArray(prompt.arguments) ? prompt.arguments.filter(isObject).slice(0, 100) : [];
    this.fields = new Map(wanted.map((argument) => [textOf(argument.name), this.field(argument)]));
    this.required = wanted.filter((argument) => argument.required === true).map((argument) => textOf(argument.name));
    const fields = [...this.fields.values()].map((field) => field.element);
    const actions = el("div", { class: "actions" }, this.panel.start, this.panel.stop);
    const copies = copyButtons(client, () => this.entry());
    const onkeydown = (event) => isGo(event) && this.submit();
    const form = fields.length ? fields : el("p", { class: "muted" }, "No arguments.");
    this.element = this.panel.beside([detailHead(prompt), form, actions, copies], { onkeydown });
  }

  field({ name, title, description, required }) {
    const suggest = this.client.suggester({ type: "ref/prompt", name: this.prompt.name }, name, () => this.values());
    return new CompletedField({ name: textOf(name), title, description, required: required === true, suggest });
  }

  values() {
    return Object.fromEntries(
      [...this.fields].map(([name, field]) => [name, field.value]).filter(([, value]) => value !== ""),
    );
  }

  fill(values) {
    for (const [name, field] of this.fields) field.value = textOf(values?.[name]);
  }

  entry() {
    return { kind: "prompt", name: textOf(this.prompt.name), arguments: this.values() };
  }

  async submit() {
    const missing = this.required.filter((name) => !this.fields.get(name).value);
    const places = missing.map((name) => this.fields.get(name).complain("Is required."));
    places[0]?.focus();
    if (missing.length) return;
    const params = { name: this.prompt.name, arguments: this.values() };
    const entry = this.entry(); // before the fields change
    const outcome = await this.panel.run({ method: "prompts/get", params });
    if (!outcome) return;
    for (const { path, message } of problemsNamed(outcome.failure?.message, outcome.failure?.data)) {
      this.fields.get(path[0])?.complain(`The server says: ${message}`);
    }
    this.client.history.add({ ...entry, ...summaryOf(outcome) });
  }
}
