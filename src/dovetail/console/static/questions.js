// The dialogs for the requests of a server (elicitation, sampling, roots), which give the result to answer with.
// A refusal is thrown.

import { drawBlock } from "./content.js";
import { ask } from "./dialog.js";
import { el, freshId, isWebUrl, outsideLink } from "./dom.js";
import { Form } from "./form.js";
import { CallError } from "./transport.js";
import { isObject, plural, shortened, textOf } from "./format.js";

const ACTIONS = { Accept: "accept", Decline: "decline", Cancel: "cancel" };
const BUTTONS = Object.keys(ACTIONS);
const REJECTED = -1;
const INVALID = -32602;
const LONGEST = 4000; // characters of a question

/** `settings.roots` are the folders that a server gets when it asks for roots. */
export function answerer(settings) {
  const answers = {
    "elicitation/create": elicit,
    "sampling/createMessage": sample,
    "roots/list": () => ({ roots: settings.roots.map((uri) => ({ uri })) }),
  };
  return async (method, params, { signal }) => {
    if (!Object.hasOwn(answers, method))
      throw new CallError(`The server asks ${shortened(method)}, which this console does not know.`);
    return answers[method](params, signal);
  };
}

async function elicit(params, signal) {
  return params.mode === "url" ? visit(params, signal) : fillIn(params, signal);
}

async function fillIn(params, signal) {
  const schema = isObject(params.requestedSchema) ? params.requestedSchema : {};
  const form = new Form({ type: "object", ...schema }, { json: false });
  let content = {};
  const pressed = await ask({
    title: "The server asks",
    body: [el("p", { class: "question" }, said(params.message)), !form.isEmpty && form.element, caution()],
    buttons: BUTTONS,
    signal,
    onPress(name) {
      content = name === "Accept" ? form.read() : {};
      return content !== null;
    },
  });
  return pressed === "Accept" ? { action: "accept", content } : { action: ACTIONS[pressed] };
}

function caution() {
  return el(
    "p",
    { class: "muted" },
    "Do not enter passwords or other secrets here: the answer goes to the server as it is.",
  );
}

async function visit(params, signal) {
  const url = textOf(params.url);
  if (!isWebUrl(url)) throw new CallError("The server asks to open an address that is no web page.", { code: INVALID });
  const pressed = await ask({
    title: "The server asks you to visit a page",
    body: [
      el("p", { class: "question" }, said(params.message)),
      el("p", {}, outsideLink(url)),
      el(
        "p",
        { class: "warn-text" },
        "Look at the address before you open it: it leads to ",
        el("strong", {}, new URL(url).host),
        ". Accept says that you agree to go there; finish there before you go on here.",
      ),
    ],
    buttons: BUTTONS,
    signal,
  });
  return { action: ACTIONS[pressed] };
}

async function sample(params, signal) {
  const id = freshId("sampling");
  const answer = el("textarea", { id, rows: 5 });
  const messages = Array.isArray(params.messages) ? params.messages.slice(-50) : [];
  const pressed = await ask({
    title: "The server asks a model",
    body: [
      el("p", { class: "muted" }, `There is no model here: you are it.${tokensAllowed(params)}`),
      params.systemPrompt && el("p", { class: "description" }, `System: ${said(params.systemPrompt)}`),
      messages.map(drawTurn),
      el("div", { class: "field" }, el("label", { for: id, class: "field-label" }, "Answer"), answer),
    ],
    buttons: BUTTONS,
    focus: () => answer,
    signal,
  });
  if (pressed !== "Accept") throw new CallError("The user rejected the sampling request", { code: REJECTED });
  return { role: "assistant", model: "a person", content: { type: "text", text: answer.value }, stopReason: "endTurn" };
}

/** A text of the server with its lines, but not more of it than can be read. */
function said(text) {
  const whole = textOf(text);
  return whole.length > LONGEST ? `${whole.slice(0, LONGEST)}…` : whole;
}

function tokensAllowed({ maxTokens }) {
  return Number.isFinite(maxTokens) ? ` The answer may have ${plural(maxTokens, "token")}.` : "";
}

function drawTurn(turn) {
  const blocks = [turn?.content].flat().slice(0, 20);
  return el(
    "div",
    { class: "message" },
    el("p", { class: "role" }, textOf(turn?.role)),
    blocks.map((block) => drawBlock(block)),
  );
}
