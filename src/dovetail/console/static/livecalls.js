// The tools of the section "Live" with their rates and times, and the last failed calls, to which their errors lead.

import { sparkline } from "./chart.js";
import { button, el, fill, notice, region, show } from "./dom.js";
import { addressOf } from "./catalog.js";
import { errorShare } from "./livedata.js";
import { clock, latency, milliseconds, number, percent, plural, shortened } from "./format.js";

const OTHER = "_OTHER";
const SLOTS = 60; // of a small line
const COLUMNS = {
  tool: ["Tool", ({ name }) => name],
  rate: ["Rate", ({ calls }) => calls],
  calls: ["Calls", ({ calls }) => calls],
  errors: ["Errors", ({ errors }) => errors],
  p50: ["p50", ({ p50 }) => p50 ?? -1],
  p99: ["p99", ({ p99 }) => p99 ?? -1],
};
const NUMERIC = ["calls", "errors", "p50", "p99"];

function called(name) {
  return name === OTHER ? "others" : name || "no tool";
}

export class ToolTable {
  /** `showFailures(tool, count)`; `idle`: what to do while there are none. */
  constructor({ showFailures, idle }) {
    Object.assign(this, { showFailures, sorted: "calls", isDown: true, rows: new Map() });
    this.heads = Object.fromEntries(Object.entries(COLUMNS).map(([key, [title]]) => [key, this.head(key, title)]));
    this.body = el("tbody");
    this.table = el("table", { class: "calls" }, el("thead", {}, el("tr", {}, Object.values(this.heads))), this.body);
    this.idleTitle = el("p", { class: "notice-title" });
    this.idle = el("div", { class: "notice" }, this.idleTitle, idle);
    const place = el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Tool calls" });
    place.append(this.table, this.idle);
    this.element = region("Tool calls", "pane at-tools", el("header", { class: "bar" }, el("h3", {}, "Tools")), place);
  }

  head(key, title) {
    const sort = () => {
      this.isDown = this.sorted === key ? !this.isDown : key !== "tool";
      this.sorted = key;
      this.arrange();
    };
    const kind = NUMERIC.includes(key) ? "numeric" : null;
    return el("th", { scope: "col", class: kind }, button(title, sort, { class: "sort" }));
  }

  draw(data, range) {
    const totals = data.totals("tools", range);
    const points = data.ended(range);
    show(this.table, totals.size > 0);
    show(this.idle, !totals.size);
    this.idleTitle.textContent = `No tool was called in the last ${range / 60} minutes.`;
    const count = this.rows.size;
    for (const name of this.rows.keys()) if (!totals.has(name)) this.remove(name);
    for (const [name, row] of totals) this.fillRow(name, row, data, { points, range });
    const key = `${points.at(-1)?.time} ${range}`;
    if (key !== this.arrangedFor || count !== this.rows.size) this.arrange(); // rows that jump can't be pressed
    this.arrangedFor = key;
  }

  remove(name) {
    this.rows.get(name).element.remove();
    this.rows.delete(name);
  }

  fillRow(name, total, data, { points, range }) {
    if (!this.rows.has(name)) this.rows.set(name, this.newRow(name));
    const row = this.rows.get(name);
    const [calls, errors] = total;
    Object.assign(row, { calls, errors, p50: data.percentile(total, 0.5), p99: data.percentile(total, 0.99) });
    row.cells.calls.textContent = number(calls);
    row.errorCount.textContent = number(errors);
    row.share.textContent = errors ? percent(errorShare(total)) : "";
    row.errorCount.setAttribute("aria-label", `${plural(errors, "error")} of ${called(name)}`);
    show(row.errorCount, errors > 0);
    show(row.noErrors, !errors);
    for (const key of ["p50", "p99"]) row.cells[key].textContent = latency(row[key]);
    fill(row.cells.rate, sparkline(slotsOf(name, points, data.end - range, range), "tone-0"));
  }

  newRow(name) {
    const cells = Object.fromEntries(
      Object.keys(COLUMNS).map((key) => [key, el("td", { class: NUMERIC.includes(key) ? "numeric" : `cell-${key}` })]),
    );
    const shown = shortened(called(name), 80);
    fill(cells.tool, name === OTHER ? shown : el("a", { href: addressOf("tools", name) }, el("code", {}, shown)));
    const row = { name, cells, element: el("tr", {}, Object.values(cells)) };
    row.errorCount = button("", () => this.showFailures(name, row.errors), { class: "link error-count" });
    row.noErrors = el("span", { class: "muted" }, "0");
    row.share = el("span", { class: "share muted" });
    fill(cells.errors, row.share, " ", row.errorCount, row.noErrors);
    return row;
  }

  arrange() {
    const [, value] = COLUMNS[this.sorted];
    const compare = (one, other) => (value(one) < value(other) ? -1 : value(one) > value(other) ? 1 : 0);
    const rows = [...this.rows.values()].sort((one, other) => (this.isDown ? -1 : 1) * compare(one, other));
    const focused = document.activeElement;
    if (rows.some(({ element }, at) => this.body.children[at] !== element)) {
      this.body.append(...rows.map(({ element }) => element));
      if (this.body.contains(focused)) focused.focus({ preventScroll: true });
    }
    for (const [key, head] of Object.entries(this.heads)) {
      if (key === this.sorted) head.setAttribute("aria-sort", this.isDown ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  }
}

/** The calls of a tool, in as many parts of the time as a small line has. */
function slotsOf(name, points, begin, range) {
  const slots = new Array(Math.min(SLOTS, range / 10)).fill(0);
  for (const point of points) {
    const at = Math.floor(((point.time - begin) / range) * slots.length);
    slots[Math.min(slots.length - 1, Math.max(0, at))] += point.tools[name]?.[0] ?? 0;
  }
  return slots;
}

export class FailureList {
  constructor() {
    this.tool = null; // of which they are shown; null: all
    this.title = el("h3", { tabindex: "-1" }, "Failed calls");
    this.all = button("Show all", () => this.showOf(null), { class: "small quiet" });
    this.note = el("p", { class: "muted failures-note", hidden: true });
    this.list = el("ol", { class: "failures" });
    const head = el("header", { class: "bar" }, this.title, el("span", { class: "push" }), this.all);
    const place = el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Messages of failed calls" });
    place.append(this.note, this.list);
    this.element = region("Failed calls", "pane at-failures", head, place);
    this.failures = [];
    this.redraw();
  }

  /** The messages of a tool, of which so many calls have failed. */
  showOf(tool, count = 0) {
    Object.assign(this, { tool, count });
    this.redraw();
    this.title.focus({ preventScroll: true });
    this.element.scrollIntoView({ block: "nearest" });
  }

  draw(failures) {
    if (failures.at(-1) === this.failures.at(-1) && failures.length === this.failures.length) return;
    this.failures = failures;
    this.redraw();
  }

  redraw() {
    const shown = this.failures.filter(({ tool }) => this.tool === null || tool === this.tool).reverse();
    this.title.textContent = this.tool === null ? "Failed calls" : `Failed calls of ${called(this.tool)}`;
    show(this.all, this.tool !== null);
    const missing = this.tool !== null && this.count > shown.length;
    show(this.note, missing);
    this.note.textContent = `${shown.length} of ${plural(this.count, "message")}: a worker keeps its last 100.`;
    const idle = notice("No call has failed.", "When one does, the message that its client was shown is here.");
    fill(this.list, shown.length ? shown.map(drawFailure) : el("li", {}, !missing && idle));
  }
}

function drawFailure({ time, method, tool, outcome, message, duration, id }) {
  const name = tool ? called(tool) : method;
  return el(
    "li",
    { class: "failure" },
    el(
      "p",
      { class: "failure-head" },
      el("code", {}, shortened(name, 80)),
      el("span", { class: "chip bad" }, outcome.replace("_", " ")),
      el("span", { class: "muted push" }, `${clock(time * 1000)} · ${milliseconds(duration)} · id ${shortened(id, 40)}`),
    ),
    el("p", { class: "failure-message" }, message || "(no message)"),
  );
}
