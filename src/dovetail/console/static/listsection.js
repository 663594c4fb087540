// A section with a list on the left and, on the right, the details of the item that the address names.
// Details are kept, so that a call goes on while others are looked at.

import { Catalog } from "./catalog.js";
import { pause } from "./connection.js";
import { announce, el, fill, notice } from "./dom.js";
import { shortened, textOf } from "./format.js";

const KEPT = 50;
const SETTLE_MS = 200; // changes that come at once are one

export class ListSection {
  /** `lists`: rows of [method, member, group]; `entry(definition)` an item of the list; `makeDetail(definition)`. */
  constructor(client, { name, noun, lists, feature, entry, makeDetail, empty, welcome }) {
    Object.assign(this, { client, name, noun, lists, feature, entry, makeDetail, welcome });
    this.catalog = new Catalog({ section: name, noun, empty });
    this.definitions = new Map();
    this.details = new Map(); // key: {definition, detail}
    this.place = el("div", { class: "detail" });
    this.element = el("div", { class: "section", hidden: true }, this.catalog.element, this.place);
    this.key = null;
    this.isLoaded = false;
    this.loads = 0; // begun so far: an answer that was overtaken is not shown
  }

  /** A new connection is being made. What is there stays until the new list has come, and forms keep their values. */
  wait() {
    if (!this.definitions.size) this.catalog.wait();
  }

  async load() {
    const connection = this.client.connection;
    this.loads += 1;
    const number = this.loads;
    const isLatest = () => number === this.loads && connection === this.client.connection;
    try {
      const found = await this.fetchAll(connection);
      if (!isLatest()) return;
      this.definitions = new Map(found.map((item) => [item.entry.key, item]));
      this.isLoaded = true;
      for (const { detail } of this.details.values()) detail.connected?.();
      this.catalog.set([...this.definitions.values()].map((item) => item.entry));
      this.client.counted(this.name, this.definitions.size);
      this.select(this.key);
    } catch (failure) {
      if (isLatest()) this.catalog.fail(failure, () => this.load());
    }
  }

  async fetchAll(connection) {
    const found = [];
    if (!connection.offers(this.feature)) return found;
    for (const [method, member, group] of this.lists) {
      for (const definition of await connection.list(method, member)) {
        const entry = this.entry(definition, group);
        found.push({ definition, entry: { ...entry, key: entry.key.toWellFormed(), group } }); // as the address has it
      }
    }
    return found;
  }

  /** The server says that the list has changed. */
  changed() {
    this.isStale = true;
    if (!this.settling) this.settle();
  }

  /** One load after the other, however quick the changes come. */
  async settle() {
    this.settling = true;
    while (this.isStale) {
      await pause(SETTLE_MS);
      this.isStale = false;
      await this.load();
      announce(`The list of ${this.noun} has changed.`);
    }
    this.settling = false;
  }

  /** Show one item; without a key, the first. Out: its detail, if there is one. */
  select(key) {
    this.key = key?.toWellFormed() ?? null;
    if (!this.isLoaded) return null; // it is shown as soon as the list is there
    const chosen = this.key ?? this.catalog.items[0]?.key ?? null;
    this.catalog.select(chosen);
    const detail = chosen === null ? null : this.detailOf(chosen);
    const isThere = detail !== null && this.place.firstChild === detail.element;
    if (!isThere) fill(this.place, detail ? detail.element : this.nothing(chosen)); // else the focus would be lost
    if (!isThere) detail?.returned?.();
    return detail;
  }

  nothing(key) {
    if (key === null) return this.definitions.size ? null : notice(...this.welcome);
    return notice(`There is no ${key} any more.`, "Choose another one from the list.");
  }

  detailOf(key) {
    const definition = this.definitions.get(key)?.definition ?? this.unlisted(key);
    if (!definition) return null;
    const kept = this.details.get(key);
    const isSame = kept && JSON.stringify(kept.definition) === JSON.stringify(definition);
    const shown = isSame || (kept && isInUse(kept.detail)) ? kept : { definition, detail: this.detailFor(definition) };
    this.details.delete(key); // the one that was seen last is the last to go
    this.details.set(key, shown);
    this.makeRoom();
    return shown.detail;
  }

  makeRoom() {
    const idle = [...this.details].filter(([, { detail }]) => !isInUse(detail)).map(([key]) => key);
    for (const key of idle.slice(0, Math.max(0, this.details.size - KEPT))) this.details.delete(key);
  }

  /** What can't be drawn says so in its own place, and the others are there all the same. */
  detailFor(definition) {
    try {
      return this.makeDetail(definition);
    } catch (failure) {
      const words = `What the server says of it can't be read: ${shortened(failure.message, 200)}`;
      return { element: el("article", {}, notice("This can't be shown.", words)) };
    }
  }

  /** Some things can be reached without being listed. */
  unlisted() {
    return null;
  }
}

/** What runs or is watched stays, also where its definition has changed: its call could not be cancelled any more. */
function isInUse({ panel, watchedUri }) {
  return Boolean(panel?.running || watchedUri);
}

/** The head of a detail: name, title, description, marks. */
export function detailHead(definition, chips = []) {
  const [name, title, description] = [definition.name, definition.title, definition.description].map(textOf);
  return el(
    "header",
    { class: "detail-head" },
    el("h2", {}, title || name, title && title !== name && el("code", { class: "muted" }, name)),
    chips.length > 0 &&
      el(
        "p",
        { class: "chips" },
        chips.map((chip) => el("span", { class: `chip ${chip.kind ?? ""}`, title: chip.title }, chip.text)),
      ),
    description && el("p", { class: "description" }, description),
  );
}
