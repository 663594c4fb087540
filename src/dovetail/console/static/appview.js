// The view of a tool, beside its result: read from the server, shown in a frame, and read anew when it changes.

import { AppHost } from "./apphost.js";
import { el, fill, region, show } from "./dom.js";
import { CallError } from "./transport.js";
import { shortened, textOf } from "./format.js";

const MIME_TYPE = "text/html;profile=mcp-app";

/** The URI of a tool's view, in either spelling; "" if it has none. */
export function viewOf(tool) {
  const uri = textOf(tool._meta?.ui?.resourceUri) || textOf(tool._meta?.["ui/resourceUri"]);
  return uri.startsWith("ui://") ? uri : "";
}

export class AppView {
  constructor(client, tool, panel) {
    Object.assign(this, { client, tool, panel, uri: viewOf(tool) });
    this.frames = el("div", { class: "frames" });
    this.problem = el("div", { role: "status" });
    const head = el("header", { class: "bar" }, el("h3", {}, "View"), el("code", { class: "muted" }, this.uri));
    this.element = region("View", "view pane", head, this.problem, this.frames);
    show(this.element, false);
    this.reads = 0; // begun so far: one that was overtaken is not shown
  }

  /** Show it for a call that begins. */
  open(input) {
    Object.assign(this, { input, outcome: null, isOpen: true });
    show(this.element, true);
    this.follow();
    return this.render({ anew: true });
  }

  /** The outcome of the call. */
  finish(outcome) {
    this.outcome = outcome;
    this.tellOutcome();
  }

  /** It has changed, or the server was restarted. */
  refresh() {
    if (!this.isOpen) return;
    this.follow();
    this.render({ anew: false });
  }

  /** A frame that was out of the page has lost its document. */
  returned() {
    if (this.isOpen) this.render({ anew: true });
  }

  /** Have the server notify of changes, if it does that. */
  follow() {
    const { connection } = this.client;
    if (this.followed === connection) return;
    this.followed = connection;
    connection.watch(this.uri).catch(() => {});
  }

  async render({ anew }) {
    this.reads += 1;
    const number = this.reads;
    try {
      const document = await this.read();
      const isSame = JSON.stringify(document) === JSON.stringify(this.document);
      if (number !== this.reads || (isSame && !anew)) return;
      this.document = document;
      fill(this.problem);
      this.host?.close();
      this.host = new AppHost(this.client, this.tool, document, this.panel);
      this.frames.append(this.host.element);
      this.host.tell("ui/notifications/tool-input", { arguments: this.input });
      this.tellOutcome();
    } catch (failure) {
      if (number !== this.reads) return;
      fill(this.problem, el("p", { class: "error-text" }, `It can't be shown: ${shortened(failure.message, 500)}`));
    }
  }

  tellOutcome() {
    if (!this.outcome) return;
    const { result, failure } = this.outcome;
    if (failure) return this.host?.tell("ui/notifications/tool-cancelled", { reason: failure.message });
    const { content, structuredContent, isError, _meta } = result;
    this.host?.tell("ui/notifications/tool-result", { content, structuredContent, isError, _meta });
  }

  /** The document, and the origins that it may use. Some servers declare these in the list alone. */
  async read() {
    const { contents } = await this.client.connection.request("resources/read", { uri: this.uri });
    const found = contents?.[0] ?? {};
    if (found.mimeType !== MIME_TYPE) throw new CallError(`its type is ${textOf(found.mimeType)}, not ${MIME_TYPE}.`);
    const listed = this.client.sections.resources.definitions.get(this.uri)?.definition;
    const { csp = {} } = found._meta?.ui ?? listed?._meta?.ui ?? {};
    return { html: textOf(found.text) || decoded(textOf(found.blob)), csp };
  }
}

function decoded(blob) {
  return new TextDecoder().decode(Uint8Array.from(atob(blob), (letter) => letter.charCodeAt(0)));
}
