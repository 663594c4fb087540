// The connection of MCP since 2026-07-28: no session, every request says all about itself, questions come as results,
// changes come on the stream of `subscriptions/listen`.

import { CLIENT_INFO, Connection, EXTENSIONS, pause } from "./connection.js";
import { mirroredHeaders } from "./mirror.js";
import { followTask, TASKS } from "./tasks.js";
import { Transcript } from "./transcript.js";
import { CallError, isPassing } from "./transport.js";
import { isObject } from "./format.js";

const META = "io.modelcontextprotocol/";
export const WITHOUT_TASKS = { elicitation: { form: {}, url: {} }, sampling: {}, roots: {}, extensions: EXTENSIONS };
const CAPABILITIES = { ...WITHOUT_TASKS, extensions: { ...EXTENSIONS, [TASKS]: {} } };
const MAX_ROUNDS = 32;
const MAX_QUESTIONS = 100;
const LONGEST_PAUSE_MS = 5000;

export class ModernConnection extends Connection {
  turn = Promise.resolve(); // of the changes of what is listened to, one after the other

  async open() {
    const found = await this.request("server/discover");
    this.server = {
      info: found._meta?.[`${META}serverInfo`] ?? {},
      capabilities: found.capabilities ?? {},
      instructions: found.instructions ?? "",
    };
    this.inTurn(() => this.listen()).catch(() => {}); // lists can be loaded without notifications of changes
  }

  stamp(capabilities = CAPABILITIES) {
    const level = this.settings.logLevel;
    return {
      [`${META}protocolVersion`]: this.revision,
      [`${META}clientInfo`]: CLIENT_INFO,
      [`${META}clientCapabilities`]: capabilities,
      ...(level ? { [`${META}logLevel`]: level } : {}),
    };
  }

  headers(method, params, inputSchema) {
    return { "MCP-Protocol-Version": this.revision, ...mirroredHeaders(method, params, inputSchema) };
  }

  ping() {
    return this.request("server/discover"); // this revision has no ping
  }

  async complete(method, params, call) {
    const stamped = { ...params, _meta: { ...params._meta, ...this.stamp() } };
    const headers = this.headers(method, params, call.tool?.inputSchema);
    let more = {};
    for (let round = 0, waits = 0; round <= MAX_ROUNDS; round += 1) {
      const result = await this.exchange(method, { ...stamped, ...more }, call, headers);
      if (result.resultType === "task" && method === "tools/call") return followTask(this, result, call);
      if (result.resultType !== "input_required") return result;
      const asks = isObject(result.inputRequests) && Object.keys(result.inputRequests).length > 0;
      if (!asks) await pause(Math.min(100 * 2 ** waits, LONGEST_PAUSE_MS), call.signal);
      waits = asks ? 0 : waits + 1;
      more = asks ? { inputResponses: await this.gather(result.inputRequests, call) } : {};
      if (typeof result.requestState === "string") more.requestState = result.requestState;
    }
    throw new CallError(`The server still asks after ${MAX_ROUNDS} rounds; the call was given up.`);
  }

  /** All answers of one round; the user is asked one after the other. */
  async gather(requests, call) {
    const names = Object.keys(requests);
    if (names.length > MAX_QUESTIONS) throw new CallError("The server asks too many questions at once.");
    const answers = [];
    for (const name of names) {
      const { method, params } = requests[name] ?? {};
      answers.push([name, await this.answer(method, isObject(params) ? params : {}, { signal: call.signal })]);
    }
    return Object.fromEntries(answers);
  }

  // ── changes ──

  /** Fails unless the server agrees to notify of changes of this very resource. */
  watch(uri) {
    return this.inTurn(async () => {
      await this.listen(uri);
      this.watched.add(uri);
    });
  }

  unwatch(uri) {
    this.watched.delete(uri);
    return this.inTurn(() => this.listen());
  }

  /** One after the other: each stream takes the place of the one before. */
  inTurn(change) {
    const done = this.turn.then(change);
    this.turn = done.catch(() => {});
    return done;
  }

  wanted(uris) {
    const wanted = {};
    for (const feature of ["tools", "prompts", "resources"]) {
      if (this.offers(feature, "listChanged")) wanted[`${feature}ListChanged`] = true;
    }
    if (uris.size) wanted.resourceSubscriptions = [...uris];
    return wanted;
  }

  /** Opens the stream for what is wanted now and `more`, and leaves the one before when the server has agreed. */
  async listen(more = null) {
    const notifications = this.wanted(new Set(more === null ? this.watched : [...this.watched, more]));
    const fresh = new AbortController();
    const agreed = Object.keys(notifications).length ? await this.keepListening(notifications, fresh.signal) : {};
    const agreedUris = Array.isArray(agreed?.resourceSubscriptions) ? agreed.resourceSubscriptions : [];
    if (more !== null && !agreedUris.includes(more)) {
      fresh.abort();
      throw new CallError(
        this.closed ? "The connection was closed." : "The server does not tell of changes of this resource.",
      );
    }
    this.listening?.abort();
    this.listening = fresh;
  }

  /** Done with what the server has agreed to; the stream goes on, also after it was broken. */
  keepListening(notifications, signal) {
    return new Promise((resolve, reject) => {
      let wasThere = false; // or is hoped for
      const run = async () => {
        for (let wait = 500; !signal.aborted && !this.closed; wait = Math.min(wait * 2, 15_000)) {
          try {
            await this.listenOnce(notifications, signal, (agreed) => {
              wait = 500;
              wasThere = true;
              this.say("open");
              resolve(agreed);
            });
            this.say("waiting", "The server ended its stream; listening again…"); // it may be another one by now
          } catch (failure) {
            if (signal.aborted || this.closed) break;
            if (!isPassing(failure) || (!wasThere && Number.isInteger(failure.code))) {
              if (wasThere) this.say("ended"); // at first it means that it tells of nothing
              return reject(failure);
            }
            this.say("waiting", "The server is gone; trying again…");
            wasThere = true;
          }
          await pause(wait, signal);
        }
        resolve();
      };
      run().catch(() => resolve());
    });
  }

  async listenOnce(notifications, signal, onReady) {
    const both = AbortSignal.any([signal, this.closing.signal]);
    const call = { signal: both, transcript: new Transcript(this.traffic), onReady };
    const params = { notifications, _meta: this.stamp() };
    await this.exchange("subscriptions/listen", params, call, this.headers("subscriptions/listen", params));
  }

  receive(message, call) {
    if (message?.method === "notifications/subscriptions/acknowledged") call.onReady?.(message.params?.notifications);
    else super.receive(message, call);
  }

  close() {
    this.closing.abort();
    this.listening?.abort();
    this.say("closed");
  }
}
