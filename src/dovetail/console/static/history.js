// What was called. In: entries {kind, name, arguments, ok, ms, words}. Out: the section "History", and the store of it.
// Kept in this browser for this server; without tokens and secret fields, and not without end.

import { Catalogue } from "./catalogue.js";
import { asCommand, copyButtons } from "./copies.js";
import { announce, button, el, fill, notice } from "./dom.js";
import { jsonTree } from "./tree.js";
import { clock, isObject, milliseconds, moment, shortened } from "./words.js";

const MAX_ENTRIES = 100;
const MAX_CHARACTERS = 300_000;
const LONGEST_ENTRY = 30_000;
const KINDS = { tool: "tools/call", resource: "resources/read", prompt: "prompts/get" };

class Store {
  constructor(server) {
    this.key = `dovetail.console.history:${server}`;
  }

  read() {
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
    } catch {
      // storage is full or forbidden: the history ends with the page
    }
  }
}

function isEntry(entry) {
  return (
    isObject(entry) && Object.hasOwn(KINDS, entry.kind) && typeof entry.name === "string" && Number.isFinite(entry.time)
  );
}

export class HistorySection {
  constructor(bench) {
    this.bench = bench;
    this.entries = [];
    this.catalogue = new Catalogue({
      section: "history",
      noun: "calls",
      empty: ["No calls yet.", "What you call, read or get is kept here."],
    });
    this.place = el("div", { class: "detail" });
    this.element = el("div", { class: "section", hidden: true }, this.catalogue.element, this.place);
  }

  open(server) {
    this.store = new Store(server);
    this.entries = this.store.read();
    this.draw();
  }

  add(entry) {
    const { kind, name, ok, ms, words } = entry;
    const values = JSON.stringify(entry.arguments ?? {}).length > LONGEST_ENTRY ? null : entry.arguments;
    const time = Math.max(Date.now(), (this.entries[0]?.time ?? 0) + 1); // also its key
    const revision = this.bench.connection.revision;
    this.entries.unshift({ kind, name, ok, ms, words, time, revision, arguments: values });
    this.trim();
    this.store.write(this.entries);
    this.key = null;
    this.draw();
  }

  trim() {
    this.entries.length = Math.min(this.entries.length, MAX_ENTRIES);
    while (JSON.stringify(this.entries).length > MAX_CHARACTERS) this.entries.pop();
  }

  clear() {
    this.entries = [];
    this.store.write([]);
    this.draw();
    announce("The history is empty.");
  }

  draw() {
    this.bench.counted("history", this.entries.length);
    this.catalogue.set(this.entries.map(item));
    this.select(this.key);
  }

  select(key) {
    this.key = key;
    const entry = this.entries.find((each) => String(each.time) === key) ?? this.entries[0];
    this.catalogue.select(entry ? String(entry.time) : null);
    fill(
      this.place,
      entry
        ? this.detail(entry)
        : notice(
            "No calls yet.",
            "Call a tool, read a resource or get a prompt: it is kept here, to be replayed or copied.",
          ),
    );
  }

  detail(entry) {
    const preview = el(
      "pre",
      { class: "text preview", role: "group", "aria-label": "What was copied" },
      entry.arguments ? (asCommand(entry, this.bench.copyContext(entry)) ?? "") : "",
    );
    const tooLong = el("p", { class: "muted" }, "Its arguments were too long to be kept.");
    const replay = button("Replay", () => this.bench.replay(entry, true), { class: "primary" });
    const edit = button("Edit", () => this.bench.replay(entry, false));
    const clear = button("Clear history", () => this.clear(), { class: "quiet" });
    const copies = copyButtons(
      this.bench,
      () => entry,
      (text) => (preview.textContent = text),
    );
    return el(
      "article",
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
  const about = `${clock(entry.time)}  ${said}`;
  return {
    key: String(entry.time),
    title: entry.name,
    about,
    chips: [{ text: milliseconds(entry.ms), kind: entry.ok ? "plain" : "plain bad" }],
  };
}
