// Functions that make elements of the page.
// Text always becomes a text node: nothing that a server says is ever read as markup.

let counter = 0;

/** An id that no other element has; for labels and descriptions. */
export function freshId(stem = "e") {
  counter += 1;
  return `${stem}-${counter}`;
}

/** `on…` attributes are listeners, `true` is an empty attribute, `false`, `null` and `undefined` are none at all. */
export function el(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  add(element, children);
  return element;
}

/** Children may be elements, texts, lists of both; what is null or false is left out. */
export function add(parent, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return parent;
}

export function fill(parent, ...children) {
  parent.replaceChildren();
  return add(parent, children);
}

export function show(element, visible) {
  element.hidden = !visible;
}

export function button(label, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, label);
}

/** A button that gives way to what it brings: `bring()` gives the first of it, where the focus goes. */
export function moreButton(label, bring, attributes = {}) {
  const more = button(
    label,
    () => {
      const first = bring();
      more.remove();
      const target = first.matches("details") ? first.querySelector("summary") : first;
      if (target === first) first.tabIndex = -1;
      target.focus({ preventScroll: true });
    },
    attributes,
  );
  return more;
}

/** A part of the page with a name that screen readers list. */
export function region(name, className, ...children) {
  return el("section", { "aria-label": name, class: className }, ...children);
}

/** What stands where there is nothing, or not yet, or not because of an error. */
export function notice(title, advice, ...more) {
  return el("div", { class: "notice" }, el("p", { class: "notice-title" }, title), advice && el("p", {}, advice), more);
}

/** A link out of the page, with its host as it will be looked up: only for pages of the web, all others stay text. */
export function outsideLink(url) {
  if (!isWebUrl(url)) return el("code", {}, url);
  const { href } = new URL(url);
  return el("a", { href, target: "_blank", rel: "noopener noreferrer" }, href);
}

/** Also nothing stands before its host, as in https://bank.example@evil.example. */
export function isWebUrl(url) {
  try {
    const { protocol, username, password } = new URL(url);
    return ["http:", "https:"].includes(protocol) && !username && !password;
  } catch {
    return false;
  }
}

/** Says something to screen readers without moving the focus. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

let toastTimer = 0;

/** A line at the bottom of the page that goes away by itself. */
export function toast(text) {
  const place = document.getElementById("toast");
  place.textContent = text;
  show(place, true);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => show(place, false), 4000);
}

/** Whether this is no new press of Enter but one that goes on: what it began with has been done. */
export function isHeld(event) {
  return event.key === "Enter" && event.repeat;
}

/** Whether these keys mean: do it. */
export function isGo(event) {
  return event.key === "Enter" && !event.repeat && (event.ctrlKey || event.metaKey);
}
