// The section "Tools": a form for each tool, and its calls.

import { isForApps } from "./apphost.js";
import { AppView, viewOf } from "./appview.js";
import { CallPanel, summaryOf } from "./callpanel.js";
import { copyButtons } from "./snippets.js";
import { confirmed } from "./dialog.js";
import { el, isGo } from "./dom.js";
import { Form, problemsNamed } from "./form.js";
import { detailHead, ListSection } from "./listsection.js";
import { withoutSecrets } from "./secrets.js";
import { jsonTree } from "./tree.js";
import { shortened, textOf } from "./format.js";

const ASSUMED = { text: "destructive", title: "It may destroy something: it does not say that it does not." };
const MARKED = { ...ASSUMED, kind: "bad", title: "It may destroy something. You are asked before it is called." };
const READ_ONLY = { text: "read-only", title: "It changes nothing." };
const IDEMPOTENT = { text: "idempotent", title: "Calling it twice does no more than calling it once." };
const APP_ONLY = { text: "app only", title: "Hosts offer it to views, not to models." };
const OPEN_WORLD = { text: "open world", title: "It deals with the world outside of the server." };

/** What has to be assumed of a tool: hints that it does not give stand for the worse. */
function hintsOf(tool) {
  const { readOnlyHint, destructiveHint, idempotentHint, openWorldHint } = tool.annotations ?? {};
  const destroys = isDestructive(tool) ? MARKED : ASSUMED;
  const may = destructiveHint !== false && readOnlyHint !== true;
  const all = [readOnlyHint === true && READ_ONLY, may && destroys, idempotentHint === true && IDEMPOTENT];
  return [...all, openWorldHint !== false && OPEN_WORLD, isAppOnly(tool) && APP_ONLY].filter(Boolean);
}

function isAppOnly(tool) {
  return Array.isArray(tool._meta?.ui?.visibility) && !tool._meta.ui.visibility.includes("model") && isForApps(tool);
}

export class ToolSection extends ListSection {
  constructor(client) {
    super(client, {
      name: "tools",
      noun: "tools",
      feature: "tools",
      lists: [["tools/list", "tools", ""]],
      entry: (tool) => ({
        key: textOf(tool.name),
        title: textOf(tool.name),
        about: textOf(tool.description) || titleOf(tool),
        chips: hintsOf(tool).filter(({ text }) => text === "destructive"),
      }),
      makeDetail: (tool) => new ToolDetail(client, tool),
      empty: ["No tools.", "This server offers none."],
      welcome: ["No tools here.", "Add one to the server with @server.tool; the list follows by itself."],
    });
  }

  /** The server says that a resource has changed: it may be a view. */
  updated(uri) {
    for (const { detail } of this.details.values()) if (detail.view?.uri === uri) detail.view.refresh();
  }
}

function titleOf(tool) {
  return textOf(tool.title) || textOf(tool.annotations?.title);
}

/** Whether it says so itself. */
function isDestructive(tool) {
  return tool.annotations?.destructiveHint === true;
}

class ToolDetail {
  constructor(client, tool) {
    this.client = client;
    this.tool = tool;
    this.form = new Form(tool.inputSchema);
    this.panel = new CallPanel(client, {
      kind: "tool",
      label: "Call",
      submit: () => this.submit(),
      idle: "Fill in the form and press Call.",
    });
    if (viewOf(tool)) {
      this.view = new AppView(client, tool, this.panel);
      this.panel.result.element.before(this.view.element);
    }
    const description = shortened(textOf(tool.description), 4000);
    const head = detailHead({ name: tool.name, title: titleOf(tool), description }, hintsOf(tool));
    const copies = copyButtons(client, () => this.entry(this.form.read()));
    const actions = el(
      "div",
      { class: "actions" },
      this.panel.start,
      this.panel.stop,
      el("span", { class: "push" }),
      this.form.toggle,
    );
    const onkeydown = (event) => this.pressed(event);
    this.element = this.panel.beside([head, this.form.element, actions, copies, schemas(tool)], { onkeydown });
  }

  pressed(event) {
    const wanted = isGo(event) || (event.key === "Enter" && !event.repeat && isPlainInput(event.target));
    if (!wanted || event.defaultPrevented) return;
    event.preventDefault();
    this.submit();
  }

  /** The list is there again, perhaps from another server process. */
  connected() {
    this.view?.refresh();
  }

  returned() {
    this.view?.returned();
  }

  /** Put these arguments into the form. */
  fill(values) {
    this.form.load(values ?? {});
  }

  async submit() {
    const values = this.form.read();
    if (!values || this.panel.running) return;
    if (isDestructive(this.tool) && !(await this.isMeant())) return;
    const { tool } = this;
    const params = { name: tool.name, arguments: values };
    this.view?.open(values);
    const outcome = await this.panel.run({ method: "tools/call", params, tool });
    if (!outcome) return;
    this.view?.finish(outcome);
    this.explain(outcome);
    this.client.history.add({ ...this.entry(values), ...summaryOf(outcome) });
  }

  isMeant() {
    return confirmed(`Call ${this.tool.name}?`, "The server says that this tool may destroy something.", "Call anyway");
  }

  entry(values) {
    return values && { kind: "tool", name: this.tool.name, arguments: withoutSecrets(this.tool.inputSchema, values) };
  }

  /** What the server found wrong with the arguments goes beside the fields. */
  explain({ result, failure }) {
    const said = failure ? failure.message : result.isError === true ? textOf(result.content?.[0]?.text) : "";
    for (const { path, message } of problemsNamed(said, failure?.data))
      this.form.complain(path, `The server says: ${message}`);
  }
}

function isPlainInput(target) {
  return target instanceof HTMLInputElement && !["checkbox", "search"].includes(target.type);
}

function schemas(tool) {
  const parts = [
    ["Input schema", tool.inputSchema],
    ["Output schema", tool.outputSchema],
    ["Annotations", tool.annotations],
  ];
  return parts.filter(([, schema]) => schema).map(([name, schema]) => lazyTree(name, schema));
}

export function lazyTree(name, value) {
  const place = el("details", { class: "schema" }, el("summary", {}, name));
  place.addEventListener(
    "toggle",
    () => place.open && place.children.length === 1 && place.append(jsonTree(value, { open: 3 })),
  );
  return place;
}
