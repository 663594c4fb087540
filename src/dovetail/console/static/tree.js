// JSON as a tree that opens on demand. A closed part is not drawn.

import { el, moreButton } from "./dom.js";
import { isObject, plural } from "./format.js";

const AT_ONCE = 100; // children drawn at a time
const LONGEST_TEXT = 2000;
const OPEN_UP_TO = 30; // children: larger ones begin closed

export function jsonTree(value, { open = 2 } = {}) {
  return el("div", { class: "tree" }, node(null, value, open));
}

function node(name, value, open) {
  const children = childrenOf(value);
  if (!children) return el("div", { class: "leaf" }, key(name), leaf(value));
  if (!children.length) return el("div", { class: "leaf" }, key(name), Array.isArray(value) ? "[]" : "{}");
  const summary = el("summary", {}, key(name), el("span", { class: "muted" }, sizeOf(value, children)));
  const branch = el("details", { class: "branch" }, summary);
  const drawOnce = () => {
    if (branch.open && branch.children.length === 1) drawChildren(branch, children, 0, open - 1);
  };
  branch.addEventListener("toggle", drawOnce);
  if (open > 0 && children.length <= OPEN_UP_TO) {
    branch.open = true;
    drawOnce();
  }
  return branch;
}

function drawChildren(branch, children, from, open) {
  for (const [name, value] of children.slice(from, from + AT_ONCE)) branch.append(node(name, value, open));
  const next = from + AT_ONCE;
  if (next >= children.length) return;
  const bring = () => {
    drawChildren(branch, children, next, 0);
    return more.nextElementSibling;
  };
  const label = `Show more (${plural(children.length - next, "left", "left")})`;
  const more = moreButton(label, bring, { class: "small quiet" });
  branch.append(more);
}

function childrenOf(value) {
  if (Array.isArray(value)) return value.map((item, at) => [at, item]);
  return isObject(value) ? Object.entries(value) : null;
}

function key(name) {
  if (name === null) return null;
  return [el("span", { class: typeof name === "number" ? "index" : "key" }, String(name)), ": "];
}

function leaf(value) {
  const kind = value === null ? "null" : typeof value;
  const text = JSON.stringify(value) ?? "undefined";
  const shown =
    text.length > LONGEST_TEXT ? `${text.slice(0, LONGEST_TEXT)}… (${plural(text.length, "character")})` : text;
  return el("span", { class: `value ${kind}` }, shown);
}

function sizeOf(value, children) {
  return Array.isArray(value) ? `[${children.length}]` : `{${children.length}}`;
}
