// The section "History" and its store: entries {kind, name, arguments, ok, ms, words} of earlier calls.
// Kept in this browser for this server; without tokens and secret fields, and not without end.
// Results may hold secrets: they last as long as the page.

import { Catalog } from "./catalog.js";
import { asCommand, copyButtons } from "./snippets.js";
import { confirmed } from "./dialog.js";
import { announce, button, el, fill, notice } from "./dom.js";
import { ResultView } from "./result.js";
import { jsonTree } from "./tree.js";
import { clock, isObject, milliseconds, moment, plural, shortened } from "./format.js";

const MAX_ENTRIES = 100;
const MAX_CHARACTERS = 300_000;
const LONGEST_ENTRY = 30_000;
const MAX_RESULTS = 8_000_000; // characters of all results
const LONGEST_RESULT = 2_000_000;
const KINDS = { tool: "tools/call", resource: "resources/read", prompt: "prompts/get" };

const RESULT_GONE = "Its result is not here: results last as long as the page, and long ones are not kept. Replay it.";
const OUTCOMES = ["done", "the tool failed", "cancelled"]; // other words may repeat a secret

/** Shared by all tabs; where nothing can be stored, it lasts as long as the page. */
class Store {
  constructor(server) {
    this.key = `dovetail.console.history:${server}`;
  }

  read() {
    if (this.unstored) return this.unstored;
    try {
      const kept = JSON.parse(localStorage.getItem(this.key) ?? "[]");
      return Array.isArray(kept) ? kept.filter(isEntry).slice(0, MAX_ENTRIES) : [];
    } catch {
      return [];
    }
  }

  write(entries) {
    try {
      localStorage.setItem(this.key, JSON.stringify(entries));
      this.unstored = null;
    } catch {
      this.unstored = entries; // storage is full or forbidden
    }
  }
}

function isEntry(entry) {
  return (
    isObject(entry) && Object.hasOwn(KINDS, entry.kind) && typeof entry.name === "string" && Number.isFinite(entry.time)
  );
}

/** The outcomes of the calls of this page by their times; those of the oldest go first. */
class Outcomes {
  constructor() {
    this.kept = new Map();
  }

  add(time, outcome) {
    const size = JSON.stringify(outcome.result ?? [outcome.failure.message, outcome.failure.data]).length;
    if (size > LONGEST_RESULT) return;
    this.kept.set(time, { outcome, size });
    let total = [...this.kept.values()].reduce((sum, each) => sum + each.size, 0);
    for (const [oldest, { size }] of this.kept) {
      if (this.kept.size <= MAX_ENTRIES && total <= MAX_RESULTS) return;
      this.kept.delete(oldest);
      total -= size;
    }
  }

  get(time) {
    return this.kept.get(time)?.outcome;
  }
}

export class HistorySection {
  constructor(client) {
    this.client = client;
    this.entries = [];
    this.outcomes = new Outcomes();
    this.key = null; // of the entry that is shown
    this.catalog = new Catalog({
      section: "history",
      noun: "calls",
      empty: ["No calls yet.", "What you call, read or get is kept here."],
    });
    this.place = el("div", { class: "detail", tabindex: "-1" });
    this.element = el("div", { class: "section", hidden: true }, this.catalog.element, this.place);
  }

  open(server) {
    this.store = new Store(server);
    window.addEventListener("storage", () => this.reread());
    this.reread();
  }

  reread() {
    this.entries = this.store.read();
    this.draw();
  }

  add(entry) {
    const { kind, name, ok, ms, outcome } = entry;
    const words = OUTCOMES.includes(entry.words) ? entry.words : "failed";
    this.entries = this.store.read(); // another tab may have called too
    const values = JSON.stringify(entry.arguments ?? {}).length > LONGEST_ENTRY ? null : entry.arguments;
    const time = Math.max(Date.now(), (this.entries[0]?.time ?? 0) + 1); // also its key
    const revision = entry.revision ?? this.client.connection.revision;
    this.entries.unshift({ kind, name, ok, ms, words, time, revision, arguments: values });
    this.outcomes.add(time, outcome);
    this.trim();
    this.store.write(this.entries);
    this.draw();
  }

  trim() {
    this.entries.length = Math.min(this.entries.length, MAX_ENTRIES);
    while (JSON.stringify(this.entries).length > MAX_CHARACTERS) this.entries.pop();
  }

  async clear() {
    const words = `${plural(this.entries.length, "call")} will be forgotten in this browser.`;
    if (!(await confirmed("Clear the history?", words, "Clear"))) return;
    this.entries = [];
    this.outcomes = new Outcomes();
    this.store.write([]);
    this.draw();
    this.place.focus();
    announce("The history is empty.");
  }

  draw() {
    this.client.counted("history", this.entries.length);
    this.catalog.set(this.entries.map(item));
    const isThere = this.key !== null && this.entries.some((each) => String(each.time) === this.key);
    if (isThere) this.catalog.select(this.key); // what is in use stays as it is
    else this.select(null);
  }

  select(key) {
    const entry = this.entries.find((each) => String(each.time) === key) ?? this.entries[0];
    this.key = entry ? String(entry.time) : null;
    this.catalog.select(this.key);
    fill(
      this.place,
      entry
        ? this.detail(entry)
        : notice(
            "No calls yet.",
            "Call a tool, read a resource or get a prompt: it is kept here with its result, to be replayed or copied.",
          ),
    );
  }

  detail(entry) {
    const preview = el(
      "pre",
      { class: "text preview", role: "group", "aria-label": "What was copied" },
      entry.arguments ? (asCommand(entry, this.client.copyContext(entry)) ?? "") : "",
    );
    const tooLong = el("p", { class: "muted" }, "Its arguments were too long to be kept.");
    const replay = button("Replay", () => this.client.replay(entry, true), { class: "primary" });
    const edit = button("Edit", () => this.client.replay(entry, false));
    const clear = button("Clear history", () => this.clear(), { class: "quiet" });
    const copies = copyButtons(
      this.client,
      () => entry,
      (text) => (preview.textContent = text),
    );
    const input = el(
      "div",
      { class: "input history-entry" },
      el("h2", {}, entry.name),
      el(
        "p",
        { class: "muted" },
        `${KINDS[entry.kind]} · ${moment(entry.time)} · ${entry.revision} · `,
        el("span", { class: entry.ok ? "good-text" : "error-text" }, `${entry.words} in ${milliseconds(entry.ms)}`),
      ),
      entry.arguments
        ? hasMembers(entry.arguments) && el("div", { class: "block" }, jsonTree(entry.arguments))
        : tooLong,
      el("div", { class: "actions" }, entry.arguments && [replay, edit], el("span", { class: "push" }), clear),
      entry.arguments && [copies, preview],
    );
    return el("article", { class: "columns" }, input, el("div", { class: "output" }, this.result(entry)));
  }

  result(entry) {
    const outcome = this.outcomes.get(entry.time);
    const view = new ResultView((uri) => this.client.openResource(uri), RESULT_GONE);
    if (outcome) view.present(outcome, entry.kind);
    return view.element;
  }
}

function hasMembers(values) {
  return Object.keys(values).length > 0;
}

function item(entry) {
  const said = !entry.arguments
    ? "…"
    : hasMembers(entry.arguments)
      ? shortened(JSON.stringify(entry.arguments), 100)
      : "";
  const about = [clock(entry.time), entry.words, said].filter(Boolean).join(" · ");
  return {
    key: String(entry.time),
    title: entry.name,
    about,
    chips: [{ text: milliseconds(entry.ms), kind: entry.ok ? "plain" : "plain bad" }],
  };
}
