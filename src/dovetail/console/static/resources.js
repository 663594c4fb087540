// The section "Resources": the resources and templates that the server lists, their contents and their changes.

import { CallPanel, summaryOf } from "./callpanel.js";
import { CompletedField } from "./completion.js";
import { pause } from "./connection.js";
import { copyButtons } from "./snippets.js";
import { announce, button, el, isGo, isWebUrl, outsideLink, show, toast } from "./dom.js";
import { detailHead, ListSection } from "./listsection.js";
import { expanded, isOptional, variablesOf } from "./templates.js";
import { bytes, clock, plural, shortened, textOf } from "./format.js";

const BUSY_MS = 200;

export class ResourceSection extends ListSection {
  constructor(client) {
    super(client, {
      name: "resources",
      noun: "resources",
      feature: "resources",
      lists: [
        ["resources/list", "resources", "Resources"],
        ["resources/templates/list", "resourceTemplates", "Templates"],
      ],
      entry: (definition) => ({
        key: textOf(definition.uri) || textOf(definition.uriTemplate),
        title: textOf(definition.title) || textOf(definition.name) || textOf(definition.uri),
        about: textOf(definition.uri) || textOf(definition.uriTemplate),
      }),
      makeDetail: (definition) =>
        definition.uriTemplate ? new TemplateDetail(client, definition) : new ResourceDetail(client, definition),
      empty: ["No resources.", "This server offers none."],
      welcome: ["No resources here.", "Add one to the server with @server.resource; the list follows by itself."],
    });
  }

  /** A link may lead to a resource that is in no list. */
  unlisted(key) {
    return {
      uri: key,
      name: key,
      description: "This resource is in no list of the server; it may exist all the same.",
    };
  }

  /** The URIs that are followed. */
  watched() {
    return [...this.details.values()].map(({ detail }) => detail.watchedUri).filter(Boolean);
  }

  /** After a new connection, the server no longer notifies of this one. */
  lost(uri, failure) {
    for (const { detail } of this.details.values()) if (detail.watchedUri === uri) detail.forsaken(failure);
  }

  /** The server says that a resource has changed. */
  updated(uri) {
    for (const { detail } of this.details.values()) detail.onUpdated?.(uri);
  }
}

/** Reading one URI, which may be watched. */
class Reading {
  constructor(client) {
    this.client = client;
    this.updates = 0;
    this.panel = new CallPanel(client, {
      kind: "resource",
      label: "Read",
      submit: () => this.submit(),
      idle: "Press Read to see what is in it.",
    });
    this.watcher = button("Subscribe", () => this.toggleWatch());
    this.state = el("span", { class: "muted", role: "status" });
    this.watchedUri = null;
    this.connected();
  }

  /** What the server offers is known by now. */
  connected() {
    show(this.watcher, this.client.connection.offers("resources", "subscribe"));
  }

  actions() {
    return el("div", { class: "actions" }, this.panel.start, this.panel.stop, this.watcher, this.state);
  }

  copies() {
    return copyButtons(this.client, () => this.entry());
  }

  entry() {
    const uri = this.uri();
    return uri && { kind: "resource", name: uri, arguments: {} };
  }

  async submit() {
    const entry = this.entry(); // before the fields change
    if (!entry) return;
    const outcome = await this.panel.run({ method: "resources/read", params: { uri: entry.name } });
    if (outcome) this.client.history.add({ ...entry, ...summaryOf(outcome) });
  }

  async toggleWatch() {
    const { connection } = this.client;
    const uri = this.watchedUri ?? this.uri();
    if (!uri || this.watcher.getAttribute("aria-disabled")) return;
    this.watcher.setAttribute("aria-disabled", "true");
    try {
      if (this.watchedUri) await connection.unwatch(uri);
      else await connection.watch(uri);
      this.watchedUri = this.watchedUri ? null : uri;
      this.state.textContent = this.watchedUri ? "Subscribed; waiting for changes." : "";
    } catch (failure) {
      toast(`Not possible: ${failure.message}`);
    }
    this.watcher.removeAttribute("aria-disabled");
    this.nameWatcher();
  }

  nameWatcher() {
    this.watcher.textContent = this.watchedUri ? "Unsubscribe" : "Subscribe";
  }

  forsaken(failure) {
    this.watchedUri = null;
    this.state.textContent = `No longer subscribed: ${shortened(failure.message, 200)}`;
    this.nameWatcher();
  }

  /** A change of the resource, or of a part of it, is read at once. */
  async onUpdated(uri) {
    const mine = this.watchedUri;
    if (!mine || (uri !== mine && !uri.startsWith(mine.endsWith("/") ? mine : `${mine}/`))) return;
    this.updates += 1;
    this.state.textContent = `Subscribed; ${plural(this.updates, "update")}, the last at ${clock(Date.now())}.`;
    announce(`${mine} has changed.`);
    this.isStale = true;
    if (!this.refreshing) await this.refresh(mine);
  }

  /** Reads until nothing has changed meanwhile. */
  async refresh(uri) {
    this.refreshing = true;
    let failed = false;
    while (this.isStale) {
      this.isStale = false;
      const outcome = await this.panel.run({ method: "resources/read", params: { uri }, quiet: true });
      failed = Boolean(outcome?.failure);
      if (outcome) continue;
      this.isStale = true; // the user is reading it at the moment
      await pause(BUSY_MS);
    }
    this.refreshing = false;
    const when = clock(Date.now());
    this.panel.result.remark(failed ? `It has changed, but could not be read at ${when}` : `Updated at ${when}`);
  }
}

class ResourceDetail extends Reading {
  constructor(client, resource) {
    super(client);
    this.resource = resource;
    const chips = [resource.mimeType, Number.isFinite(resource.size) ? bytes(resource.size) : ""]
      .filter(Boolean)
      .map((text) => ({ text: textOf(text) }));
    const uri = el(
      "p",
      { class: "uri" },
      isWebUrl(resource.uri) ? outsideLink(resource.uri) : el("code", {}, textOf(resource.uri)),
    );
    this.element = this.panel.beside([detailHead(resource, chips), uri, this.actions(), this.copies()]);
  }

  uri() {
    return textOf(this.resource.uri);
  }
}

class TemplateDetail extends Reading {
  constructor(client, template) {
    super(client);
    this.template = textOf(template.uriTemplate);
    const chips = template.mimeType ? [{ text: textOf(template.mimeType) }] : [];
    this.shown = el("code", { role: "status", "aria-label": "URI" });
    this.fields = new Map(variablesOf(this.template).map((name) => [name, this.field(name)]));
    const fields = [...this.fields.values()].map((field) => field.element);
    const onkeydown = (event) => isGo(event) && this.submit();
    const pattern = el("p", { class: "uri" }, el("code", { class: "muted" }, this.template));
    const expanded = el("p", { class: "uri" }, this.shown);
    const input = [detailHead(template, chips), pattern, fields, expanded, this.actions(), this.copies()];
    this.element = this.panel.beside(input, { onkeydown });
    this.drawUri();
  }

  field(name) {
    const ref = { type: "ref/resource", uri: this.template };
    const suggest = this.client.suggester(ref, name, () => this.values());
    const field = new CompletedField({ name, required: !isOptional(this.template, name), suggest });
    field.onChange(() => this.drawUri());
    return field;
  }

  values() {
    return Object.fromEntries([...this.fields].map(([name, field]) => [name, field.value]));
  }

  drawUri() {
    this.shown.textContent = expanded(this.template, this.values());
  }

  uri() {
    const missing = [...this.fields].filter(([name, field]) => !field.value && !isOptional(this.template, name));
    const places = missing.map(([, field]) => field.complain("Is required."));
    places[0]?.focus();
    return missing.length ? null : expanded(this.template, this.values());
  }
}
