// The host's side of the messages of one view: JSON-RPC over postMessage, as the extension "ui" of MCP has it.
// The view may only ask. What leaves the page or changes something happens after the user's yes.

import { CLIENT_INFO } from "./connection.js";
import { ask } from "./dialog.js";
import { el, isWebUrl, outsideLink } from "./dom.js";
import { CallError } from "./transport.js";
import { jsonTree } from "./tree.js";
import { isObject, shortened, textOf } from "./format.js";

const VERSION = "2026-01-26"; // of the messages
const [REJECTED, UNKNOWN, INVALID] = [-1, -32601, -32602];
const MAX_RUNNING = 20; // requests of a view
const [LOWEST, HIGHEST] = [40, 2000]; // pixels
const LEAVE_MS = 300; // for a view to tidy up

const REQUESTS = {
  ping: () => ({}),
  "ui/initialize": (host) => host.about(),
  "ui/open-link": (host, params) => host.openLink(textOf(params.url)),
  "ui/request-display-mode": () => ({ mode: "inline" }),
  "ui/message": () => ({ isError: true }), // there is no chat here
  "ui/download-file": () => ({ isError: true }),
  "tools/call": (host, params) => host.callTool(textOf(params.name), params.arguments ?? {}),
  "resources/read": (host, params) => host.send("resources/read", { uri: textOf(params.uri) }),
};

const NOTIFICATIONS = {
  "ui/notifications/initialized": (host) => host.initialized(),
  "ui/notifications/size-changed": (host, params) => host.resize(params.height),
  "ui/notifications/request-teardown": (host) => host.close(),
  "notifications/message": (host, params) => host.panel.log(params),
};

/** Whether views may call it, which is so if it does not say otherwise. */
export function isForApps(tool) {
  const visibility = tool._meta?.ui?.visibility;
  return !Array.isArray(visibility) || visibility.includes("app");
}

export class AppHost {
  /** `document`: {html, csp}. `panel` shows the log messages of the view, and what it asks the server. */
  constructor(client, tool, { html, csp }, panel) {
    Object.assign(this, { client, tool, html, panel });
    this.answers = new Map(); // tool: whether the view may call it
    this.waiting = []; // for the view to be initialized
    this.running = 0;
    this.gone = new AbortController();
    this.frame = el("iframe", {
      ...{ sandbox: "allow-scripts", src: `view?${policy(csp)}`, referrerpolicy: "no-referrer" },
      title: `View of ${shortened(textOf(tool.name), 100)}`,
    });
    this.element = el("div", {}, this.frame); // which keeps its place while the frame is hidden
    window.addEventListener("message", (event) => this.hear(event), { signal: this.gone.signal });
    const themes = new MutationObserver(() => this.tell("ui/notifications/host-context-changed", { theme: theme() }));
    themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    this.gone.signal.addEventListener("abort", () => themes.disconnect());
  }

  /** Only this frame is heard, and only while its sandbox holds. */
  hear({ source, origin, data }) {
    if (!source || source !== this.frame.contentWindow || origin !== "null" || !isObject(data)) return;
    if (data.frame === "ready") return this.write();
    if (data.jsonrpc !== "2.0") return;
    const params = isObject(data.params) ? data.params : {};
    if (typeof data.method !== "string") this.onReply?.();
    else if (data.id !== undefined) this.respond(data, params);
    else if (Object.hasOwn(NOTIFICATIONS, data.method)) NOTIFICATIONS[data.method](this, params);
  }

  /** Once: a view that leads its frame to another policy does not get its document there. */
  write() {
    if (this.html !== null) this.post({ html: this.html });
    this.html = null;
  }

  async respond({ id, method }, params) {
    this.running += 1;
    let outcome;
    try {
      if (this.running > MAX_RUNNING) throw new CallError("The view has too many requests in flight.");
      if (!Object.hasOwn(REQUESTS, method)) {
        throw new CallError(`This console does not know ${shortened(method, 100)}.`, { code: UNKNOWN });
      }
      outcome = { result: await REQUESTS[method](this, params) };
    } catch (failure) {
      outcome = { error: { code: Number.isInteger(failure.code) ? failure.code : REJECTED, message: failure.message } };
    }
    this.running -= 1;
    this.post({ jsonrpc: "2.0", id, ...outcome });
  }

  /** A request to the server, for as long as the view is shown. */
  send(method, params, tool) {
    const { transcript } = this.panel.messages;
    return this.client.connection.request(method, params, { tool, transcript, signal: this.gone.signal });
  }

  post(message) {
    this.frame.contentWindow?.postMessage(message, "*"); // its origin has no name
  }

  /** A notification, sent as soon as the view is initialized. */
  tell(method, params) {
    const message = { jsonrpc: "2.0", method, params };
    if (this.waiting) this.waiting.push(message);
    else this.post(message);
  }

  initialized() {
    for (const message of this.waiting ?? []) this.post(message);
    this.waiting = null;
  }

  about() {
    return {
      protocolVersion: VERSION,
      hostInfo: CLIENT_INFO,
      hostCapabilities: { openLinks: {}, serverTools: {}, serverResources: {}, logging: {} },
      hostContext: {
        toolInfo: { tool: this.tool },
        theme: theme(),
        ...{ displayMode: "inline", availableDisplayModes: ["inline"], platform: "web" },
        containerDimensions: { width: this.element.clientWidth, maxHeight: HIGHEST },
        locale: navigator.language,
        timeZone: Intl.DateTimeFormat().resolvedOptions().timeZone,
        userAgent: CLIENT_INFO.name,
      },
    };
  }

  resize(height) {
    if (Number.isFinite(height)) this.element.style.height = `${Math.min(Math.max(height, LOWEST), HIGHEST)}px`;
  }

  // ── what the user is asked ──

  /** One question at a time, and none after a no: a view must not be able to keep the user busy. */
  async openLink(url) {
    if (!isWebUrl(url)) throw new CallError("Only pages of the web can be opened.", { code: INVALID });
    if (this.hasLinkQuestion || this.refusesLinks) return { isError: true };
    this.hasLinkQuestion = true;
    const words = el("p", {}, "It leads to ", el("strong", {}, new URL(url).host), ": ", outsideLink(url));
    this.refusesLinks = !(await this.asks("The view wants to open a page", [words], "Open"));
    this.hasLinkQuestion = false;
    if (this.refusesLinks) return { isError: true };
    window.open(new URL(url).href, "_blank", "noopener,noreferrer");
    return {};
  }

  async callTool(name, values) {
    const tool = this.client.sections.tools.definitions.get(name.toWellFormed())?.definition;
    if (!tool || !isForApps(tool)) {
      throw new CallError(`This server has no tool ${shortened(name, 100)} for apps.`, { code: INVALID });
    }
    if (!(await this.mayCall(tool, values))) throw new CallError(`The user does not let the view call ${name}.`);
    return this.send("tools/call", { name, arguments: values }, tool);
  }

  /** The user is asked once for each tool, but each time for one that destroys; a no is never asked again. */
  async mayCall(tool, values) {
    const before = this.answers.get(tool.name);
    const destroys = tool.annotations?.destructiveHint === true;
    if (before !== undefined && (!destroys || !(await before))) return before;
    const often = destroys
      ? "The server says that this tool may destroy something."
      : "A yes is for all its calls of this tool, as long as the view is shown.";
    const body = [jsonTree(values), el("p", { class: destroys ? "warn-text" : "muted" }, often)];
    const answer = this.asks(`The view wants to call ${shortened(tool.name, 100)}`, body, "Let it call");
    this.answers.set(tool.name, answer);
    return answer;
  }

  async asks(title, body, yes) {
    const dialog = { title, body, buttons: [yes, "Refuse"], signal: this.gone.signal, rests: true };
    const pressed = await ask(dialog).catch(() => null); // the view is gone
    return pressed === yes;
  }

  /** The view may tidy up first. */
  close() {
    const leave = () => (this.gone.abort(), this.element.remove());
    if (this.waiting) return leave(); // it was never there
    this.element.hidden = true;
    this.onReply = leave;
    this.post({ jsonrpc: "2.0", id: "teardown", method: "ui/resource-teardown", params: {} });
    setTimeout(leave, LEAVE_MS);
  }
}

function theme() {
  return document.documentElement.dataset.theme;
}

/** The query of the frame's address: the origins that the view declares. */
function policy(csp) {
  const query = new URLSearchParams();
  for (const [name, origins] of Object.entries(isObject(csp) ? csp : {})) {
    for (const origin of Array.isArray(origins) ? origins : []) query.append(name, textOf(origin));
  }
  return query;
}
