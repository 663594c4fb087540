// The region with the raw messages of a Transcript, each with its time, as they arrive.

import { button, el, region } from "./dom.js";
import { Scrollback } from "./scrollback.js";
import { headline } from "./transcript.js";
import { jsonTree } from "./tree.js";
import { bytes, clock, milliseconds, plural } from "./format.js";

const SHOWN = 300;

export class MessagesView {
  constructor(name, idle) {
    this.idle = idle;
    this.count = el("span", { class: "muted" });
    this.scrollback = new Scrollback({
      ...{ class: "messages", shown: SHOWN, noun: "message", draw: drawRecord },
      onDrawn: (total) => (this.count.textContent = plural(total, "message")),
    });
    const clear = button("Clear", () => this.follow(this.transcript), { class: "small quiet" });
    const head = el("header", { class: "bar" }, el("h3", {}, name), this.count, el("span", { class: "push" }), clear);
    this.element = region(name, "pane messages-pane", head, this.scrollback.element);
    this.onRecord = (event) => this.scrollback.add(event.detail);
    this.clear();
  }

  /** Show the new records of this transcript, after the `past` ones. */
  follow(transcript, past = []) {
    this.transcript?.removeEventListener("record", this.onRecord);
    this.transcript = transcript;
    this.clear();
    for (const record of past) this.scrollback.add(record);
    transcript?.addEventListener("record", this.onRecord);
  }

  clear() {
    this.count.textContent = "";
    this.scrollback.clear(el("li", { class: "muted idle" }, this.idle));
  }

  showLast() {
    this.scrollback.showLast();
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
