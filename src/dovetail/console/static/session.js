// The connection of MCP up to 2025-11-25: a handshake begins a session, in which the server may send requests and
// notifications at any time. Its requests are answered by POSTs of their own.

import { CLIENT_INFO, Connection, EXTENSIONS, isTimeout, pause, unless } from "./connection.js";
import { CoreTask, followTask } from "./tasks.js";
import { Transcript } from "./transcript.js";
import { BrokenStream, CallError, isPassing } from "./transport.js";
import { isObject } from "./format.js";

const RESUMES = 20; // in a row that bring nothing
const SHORTEST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 30_000;
const CLOSED = "The connection was closed before the answer came. Call it again.";
const URL_REQUIRED = -32042;
const WITH_TASKS = "2025-11-25";
const RELATED_TASK = "io.modelcontextprotocol/related-task";
const QUESTIONS = ["elicitation/create", "sampling/createMessage", "roots/list"];

export class SessionConnection extends Connection {
  constructor(options) {
    super(options);
    this.id = null;
    this.questions = new Map(); // id of a question: what withdraws it
  }

  capabilities() {
    const offers = { sampling: {}, roots: { listChanged: false }, extensions: EXTENSIONS };
    if (this.revision >= "2025-11-25") offers.elicitation = { form: {}, url: {} };
    else if (this.revision >= "2025-06-18") offers.elicitation = {};
    return offers;
  }

  open() {
    this.opened = this.begin();
    return this.opened;
  }

  /** Before the handshake is done, the server would refuse everything. */
  async request(method, params, options = {}) {
    await unless(options.signal, this.opened);
    return super.request(method, params, options);
  }

  async begin() {
    const call = { signal: AbortSignal.timeout(30_000), transcript: new Transcript(this.traffic) };
    const params = { protocolVersion: this.revision, capabilities: this.capabilities(), clientInfo: CLIENT_INFO };
    const onResponse = (response) => (this.id = response.headers.get("Mcp-Session-Id"));
    const found = await this.exchange("initialize", params, call, {}, onResponse);
    if (found.protocolVersion !== this.revision) {
      throw new CallError(`The server does not speak ${this.revision}; it offers ${found.protocolVersion}.`);
    }
    this.server = {
      info: found.serverInfo ?? {},
      capabilities: found.capabilities ?? {},
      instructions: found.instructions ?? "",
    };
    await this.notify("notifications/initialized");
    this.listen();
    if (this.offers("logging") && this.settings.logLevel) {
      await super.request("logging/setLevel", { level: this.settings.logLevel }).catch(() => {});
    }
  }

  headers() {
    return { "MCP-Protocol-Version": this.revision, ...(this.id ? { "Mcp-Session-Id": this.id } : {}) };
  }

  ping() {
    return this.request("ping");
  }

  async complete(method, params, call) {
    const asked = this.takesTask(call.tool) ? { ...params, task: {} } : params;
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await this.exchange(method, asked, call, this.headers());
      } catch (failure) {
        this.noticeEnd(failure);
        const pages = failure.code === URL_REQUIRED ? failure.data?.elicitations : null;
        if (!Array.isArray(pages) || attempt >= 3) throw failure;
        await this.visit(pages.slice(0, 10), call, failure);
      }
    }
  }

  takesTask(tool) {
    const offered = this.revision === WITH_TASKS && this.server.capabilities.tasks?.requests?.tools?.call;
    return Boolean(offered) && ["optional", "required"].includes(tool?.execution?.taskSupport);
  }

  /** A call that has become a task is still one that runs: its progress, logs and questions come in the session. */
  settle(result, call) {
    if (!this.takesTask(call.tool) || !isObject(result.task)) return result;
    call.taskId = result.task.taskId;
    call.idleTimeout.hold(); // the polls have their own
    return followTask(this, result.task, { ...call, signal: call.idleTimeout.signal }, CoreTask);
  }

  /** Pages that have to be visited before the call can be made again. */
  async visit(pages, call, failure) {
    for (const page of pages) {
      const reply = await this.answer("elicitation/create", { ...page, mode: "url" }, { signal: call.signal });
      if (reply.action !== "accept") throw failure;
    }
  }

  noticeEnd(failure) {
    if (failure.status === 404 && this.id) this.say("ended", "The session has ended.");
  }

  /** A stream that breaks before its answer is taken up again where it broke. */
  async answered(message, headers, options) {
    try {
      return await this.transport.request(message, headers, options);
    } catch (failure) {
      if (!(failure instanceof BrokenStream) || !failure.lastId || !this.id) throw failure;
      return this.resume(failure, message.id, options);
    }
  }

  async resume(broken, id, options) {
    for (let attempt = 0; attempt < RESUMES; attempt += 1) {
      await pause(Math.min(Math.max(broken.retry ?? 500, SHORTEST_PAUSE_MS), LONGEST_PAUSE_MS), options.signal);
      try {
        const headers = { ...this.headers(), Accept: "text/event-stream", "Last-Event-ID": broken.lastId };
        const response = await this.transport.send("GET", headers, options);
        return await this.transport.follow(response, { ...options, id });
      } catch (failure) {
        if (options.signal.aborted || failure.status) throw failure;
        if (failure.lastId) attempt = -1; // it gets on
        broken = { lastId: failure.lastId ?? broken.lastId, retry: failure.retry ?? broken.retry };
      }
    }
    throw new CallError("The connection broke too often before the answer came. Try again.");
  }

  async notify(method, params, transcript = new Transcript(this.traffic)) {
    const message = { jsonrpc: "2.0", method, ...(params ? { params } : {}) };
    await this.transport.post(message, this.headers(), { signal: AbortSignal.timeout(30_000), transcript });
  }

  abandon(id, why) {
    if (this.closed) return; // the whole session ends
    const transcript = this.running.get(id)?.transcript;
    const reason = isTimeout(why) ? "no answer came in time" : "the user cancelled it";
    this.notify("notifications/cancelled", { requestId: id, reason }, transcript).catch(() => {});
  }

  // ── messages of the server outside of calls ──

  async listen() {
    const transcript = new Transcript(this.traffic);
    const options = { signal: this.closing.signal, transcript, onMessage: (message) => this.receive(message, null) };
    let lastId = null;
    let wasThere = false; // or is hoped for
    for (let wait = 500; !this.closed; wait = Math.min(wait * 2, 15_000)) {
      try {
        const resumed = lastId ? { "Last-Event-ID": lastId } : {};
        const headers = { ...this.headers(), Accept: "text/event-stream", ...resumed };
        const response = await this.transport.send("GET", headers, options);
        this.say("open");
        wasThere = true;
        wait = 500;
        await this.transport.follow(response, options);
      } catch (failure) {
        if (this.closed) return;
        if (failure.status && !isPassing(failure)) {
          if (wasThere) this.say("ended"); // at first it means that there is no such stream: 405, behind proxies 404
          return;
        }
        lastId = failure.lastId ?? lastId;
        if (!(failure instanceof BrokenStream)) this.say("waiting", "The server is gone; trying again…");
        wasThere = true;
      }
      await pause(wait, this.closing.signal).catch(() => {});
    }
  }

  receive(message, call) {
    if (message?.method === "notifications/cancelled" && message.id === undefined) {
      this.questions.get(message.params?.requestId)?.abort();
    } else {
      super.receive(message, call);
    }
  }

  async asked(message, request) {
    const taskId = message.params?._meta?.[RELATED_TASK]?.taskId;
    const call = request ?? [...this.running.values()].find((each) => each.taskId && each.taskId === taskId);
    const withdrawal = new AbortController();
    this.questions.set(message.id, withdrawal);
    const waiting = (call ? [call] : [...this.running.values()]).map(({ idleTimeout }) => idleTimeout);
    const ends = call ? [call.idleTimeout.signal] : [];
    const signal = AbortSignal.any([withdrawal.signal, this.closing.signal, ...ends]);
    for (const idleTimeout of waiting) idleTimeout.hold();
    const reply = await this.replyTo(message, signal);
    for (const idleTimeout of waiting) idleTimeout.release();
    this.questions.delete(message.id);
    if (signal.aborted || !reply) return;
    const transcript = call?.transcript ?? new Transcript(this.traffic);
    const envelope = { jsonrpc: "2.0", id: message.id, ...reply };
    await this.transport.post(envelope, this.headers(), { signal: this.closing.signal, transcript }).catch(() => {});
  }

  async replyTo({ method, params }, signal) {
    if (method === "ping") return { result: {} };
    if (!QUESTIONS.includes(method)) return { error: { code: -32601, message: "Method not found" } };
    try {
      return { result: await this.answer(method, isObject(params) ? params : {}, { signal }) };
    } catch (failure) {
      return { error: { code: failure.code ?? -32603, message: failure.message } };
    }
  }

  // ── changes ──

  async watch(uri) {
    await this.request("resources/subscribe", { uri });
    this.watched.add(uri);
  }

  async unwatch(uri) {
    this.watched.delete(uri);
    await this.request("resources/unsubscribe", { uri });
  }

  close() {
    const leaving = { signal: AbortSignal.timeout(2000), transcript: new Transcript(this.traffic) };
    const tasks = [...this.running.values()].filter(({ taskId }) => taskId);
    const cancels = tasks.map(({ taskId }) => this.request("tasks/cancel", { taskId }, leaving));
    this.closing.abort();
    for (const { idleTimeout } of this.running.values()) idleTimeout.end(new CallError(CLOSED));
    const end = () => this.transport.send("DELETE", this.headers(), leaving).catch(() => {});
    if (this.id) Promise.allSettled(cancels).then(end);
    this.say("closed");
  }
}
