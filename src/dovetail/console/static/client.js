// The connection that all sections share, with its state, and what they do over it: suggestions, snippets, replays.

import { addressOf } from "./catalog.js";
import { ModernConnection } from "./modern.js";
import { answerer } from "./questions.js";
import { SessionConnection } from "./session.js";
import { Transcript } from "./transcript.js";
import { HttpTransport, isPassing } from "./transport.js";

const FIRST_MODERN = "2026-07-28";
const FIRST_WITH_CONTEXT = "2025-06-18"; // of completion
const CALM_MS = 20_000;
const LONGEST_PAUSE_MS = 15_000;
const NO_CAPABILITY_YET = "2024-11-05"; // every server may complete

export class Client extends EventTarget {
  constructor(about) {
    super();
    this.about = about;
    this.url = new URL(about.endpoint, document.baseURI).href;
    this.revisions = [...about.revisions].sort().reverse();
    this.revision = this.revisions[0];
    this.token = "";
    this.settings = { logLevel: "debug", timeout: 0, roots: [], headers: [] }; // gone with the page
    this.traffic = new Transcript();
    this.begunAgain = -Infinity; // when, and
    this.hurry = 0; // how long a session that ends soon after another is waited for, in ms
    this.sections = {};
  }

  get history() {
    return this.sections.history;
  }

  get isModern() {
    return this.revision >= FIRST_MODERN;
  }

  /** Leave the connection before, open a new one and list everything. */
  async connect(wait = 500) {
    const watched = this.sections.resources.watched();
    this.connection?.close();
    const kind = this.isModern ? ModernConnection : SessionConnection;
    const transport = new HttpTransport(this.url, this.token, this.settings.headers);
    const parts = { transport, revision: this.revision, settings: this.settings, traffic: this.traffic };
    const connection = new kind({ ...parts, answer: answerer(this.settings) });
    if (this.connection) connection.server = this.connection.server; // until it says who it is
    this.connection = connection;
    this.listenTo(connection);
    for (const section of this.listed()) section.wait();
    this.say("connecting");
    try {
      await connection.open();
    } catch (failure) {
      if (connection === this.connection) await this.refused(failure, wait);
      return;
    }
    if (connection !== this.connection) return;
    this.say("open");
    this.watchAgain(connection, watched);
    await Promise.all(this.listed().map((section) => section.load()));
  }

  async watchAgain(connection, uris) {
    for (const uri of uris) {
      try {
        await connection.watch(uri);
      } catch (failure) {
        if (connection === this.connection) this.sections.resources.lost(uri, failure);
      }
    }
  }

  listed() {
    return [this.sections.tools, this.sections.resources, this.sections.prompts];
  }

  /** What may pass is tried again, after pauses that grow. */
  async refused(failure, wait) {
    const { connection } = this;
    for (const section of this.listed()) section.catalog.fail(failure, () => this.connect());
    if (failure.status === 401) this.needToken(failure);
    else this.say(isPassing(failure) ? "waiting" : "failed", failure.message);
    if (!isPassing(failure)) return;
    await new Promise((resolve) => setTimeout(resolve, wait));
    if (connection === this.connection && !connection.closed) this.connect(Math.min(2 * wait, LONGEST_PAUSE_MS));
  }

  needToken(failure) {
    this.dispatchEvent(new CustomEvent("token", { detail: failure.message }));
    this.say("failed", "The server wants a token.");
  }

  say(state, words = "") {
    this.dispatchEvent(new CustomEvent("state", { detail: { state, words } }));
  }

  listenTo(connection) {
    connection.addEventListener("state", (event) => {
      const { state, words } = event.detail;
      if (connection !== this.connection || state === "closed") return;
      if (state === "ended") this.beginAgain(connection);
      else if (state === "open" && this.wasGone)
        this.beginAgain(connection); // what it offers may have changed
      else this.say(state, words);
      this.wasGone = state === "waiting";
    });
    connection.addEventListener("notification", (event) => {
      if (connection === this.connection) this.changed(event.detail);
    });
  }

  /** The server has forgotten the session, or is another one. All is begun anew, at once, but not over and over. */
  async beginAgain(connection) {
    if (connection.hasEnded) return;
    connection.hasEnded = true;
    const isCalm = performance.now() - this.begunAgain > CALM_MS;
    this.hurry = isCalm ? 0 : Math.min(2 * this.hurry + 500, 15_000);
    this.begunAgain = performance.now() + this.hurry;
    if (this.hurry) this.say("waiting", "The server ends the connection; trying again…");
    await new Promise((resolve) => setTimeout(resolve, this.hurry));
    if (connection === this.connection) this.connect();
  }

  changed({ method, params }) {
    const list = /^notifications\/(tools|resources|prompts)\/list_changed$/.exec(method);
    if (list) this.sections[list[1]].changed();
    if (method !== "notifications/resources/updated" || typeof params.uri !== "string") return;
    this.sections.resources.updated(params.uri);
    this.sections.tools.updated(params.uri);
  }

  counted(section, count) {
    this.dispatchEvent(new CustomEvent("count", { detail: { section, count } }));
  }

  /** Suggestions for one argument; null if the server makes none. */
  suggester(ref, name, values) {
    if (!this.connection.offers("completions") && this.revision !== NO_CAPABILITY_YET) return null;
    return async (value) => {
      const { [name]: _, ...others } = values();
      const context =
        this.revision >= FIRST_WITH_CONTEXT && Object.keys(others).length ? { context: { arguments: others } } : {};
      const result = await this.connection.request("completion/complete", {
        ref,
        argument: { name, value },
        ...context,
      });
      return Array.isArray(result.completion?.values) ? result.completion.values : [];
    };
  }

  /** How a copy of an entry reaches the server. */
  copyContext(entry) {
    const revision = this.revisions.includes(entry.revision) ? entry.revision : this.revision;
    const isModern = revision >= FIRST_MODERN;
    return {
      ...{ url: this.url, target: this.about.target, revision, isModern, isNewest: revision === this.revisions[0] },
      ...{ token: Boolean(this.about.auth), headers: this.settings.headers.map(([name]) => name) },
      stamp: isModern ? this.stamp(revision) : {},
      inputSchema:
        entry.kind === "tool" ? this.sections.tools.definitions.get(entry.name)?.definition.inputSchema : undefined,
    };
  }

  stamp(revision) {
    return ModernConnection.prototype.stamp.call({ revision, settings: {} });
  }

  // ── ways from one section to another ──

  /** The section is in view at once, so that its parts can have the focus. Out: the detail, if it can be shown. */
  goTo(section, key) {
    location.hash = addressOf(section, key);
    this.dispatchEvent(new Event("moved"));
    const detail = this.sections[section].select(key);
    detail?.panel?.start.focus();
    return detail?.panel ? detail : null;
  }

  openResource(uri) {
    this.goTo("resources", uri)?.submit();
  }

  /** Show an earlier call with its arguments, and make it again. */
  replay(entry, again) {
    const detail = this.goTo(`${entry.kind}s`, entry.name);
    detail?.fill?.(entry.arguments);
    if (again) detail?.submit();
  }
}
