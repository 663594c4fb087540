// A searchable list of links `#section/key`, made from items [{key, title, about, group, chips}].
// Arrows move, typing in the search box narrows; of long lists only the first part is drawn.

import { button, el, fill, notice, show } from "./dom.js";
import { plural, shortened } from "./format.js";

const AT_ONCE = 200;
const EDGE = 6; // pixels around the chosen item
const MOST = 2000; // drawn to reach the chosen item; one that is farther is drawn behind the others

export function addressOf(section, key) {
  return `#${section}/${encodeURIComponent(key.toWellFormed())}`;
}

export class Catalog {
  /** `empty`: [title, advice] for a list without items. `noun`: what the items are called. */
  constructor({ section, noun, empty }) {
    this.section = section;
    this.noun = noun;
    this.empty = empty;
    this.items = [];
    this.current = null;
    this.limit = AT_ONCE;
    this.search = el("input", {
      ...{ type: "search", placeholder: `Search ${noun}  /`, "aria-label": `Search ${noun}`, spellcheck: "false" },
      oninput: () => this.searched(),
      onkeydown: (event) => this.searchKey(event),
    });
    this.count = el("p", { class: "muted count", role: "status" });
    this.place = el("div", {
      class: "catalog-items",
      onkeydown: (event) => this.itemKey(event),
      onfocusin: (event) => this.focused(event),
    });
    this.element = el(
      "section",
      { class: "catalog", "aria-label": `All ${noun}` },
      this.search,
      this.place,
      this.count,
    );
  }

  wait() {
    fill(this.place, el("p", { class: "muted idle" }, "Loading…"));
    show(this.search, false);
  }

  fail(failure, again) {
    show(this.search, false);
    this.count.textContent = "";
    fill(
      this.place,
      notice(`The ${this.noun} can't be listed.`, shortened(failure.message, 500), button("Try again", again)),
    );
  }

  set(items) {
    this.items = items.map((item) => ({ ...item, sought: `${item.key} ${item.title} ${item.about}`.toLowerCase() }));
    show(this.search, items.length > 0);
    this.draw();
  }

  select(key) {
    this.current = key;
    if (!this.chosen() && this.found().some((item) => item.key === key)) this.draw();
    for (const link of this.links()) this.mark(link);
    this.offer(this.chosen() ?? this.links()[0]);
    this.reveal(this.chosen());
  }

  chosen() {
    return this.links().find((link) => link.dataset.key === this.current);
  }

  /** Moves the list alone: on a small screen the page may show the result at the moment. */
  reveal(link) {
    if (!link) return;
    const [row, box] = [link.getBoundingClientRect(), this.place.getBoundingClientRect()];
    this.place.scrollTop += Math.min(0, row.top - box.top - EDGE) + Math.max(0, row.bottom - box.bottom + EDGE);
  }

  /** Tab stops at one link of the list, arrows go on from there: the form is not two hundred keys away. */
  offer(chosen) {
    for (const link of this.links()) link.tabIndex = link === chosen ? 0 : -1;
  }

  mark(link) {
    if (link.dataset.key === this.current) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }

  searched() {
    this.limit = AT_ONCE;
    this.draw();
    this.place.scrollTop = 0;
  }

  found() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    return this.items.filter((item) => words.every((word) => item.sought.includes(word)));
  }

  /** The focus stays on the link that had it, and the list where it was. */
  draw() {
    const held = this.links().find((link) => link === document.activeElement)?.dataset.key;
    const { scrollTop } = this.place;
    this.drawFound(this.found());
    this.place.scrollTop = scrollTop;
    if (held === undefined) return;
    const links = this.links();
    (links.find((link) => link.dataset.key === held) ?? links[0])?.focus();
  }

  drawFound(found) {
    const shown = this.firstOf(found);
    fill(this.place, this.items.length ? this.groups(shown) : notice(...this.empty));
    if (this.items.length && !found.length)
      fill(this.place, notice("Nothing found.", "Try another word, or press Escape to see all."));
    if (found.length > shown.length) this.place.append(button("Show more", () => this.showMore(), { class: "small" }));
    this.offer(this.chosen() ?? this.links()[0]);
    const all = plural(this.items.length, this.noun.replace(/s$/, ""), this.noun);
    this.count.textContent = !this.items.length
      ? ""
      : found.length === this.items.length
        ? all
        : `${found.length} of ${all}`;
  }

  /** As many as are drawn, the chosen one among them. */
  firstOf(found) {
    const at = found.findIndex((item) => item.key === this.current);
    if (at >= this.limit && at < MOST) this.limit = AT_ONCE * (Math.floor(at / AT_ONCE) + 1);
    return [...found.slice(0, this.limit), ...(at >= this.limit ? [found[at]] : [])];
  }

  showMore() {
    const next = this.limit;
    this.limit += AT_ONCE;
    this.draw();
    this.links()[next]?.focus();
  }

  groups(items) {
    const names = [...new Set(items.map((item) => item.group ?? ""))];
    return names.map((name) => [
      name && el("h2", { class: "group-name" }, name),
      el(
        "ul",
        { "aria-label": name || null },
        items.filter((item) => (item.group ?? "") === name).map((item) => this.row(item)),
      ),
    ]);
  }

  row({ key, title, about, chips = [] }) {
    const link = el(
      "a",
      { href: addressOf(this.section, key), "data-key": key },
      el(
        "span",
        { class: "item-title" },
        shortened(title, 100),
        chips.map((chip) => el("span", { class: `chip ${chip.kind ?? ""}` }, chip.text)),
      ),
      about && el("span", { class: "item-about" }, shortened(about, 160)),
    );
    this.mark(link);
    return el("li", {}, link);
  }

  links() {
    return [...this.place.querySelectorAll("a")];
  }

  focused(event) {
    if (event.target.matches("a")) this.offer(event.target);
  }

  searchKey(event) {
    if (event.key === "Escape" && this.search.value) {
      this.search.value = "";
      this.searched();
    } else if (event.key === "ArrowDown") this.links()[0]?.focus();
    else if (event.key === "Enter") this.links()[0]?.click();
    else return;
    event.preventDefault();
  }

  itemKey(event) {
    const links = this.links();
    const at = links.indexOf(document.activeElement);
    const targets = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 };
    if (at < 0 || !(event.key in targets)) return;
    event.preventDefault();
    const target = links[targets[event.key]];
    if (target) target.focus();
    else if (event.key === "ArrowUp") this.search.focus();
  }
}
