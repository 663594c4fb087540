// The base of the connections of both eras: requests and their results, with progress, logs and changes on the way.
// `modern.js` and `session.js` say how a request looks in their revisions.

import { IdleTimeout } from "./idletimeout.js";
import { Transcript } from "./transcript.js";
import { CallError, resultOf } from "./transport.js";
import { isObject } from "./format.js";

export const CLIENT_INFO = { name: "dovetail-console", title: "Dovetail console", version: "1" };
export const EXTENSIONS = { "io.modelcontextprotocol/ui": { mimeTypes: ["text/html;profile=mcp-app"] } };
const QUICK_MS = 30_000; // for requests that have no cancel button
const MAX_PAGES = 1000;
const MAX_ITEMS = 100_000;

/** How one request is made; every part may be left out. `seconds`: of silence after which it is given up. */
export function callWith({ signal, seconds = 0, ...others } = {}) {
  return { signal: signal ?? AbortSignal.timeout(QUICK_MS), seconds, ...others };
}

export class Connection extends EventTarget {
  /** `answer(method, params, {signal})` gives the user's answer to a question of the server's. */
  constructor({ transport, revision, settings, traffic, answer }) {
    super();
    this.transport = transport;
    this.revision = revision;
    this.settings = settings;
    this.traffic = traffic;
    this.answer = answer;
    this.running = new Map(); // id: the call that waits for it
    this.watched = new Set(); // URIs of resources
    this.closing = new AbortController();
    this.lastId = 0;
    this.server = { info: {}, capabilities: {}, instructions: "" };
  }

  get closed() {
    return this.closing.signal.aborted;
  }

  /** The result, after all questions are answered. */
  async request(method, params = {}, options = {}) {
    const transcript = options.transcript ?? new Transcript(this.traffic);
    const call = callWith({ seconds: this.settings.timeout, ...options, transcript });
    return this.complete(method, params, call);
  }

  /** All pages of a list; `member` is the name of its items in a result. */
  async list(method, member) {
    const items = [];
    let cursor;
    for (let page = 0; page < MAX_PAGES && items.length < MAX_ITEMS; page += 1) {
      const result = await this.request(method, cursor === undefined ? {} : { cursor });
      if (!Array.isArray(result[member])) throw new CallError(`${method}: the server's answer has no ${member}.`);
      for (const item of result[member]) if (isObject(item) && items.length < MAX_ITEMS) items.push(item);
      if (typeof result.nextCursor !== "string" || result.nextCursor === cursor) break;
      cursor = result.nextCursor;
    }
    return items;
  }

  offers(feature, part) {
    const offered = this.server.capabilities?.[feature];
    return isObject(offered) && (part === undefined || Boolean(offered[part]));
  }

  /** One request and its answer; `headers` and the shape of `params` are those of the era. */
  async exchange(method, params, call, headers, onResponse) {
    this.lastId += 1;
    const id = this.lastId;
    const meta = { ...params._meta, ...(call.onProgress ? { progressToken: id } : {}) };
    const shaped = Object.keys(meta).length ? { ...params, _meta: meta } : params;
    const message = { jsonrpc: "2.0", id, method, params: shaped };
    call.idleTimeout = new IdleTimeout(call.seconds ?? 0, call.signal);
    call.taskId = null;
    const { signal } = call.idleTimeout;
    this.running.set(id, call);
    try {
      const onMessage = (part) => (call.idleTimeout.restart(), this.receive(part, call));
      const options = { signal, transcript: call.transcript, onMessage, onResponse };
      return await this.settle(resultOf(await this.answered(message, headers, options)), call);
    } catch (failure) {
      if (signal.aborted && !call.taskId) this.abandon(id, signal.reason);
      throw readable(failure, signal);
    } finally {
      call.idleTimeout.end(new DOMException("The call has ended.", "AbortError")); // with the questions within it
      this.running.delete(id);
    }
  }

  /** A session takes a broken stream up again; others can't. */
  async answered(message, headers, options) {
    return this.transport.request(message, headers, options);
  }

  /** The outcome of a call, given its result: in a session it may be a task. */
  settle(result) {
    return result;
  }

  /** Where closing the connection is not enough, the server is notified. */
  abandon() {}

  /** A message that is not the answer: a notification, or in a session a question. */
  receive(message, call) {
    if (!isObject(message) || typeof message.method !== "string") return;
    if (message.id !== undefined) return this.asked(message, call);
    const params = isObject(message.params) ? message.params : {};
    if (message.method === "notifications/progress") {
      this.running.get(params.progressToken)?.onProgress?.(params);
    } else if (message.method === "notifications/message") {
      for (const receiver of call ? [call] : this.running.values()) receiver.onLog?.(params);
    } else {
      this.dispatchEvent(new CustomEvent("notification", { detail: { method: message.method, params } }));
    }
  }

  /** Only sessions can be asked something out of turn. */
  asked() {}

  say(state, words) {
    if (!this.closed || state === "closed") this.dispatchEvent(new CustomEvent("state", { detail: { state, words } }));
  }
}

function readable(failure, signal) {
  return signal.aborted && isTimeout(signal.reason) ? new CallError("The server did not answer in time.") : failure;
}

/** Whether a call ended because its time was over, not because the user cancelled it. */
export function isTimeout(reason) {
  return reason?.name === "TimeoutError";
}

/** Wait, but not longer than the signal lets. */
export function pause(ms, signal) {
  return unless(signal, new Promise((resolve) => setTimeout(resolve, ms)));
}

/** What is promised, or the reason of the signal if that comes first. */
export function unless(signal, promised) {
  if (!signal) return promised;
  return new Promise((resolve, reject) => {
    const leave = () => reject(signal.reason);
    if (signal.aborted) return leave();
    signal.addEventListener("abort", leave);
    promised.then(resolve, reject).finally(() => signal.removeEventListener("abort", leave));
  });
}
