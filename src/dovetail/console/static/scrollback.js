// A scrolling list of the last items of something that grows: logs, messages.
// It is drawn once a frame, with one look at where it is scrolled to, so that a server that never stops sending does not
// freeze the page. Items that are left out are counted.

import { el, fill, show } from "./dom.js";
import { plural } from "./format.js";

const RESTS = 3; // times as long as the work took: the rest of the page needs its time too
const LONGEST_REST_MS = 300;

/** A function that does its work in a frame, once, however often it is asked for. Hard work is followed by a rest. */
export function onceAFrame(work) {
  let isAsked = false;
  let rested = 0; // the time from which on it may work again
  const run = () => {
    isAsked = false;
    const began = performance.now();
    work();
    const ended = performance.now();
    rested = ended + Math.min(RESTS * (ended - began), LONGEST_REST_MS);
  };
  return () => {
    if (isAsked) return;
    isAsked = true;
    setTimeout(() => requestAnimationFrame(run), Math.max(0, rested - performance.now()));
  };
}

const NEAR = 40; // pixels from the end: a reader this near follows it

export class Scrollback {
  /** `draw(item)` gives a list item; `noun`: what one is called; `box`: attributes of what can be scrolled. */
  constructor({ shown, noun, draw, onDrawn = () => {}, ...box }) {
    Object.assign(this, { shown, noun, draw, onDrawn });
    this.list = el("ol");
    this.left = el("p", { class: "muted left-out", "aria-live": "off", hidden: true }); // a count is not read aloud
    this.element = el("div", box, this.left, this.list);
    this.refresh = onceAFrame(() => this.drawWaiting());
    new IntersectionObserver(([seen]) => seen.isIntersecting && this.refresh()).observe(this.element);
    this.clear();
  }

  /** `idle` stands there until the first item. */
  clear(idle = null) {
    this.total = 0;
    this.waiting = [];
    this.isIdle = true;
    show(this.left, false);
    fill(this.list, idle);
  }

  add(item) {
    this.total += 1;
    this.waiting.push(item);
    if (this.waiting.length >= 2 * this.shown) this.waiting = this.waiting.slice(-this.shown);
    this.refresh();
  }

  /** Items wait while the list is not visible. */
  drawWaiting() {
    if (!this.waiting.length || !this.element.checkVisibility()) return;
    const fresh = this.waiting.splice(0).slice(-this.shown);
    const box = this.element;
    const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    if (this.isIdle) fill(this.list);
    this.isIdle = false;
    this.makeRoom(fresh.length);
    this.list.append(...fresh.map((item) => this.drawn(item)));
    this.showLeftOut();
    this.onDrawn(this.total);
    if (isAtEnd) this.showLast();
  }

  /** One that can't be drawn hides no other. */
  drawn(item) {
    try {
      return this.draw(item);
    } catch {
      return el("li", { class: "muted idle" }, `A ${this.noun} that can't be shown.`);
    }
  }

  makeRoom(count) {
    const excess = this.list.children.length + count - this.shown;
    const free = [...this.list.children].filter((item) => !isInUse(item));
    for (const item of free.slice(0, Math.max(0, excess))) item.remove();
  }

  showLeftOut() {
    const count = this.total - this.list.children.length;
    show(this.left, count > 0);
    if (count) this.left.textContent = `${plural(count, `earlier ${this.noun}`)} not shown`;
  }

  showLast() {
    this.element.scrollTop = this.element.scrollHeight;
  }
}

/** Whether the user reads it: it was opened, or has the focus. */
function isInUse(item) {
  return item.contains(document.activeElement) || item.querySelector(":scope > details[open]") !== null;
}
