// The HTTP transport to the endpoint: sends one message, returns its response, and gives the other messages of the
// server on the way to `onMessage`. Knows nothing of MCP but its media types.

import { eventsOf, textOfBody } from "./sse.js";
import { shortened } from "./format.js";

const JSON_TYPE = "application/json";
const EVENTS_TYPE = "text/event-stream";
const TOO_MANY = 429;
const NO_RECEIVER = { onMessage() {} };

/** What the server refused, or why nothing came back. `code` is that of JSON-RPC, `status` that of HTTP. */
export class CallError extends Error {
  constructor(message, { code = null, data, status = null } = {}) {
    super(message);
    this.code = code;
    this.data = data;
    this.status = status;
  }
}

/** The stream ended before its answer; `lastId` tells where to take it up again. */
export class BrokenStream extends CallError {
  constructor(progress) {
    super("The connection ended before the answer came. Is the server still running? Try again.");
    Object.assign(this, progress);
  }
}

/** No server answers at that address. */
class Unreachable extends CallError {}

/** Whether it may go well a moment later: the server is not there, or has troubles of its own. */
export function isPassing(failure) {
  const isGone = failure instanceof Unreachable || failure instanceof BrokenStream;
  return isGone || failure.status >= 500 || failure.status === TOO_MANY;
}

export class HttpTransport {
  /** `extra`: [name, value] of headers that go out with everything, but are not shown with their values. */
  constructor(endpoint, token, extra = []) {
    this.endpoint = endpoint;
    this.extra = extra;
    this.secret = new Headers(extra);
    if (token) this.secret.set("Authorization", `Bearer ${token}`);
  }

  /** Any request at all; a refusal is thrown. */
  async send(verb, headers, { message, signal, transcript }) {
    const shown = { ...headers, ...(message ? { "Content-Type": JSON_TYPE } : {}) };
    const named = Object.fromEntries(this.extra.map(([name]) => [name, "(as in Settings)"]));
    const secret = Object.fromEntries(this.secret);
    const body = message && JSON.stringify(message);
    transcript.note("sent", message ?? null, {
      http: `${verb} ${this.endpoint}`,
      headers: { ...named, ...shown },
      size: body?.length ?? 0,
    });
    let response;
    try {
      response = await fetch(this.endpoint, {
        ...{ method: verb, headers: { ...shown, ...secret }, body, signal },
        ...{ credentials: "omit", cache: "no-store", redirect: "error" },
      });
    } catch (failure) {
      if (signal?.aborted) throw failure;
      throw new Unreachable("The server can't be reached. Is it still running?");
    }
    if (!response.ok) throw await refusal(response, transcript);
    return response;
  }

  /** Send a message that has no answer. */
  async post(message, headers, { signal, transcript }) {
    const accept = { Accept: `${JSON_TYPE}, ${EVENTS_TYPE}` };
    const response = await this.send("POST", { ...accept, ...headers }, { message, signal, transcript });
    transcript.note("received", null, { http: statusOf(response), headers: response.headers, size: 0 });
    await response.body?.cancel();
  }

  /** Send a request and read until its answer comes. `onResponse` sees the head of the response first. */
  async request(message, headers, { signal, transcript, onMessage, onResponse }) {
    const accept = { Accept: `${JSON_TYPE}, ${EVENTS_TYPE}` };
    const response = await this.send("POST", { ...accept, ...headers }, { message, signal, transcript });
    onResponse?.(response);
    if (typeOf(response) === EVENTS_TYPE) {
      return this.follow(response, { id: message.id, transcript, onMessage });
    }
    const text = await textOfBody(response);
    const answer = parsed(text);
    transcript.note("received", answer, { http: statusOf(response), headers: response.headers, size: text.length });
    if (answer?.id !== message.id) throw new CallError("The server's answer does not belong to the request.");
    return answer;
  }

  /** Read a stream until the answer with this id; without an id, until it ends. */
  async follow(response, { id, transcript, onMessage } = NO_RECEIVER) {
    if (typeOf(response) !== EVENTS_TYPE) throw new CallError("The server answered with something that is no stream.");
    const progress = { lastId: null, retry: null };
    let head = { http: statusOf(response), headers: response.headers };
    try {
      for await (const event of eventsOf(response)) {
        progress.lastId = event.id ?? progress.lastId;
        progress.retry = event.retry ?? progress.retry;
        if (!event.data) continue;
        const message = parsed(event.data);
        transcript.note("received", message, { ...head, size: event.data.length });
        head = {};
        const answer = [message].flat().find((part) => id !== undefined && part?.id === id && !part.method);
        if (answer) return answer;
        for (const part of [message].flat()) onMessage(part);
      }
    } catch (failure) {
      if (failure instanceof CallError || ["AbortError", "TimeoutError"].includes(failure.name)) throw failure;
    }
    throw new BrokenStream(progress);
  }
}

/** The result of an answer; its error is thrown. */
export function resultOf(answer) {
  if (answer.error) {
    const { code, message, data } = answer.error;
    throw new CallError(String(message ?? "The server gave no reason."), { code, data });
  }
  return answer.result ?? {};
}

async function refusal(response, transcript) {
  let said = null;
  let text = "";
  try {
    text = await textOfBody(response);
    said = JSON.parse(text);
  } catch {
    // a page or nothing at all: the status has to do
  }
  transcript.note("received", said ?? text.slice(0, 10_000), {
    ...{ http: statusOf(response), headers: response.headers, size: text.length },
  });
  const words = said?.error?.message ?? said?.message ?? said?.error_description ?? said?.error;
  const fallback = `The server answered ${statusOf(response)}.`;
  const { code = null, data } = typeof said?.error === "object" && said.error ? said.error : {};
  const message = typeof words === "string" ? shortened(words, 2000) : fallback;
  return new CallError(message, { code, data, status: response.status });
}

function statusOf(response) {
  return `${response.status} ${response.statusText}`.trim();
}

function typeOf(response) {
  return (response.headers.get("Content-Type") ?? "").split(";")[0].trim().toLowerCase();
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new CallError("The server sent something that is not JSON.");
  }
}
