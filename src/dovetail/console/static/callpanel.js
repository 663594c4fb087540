// The panel of one call at a time: buttons, progress, logs, result and messages.
// The section that started the call gets the outcome too.

import { announce, button, el, show } from "./dom.js";
import { MessagesView } from "./messages.js";
import { ResultView } from "./result.js";
import { onceAFrame, Scrollback } from "./scrollback.js";
import { Transcript } from "./transcript.js";
import { isObject, shortened, textOf } from "./format.js";

const LOGS_SHOWN = 300;
const SPEAK_MS = 3000; // how often progress is said aloud
const SMALL = matchMedia("(max-width: 900px)"); // there the result is below the form
const CALM = matchMedia("(prefers-reduced-motion: reduce)");
const LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

export class CallPanel {
  /** `kind`: tool, resource or prompt. `label`: of the button. `submit()` is what it does. */
  constructor(client, { kind, label, submit, idle }) {
    this.client = client;
    this.kind = kind;
    this.running = null;
    this.start = button(label, submit, { class: "primary", title: "Ctrl+Enter" });
    this.stop = button("Cancel", () => this.cancel(), { hidden: true });
    this.bar = el("progress", { "aria-label": "Progress" });
    this.words = el("span", { class: "muted" });
    this.progress = el("div", { class: "progress", hidden: true }, this.bar, this.words);
    this.drawProgress = onceAFrame(() => this.running && this.news && this.advance(this.news));
    this.logs = new Scrollback({
      ...{ class: "logs", role: "log", "aria-label": "Logs", tabindex: "0" },
      ...{ shown: LOGS_SHOWN, noun: "line", draw: drawLog },
    });
    this.logPane = el(
      "details",
      { class: "log-pane", open: true, hidden: true },
      el("summary", {}, "Logs"),
      this.logs.element,
    );
    this.result = new ResultView((uri) => client.openResource(uri), idle);
    this.messages = new MessagesView("Messages", "The raw messages of the call will be here.");
    this.output = el(
      "div",
      { class: "output" },
      this.progress,
      this.logPane,
      this.result.element,
      this.messages.element,
    );
  }

  /** What a user fills in, and the output beside it. */
  beside(input, attributes = {}) {
    return el("article", { class: "columns", ...attributes }, el("div", { class: "input" }, input), this.output);
  }

  /** The outcome is {result} or {failure}; undefined if another call is still running. */
  async run({ method, params, tool, quiet = false }) {
    if (this.running) return undefined;
    const started = performance.now();
    const transcript = new Transcript(this.client.traffic);
    this.begin(transcript, quiet);
    const options = { signal: this.running.signal, transcript, tool };
    const handlers = {
      onProgress: (news) => this.onProgress(news),
      onLog: (line) => this.log(line),
      onTask: (task) => this.onTask(task),
    };
    let outcome;
    const { revision } = this.client.connection; // of the call; another may be spoken when it ends
    try {
      outcome = { result: await this.client.connection.request(method, params, { ...options, ...handlers }) };
    } catch (failure) {
      outcome = { failure };
    }
    Object.assign(outcome, { revision, ms: performance.now() - started }); // before anything is drawn
    this.result.present(outcome, this.kind);
    if (outcome.failure?.status === 401) this.client.needToken(outcome.failure);
    this.end();
    return outcome;
  }

  begin(transcript, quiet) {
    this.running = new AbortController();
    this.start.setAttribute("aria-disabled", "true");
    this.spoken = performance.now();
    this.bar.removeAttribute("value");
    this.words.textContent = "";
    this.messages.follow(transcript);
    this.news = null;
    this.task = "";
    this.logs.clear();
    show(this.stop, true);
    show(this.logPane, false);
    if (!quiet) this.result.wait();
    if (!quiet && SMALL.matches) this.start.scrollIntoView({ behavior: CALM.matches ? "instant" : "smooth" });
    this.progressDelay = setTimeout(() => show(this.progress, true), 250); // quick calls need no bar
  }

  end() {
    const wasOnCancel = document.activeElement === this.stop;
    clearTimeout(this.progressDelay);
    this.running = null;
    this.start.removeAttribute("aria-disabled");
    show(this.stop, false);
    show(this.progress, false);
    if (wasOnCancel) this.start.focus();
  }

  cancel() {
    this.running?.abort(new DOMException("The user cancelled it.", "AbortError"));
  }

  /** Only the newest is drawn: some servers report every byte. */
  onProgress(news) {
    if (!Number.isFinite(news.progress)) return;
    this.news = news;
    this.drawProgress();
  }

  /** The state of a task takes the place of the progress before it. What comes later moves the bar alone. */
  onTask({ status, statusMessage }) {
    if (!this.task) {
      this.news = null;
      this.bar.removeAttribute("value");
    }
    show(this.progress, true);
    const words = [`task ${textOf(status).replace("_", " ")}`, shortened(textOf(statusMessage), 200)];
    this.task = words.filter(Boolean).join(" · ");
    this.say(this.task);
  }

  log(line) {
    show(this.logPane, true);
    this.logs.add(line);
  }

  advance({ progress, total, message }) {
    show(this.progress, true);
    if (Number.isFinite(total) && total > 0) {
      this.bar.max = total;
      this.bar.value = Math.min(progress, total);
    }
    const share = total > 0 ? `${Math.round((progress / total) * 100)} %` : String(progress);
    this.say(this.task || [share, shortened(textOf(message), 200)].filter(Boolean).join(" · "));
  }

  say(words) {
    this.words.textContent = words;
    if (performance.now() - this.spoken > SPEAK_MS) {
      this.spoken = performance.now();
      announce(`Progress: ${words}`);
    }
  }
}

function drawLog({ level, logger, data }) {
  const known = LEVELS.includes(level) ? level : "info";
  const words =
    typeof data === "string"
      ? data
      : isObject(data) && typeof data.message === "string"
        ? data.message
        : JSON.stringify(data);
  return el(
    "li",
    { class: `log ${known}` },
    el("span", { class: "level" }, known),
    textOf(logger) && el("span", { class: "muted" }, shortened(logger, 60)),
    el("span", {}, shortened(words ?? "", 2000)),
  );
}

/** What the history keeps of an outcome; the outcome itself only as long as the page lasts. */
export function summaryOf(outcome) {
  const { result, failure, ms, revision } = outcome;
  const ok = !failure && result.isError !== true;
  const words = failure ? failure.message : ok ? "done" : "the tool failed";
  return {
    ok,
    ms: Math.round(ms * 10) / 10,
    words: shortened(failure?.name === "AbortError" ? "cancelled" : words, 200),
    ...{ revision, outcome },
  };
}
