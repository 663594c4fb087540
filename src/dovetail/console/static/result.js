// The region "Result": the outcome of a call, drawn by its kind or as JSON.

import { drawBlock, untrustedMark } from "./content.js";
import { announce, button, el, fill, moreButton, region, show } from "./dom.js";
import { tableOf } from "./table.js";
import { jsonTree } from "./tree.js";
import { isObject, milliseconds, shortened, textOf } from "./format.js";

const AT_ONCE = 50; // blocks drawn at a time

export class ResultView {
  constructor(openResource, idle) {
    this.openResource = openResource;
    this.body = el("div", { class: "result-body" });
    this.status = el("span", { class: "status" });
    this.toggle = button("As JSON", () => this.switchView(), {
      class: "small quiet",
      "aria-label": "Result as JSON",
      "aria-pressed": "false",
      hidden: true,
    });
    this.note = el("p", { class: "muted", hidden: true });
    const head = el(
      "header",
      { class: "bar" },
      el("h3", {}, "Result"),
      this.status,
      el("span", { class: "push" }),
      this.toggle,
    );
    this.element = region("Result", "result pane", head, this.note, this.body);
    fill(this.body, el("p", { class: "muted idle" }, idle));
  }

  wait() {
    this.setStatus("Running…", "running");
    show(this.toggle, false);
    show(this.note, false);
    fill(this.body);
  }

  /** `kind`: tool, resource or prompt. */
  present({ result, failure, ms }, kind) {
    if (failure) return this.fail(failure, ms);
    try {
      this.show(result, { kind, ms });
    } catch {
      this.fail(new Error("The result came, but it can't be shown; the raw messages have it."), ms);
    }
  }

  show(result, { kind, ms }) {
    const failed = result.isError === true;
    this.setStatus(`${failed ? "The tool failed" : "Done"} · ${milliseconds(ms)}`, failed ? "bad" : "good");
    this.parts = { meant: () => DRAWERS[kind](result, this.openResource), json: () => jsonTree(result) };
    this.asJson = false;
    show(this.toggle, true);
    this.draw();
  }

  fail(failure, ms) {
    show(this.toggle, false); // it would show the result before
    const cancelled = failure.name === "AbortError";
    const code = cancelled ? null : (failure.code ?? failure.status);
    this.setStatus(
      `${cancelled ? "Cancelled" : "Error"}${code ? ` ${code}` : ""} · ${milliseconds(ms)}`,
      cancelled ? "" : "bad",
    );
    const words = cancelled ? "The call was cancelled." : failure.message;
    const details = failure.data === undefined ? null : jsonTree(failure.data);
    fill(this.body, el("p", { class: cancelled ? "muted" : "error-text" }, shortened(words, 4000)), details);
  }

  /** A line above the result, such as the time of an update. */
  remark(text) {
    this.note.textContent = text;
    show(this.note, Boolean(text));
  }

  switchView() {
    this.asJson = !this.asJson;
    this.draw();
  }

  draw() {
    this.toggle.setAttribute("aria-pressed", String(this.asJson));
    fill(this.body, this.asJson ? this.parts.json() : this.parts.meant());
  }

  setStatus(text, kind) {
    this.status.textContent = text;
    this.status.className = `status ${kind}`;
    announce(`Result: ${text}`);
  }
}

const DRAWERS = { tool: drawToolResult, resource: drawContents, prompt: drawPrompt };

function drawToolResult(result, openResource) {
  const structured = unwrapped(result.structuredContent);
  const blocks = Array.isArray(result.content) ? result.content : [];
  const shown = structured === undefined ? blocks : blocks.filter((block) => !repeats(block, result.structuredContent));
  const mark = untrustedMark(result._meta);
  return [
    mark && el("p", { class: "chips" }, mark),
    structured !== undefined && drawStructured(structured),
    drawMany(shown, (block) => drawText(block) ?? drawBlock(block, openResource)),
    !shown.length && structured === undefined && el("p", { class: "muted" }, "The tool returned nothing."),
  ];
}

/** Values that are no objects are sent inside of `{"result": …}` by many servers. */
function unwrapped(structured) {
  const single = isObject(structured) && Object.keys(structured).length === 1 && Object.hasOwn(structured, "result");
  return single ? structured.result : structured;
}

function drawStructured(value) {
  if (typeof value === "string") return drawBlock({ type: "text", text: value });
  return el("div", { class: "block" }, tableOf(value) ?? tableInside(value) ?? jsonTree(value));
}

/** An object whose only list is one of rows: the list as a table, the rest as a tree. */
function tableInside(value) {
  if (!isObject(value)) return null;
  const found = Object.entries(value).filter(([, part]) => Array.isArray(part));
  const table = found.length === 1 ? tableOf(found[0][1]) : null;
  if (!table) return null;
  const { [found[0][0]]: rows, ...rest } = value;
  return [Object.keys(rest).length > 0 && jsonTree(rest), el("p", { class: "muted" }, found[0][0]), table];
}

/** Text that is the same as the structured content, or of which it is made. */
function repeats(block, structured) {
  if (block?.type !== "text" || typeof block.text !== "string") return false;
  const value = unwrapped(structured);
  if (block.text === value || block.text === String(value)) return true;
  try {
    const said = JSON.stringify(JSON.parse(block.text));
    return said === JSON.stringify(structured) || said === JSON.stringify(value);
  } catch {
    return false;
  }
}

/** Text that holds a list of rows, from servers without structured content. */
function drawText(block) {
  if (block?.type !== "text" || !/^\s*[[{]/.test(textOf(block.text)) || block.text.length > 2_000_000) return null;
  try {
    const value = JSON.parse(block.text);
    return el("div", { class: "block" }, tableOf(value) ?? jsonTree(value));
  } catch {
    return null;
  }
}

function drawContents(result) {
  const contents = Array.isArray(result.contents) ? result.contents : [];
  if (!contents.length) return el("p", { class: "muted" }, "The resource is empty.");
  return drawMany(contents, (resource) => drawBlock({ type: "resource", resource }));
}

function drawPrompt(result, openResource) {
  const messages = Array.isArray(result.messages) ? result.messages : [];
  const draw = (message) =>
    el(
      "div",
      { class: "message" },
      el("p", { class: "role" }, textOf(message?.role)),
      drawBlock(message?.content, openResource),
    );
  return [result.description && el("p", { class: "muted" }, textOf(result.description)), drawMany(messages, draw)];
}

function drawMany(items, draw) {
  const place = el("div", { class: "blocks" });
  const more = (from) => {
    for (const item of items.slice(from, from + AT_ONCE)) place.append(draw(item));
    if (from + AT_ONCE >= items.length) return;
    const bring = () => (more(from + AT_ONCE), next.nextElementSibling);
    const next = moreButton(`Show more (${items.length - from - AT_ONCE} left)`, bring, { class: "small" });
    place.append(next);
  };
  more(0);
  return place;
}
