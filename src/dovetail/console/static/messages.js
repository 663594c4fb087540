// The raw messages of an exchange. In: a Transcript. Out: a region that shows each message with its time, as it comes.

import { button, el, fill, region } from "./dom.js";
import { headline } from "./transcript.js";
import { jsonTree } from "./tree.js";
import { bytes, clock, milliseconds, plural } from "./words.js";

const SHOWN = 300;

export class MessagesView {
  constructor(name, idle) {
    this.idle = idle;
    this.list = el("ol", { class: "messages" });
    this.count = el("span", { class: "muted" });
    const clear = button("Clear", () => this.follow(this.transcript), { class: "small quiet" });
    const head = el("header", { class: "bar" }, el("h3", {}, name), this.count, el("span", { class: "push" }), clear);
    this.element = region(name, "pane messages-pane", head, this.list);
    this.onRecord = (event) => this.append(event.detail);
    this.clear();
  }

  /** Show what this transcript hears from now on, and `past` what it has heard. */
  follow(transcript, past = []) {
    this.transcript?.removeEventListener("record", this.onRecord);
    this.transcript = transcript;
    this.clear();
    for (const record of past) this.append(record);
    transcript?.addEventListener("record", this.onRecord);
  }

  clear() {
    this.total = 0;
    this.count.textContent = "";
    fill(this.list, el("li", { class: "muted idle" }, this.idle));
  }

  showLast() {
    this.list.scrollTop = this.list.scrollHeight;
  }

  append(record) {
    if (!this.total) fill(this.list);
    this.total += 1;
    const atEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 40;
    this.list.append(drawRecord(record));
    if (atEnd) this.showLast();
    if (this.list.children.length > SHOWN) this.list.firstChild.remove();
    this.count.textContent = plural(this.total, "message");
  }
}

function drawRecord(record) {
  const sent = record.direction === "sent";
  const title = record.message === null ? (record.http ?? "no body") : headline(record.message);
  const id = record.message?.id === undefined ? "" : `#${record.message.id}`;
  const summary = el(
    "summary",
    { title: clock(record.time) },
    el(
      "span",
      { class: sent ? "arrow sent" : "arrow received", role: "img", "aria-label": sent ? "sent" : "received" },
      sent ? "→" : "←",
    ),
    el("span", { class: "message-title" }, title),
    el("span", { class: "muted" }, id),
    el("span", { class: "push muted" }, record.size ? bytes(record.size) : ""),
    el("span", { class: "muted when" }, `+${milliseconds(record.after)}`),
  );
  const entry = el("details", {}, summary);
  entry.addEventListener(
    "toggle",
    () => entry.open && entry.children.length === 1 && entry.append(drawDetails(record)),
  );
  return el("li", {}, entry);
}

function drawDetails(record) {
  const lines = [record.http, ...record.headers.map(([name, value]) => `${name}: ${value}`)].filter(Boolean);
  const body =
    typeof record.message === "string"
      ? el("pre", { class: "text" }, record.message)
      : jsonTree(record.message, { open: 4 });
  return el(
    "div",
    { class: "message-details" },
    lines.length > 0 && el("pre", { class: "headers" }, lines.join("\n")),
    record.message !== null && body,
  );
}
