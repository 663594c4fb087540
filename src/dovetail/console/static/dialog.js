// Dialogs, each a promise of the name of the button that was pressed; Escape is the last one.
// One at a time: others wait. The focus goes back where it was. Where there is nothing to fill in, it begins on the last
// button, which changes nothing: a key that was meant for the page before must not say yes.

import { button, el, freshId, isGo, isHeld } from "./dom.js";

let last = Promise.resolve();
const RESTS_MS = 700; // a second click, or a key, that was meant for what was there before

/**
 * `onPress(name)` may return false to keep the dialog open. `signal` closes it with an AbortError. Where `rests`, the
 * first button can't be pressed at once: for questions that come at a moment that another party chooses.
 */
export function ask(options) {
  const turn = last.then(() => open(options));
  last = turn.catch(() => {});
  return turn;
}

function open({ title, body, buttons, primary = buttons[0], focus, signal, rests, onPress = () => true }) {
  if (signal?.aborted) return Promise.reject(abortError());
  return new Promise((resolve, reject) => {
    const id = freshId("dialog");
    const before = document.activeElement;
    const finish = (settle, value) => {
      dialog.close();
      dialog.remove();
      before?.focus?.();
      settle(value);
    };
    const press = (name) => onPress(name) !== false && finish(resolve, name);
    const controls = buttons.map((name) =>
      button(name, () => press(name), { class: name === primary ? "primary" : "" }),
    );
    const dialog = el(
      "dialog",
      { "aria-labelledby": id },
      el("h2", { id }, title),
      el("div", { class: "dialog-body" }, body),
      el("footer", {}, controls),
    );
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      press(buttons.at(-1));
    });
    dialog.addEventListener("keydown", (event) => {
      if (isHeld(event)) event.preventDefault();
      else if (isGo(event) && !controls[0].disabled) press(primary);
    });
    controls[0].disabled = rests === true;
    setTimeout(() => (controls[0].disabled = false), RESTS_MS);
    signal?.addEventListener("abort", () => dialog.isConnected && finish(reject, abortError()), { once: true });
    document.body.append(dialog);
    dialog.showModal();
    (focus?.() ?? dialog.querySelector(".dialog-body :is(input, select, textarea)") ?? controls.at(-1)).focus();
  });
}

function abortError() {
  return new DOMException("The question was withdrawn.", "AbortError");
}

/** Yes or no. */
export async function confirmed(title, words, yes) {
  const pressed = await ask({ title, body: el("p", {}, words), buttons: [yes, "Cancel"] });
  return pressed === yes;
}
