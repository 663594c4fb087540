// A call that has become a task: polled until it ends. What it asks is answered by the user meanwhile.
// Its state brings questions and result since 2026-07-28; in 2025-11-25 they come as messages of the session.

import { pause } from "./connection.js";
import { CallError, isPassing } from "./transport.js";
import { isObject } from "./format.js";

export const TASKS = "io.modelcontextprotocol/tasks";
const DEFAULT_POLL_MS = 1000;
const SHORTEST_POLL_MS = 10;
const LONGEST_POLL_MS = 24 * 3600 * 1000; // that a timer of the browser can wait
const MAX_QUESTIONS = 100; // of a task
const MAX_TRIES = 5; // of a poll that fails in a way that may pass

/** The result of the task; it is cancelled if the user leaves it, or can't answer. */
export async function followTask(connection, created, call, kind = Task) {
  const task = new kind(connection, created.taskId, call);
  try {
    return await task.result(created);
  } catch (failure) {
    if (!task.hasEnded) task.cancel();
    throw failure;
  } finally {
    task.withdraw();
  }
}

class Task {
  constructor(connection, id, call) {
    Object.assign(this, { connection, id, call });
    this.hasEnded = false;
    this.questions = new Map(); // key: what withdraws the question
    this.over = new AbortController(); // perhaps with the failure of an answer
    this.signal = AbortSignal.any([call.signal, this.over.signal]);
  }

  request(method, params = {}) {
    const { transcript } = this.call;
    return this.connection.request(method, { taskId: this.id, ...params }, { signal: this.signal, transcript });
  }

  async result(created) {
    for (let state = created; ; state = await this.poll()) {
      this.call.onTask?.(state);
      this.hasEnded = state !== created && ["completed", "failed", "cancelled"].includes(state.status);
      if (this.hasEnded) return this.outcome(state);
      this.ask(state);
      await pause(pollMs(state.pollIntervalMs ?? state.pollInterval), this.signal);
    }
  }

  async poll() {
    for (let tries = 1; ; tries++) {
      try {
        return await this.request("tasks/get");
      } catch (failure) {
        if (tries === MAX_TRIES || !isPassing(failure)) throw failure;
        await pause(DEFAULT_POLL_MS, this.signal);
      }
    }
  }

  cancel() {
    this.connection.request("tasks/cancel", { taskId: this.id }).catch(() => {});
  }

  outcome({ status, statusMessage, result, error }) {
    if (status === "completed" && isObject(result)) return result;
    const words = status === "failed" ? error?.message : statusMessage;
    const { code = null, data } = status === "failed" && isObject(error) ? error : {};
    const fallback = `The task ended without a result: ${status}.`;
    throw new CallError(typeof words === "string" ? words : fallback, { code, data });
  }

  /** Each question is asked once, and withdrawn if the task goes on without it. */
  ask({ status, inputRequests }) {
    const requests = status === "input_required" && isObject(inputRequests) ? inputRequests : {};
    for (const [key, withdrawal] of this.questions) if (!Object.hasOwn(requests, key)) withdrawal.abort();
    const fresh = Object.keys(requests).filter((key) => !this.questions.has(key));
    if (this.questions.size + fresh.length > MAX_QUESTIONS) throw new CallError("The server asks too many questions.");
    for (const key of fresh) {
      const withdrawal = new AbortController();
      this.questions.set(key, withdrawal);
      this.answer(key, requests[key] ?? {}, withdrawal.signal).catch((failure) => {
        if (!withdrawal.signal.aborted) this.over.abort(failure);
      });
    }
  }

  async answer(key, { method, params }, withdrawn) {
    const signal = AbortSignal.any([withdrawn, this.signal]);
    const answer = await this.connection.answer(method, isObject(params) ? params : {}, { signal });
    await this.request("tasks/update", { inputResponses: { [key]: answer } });
  }

  withdraw() {
    this.over.abort();
  }
}

/** In 2025-11-25, `tasks/result` waits for the result. Questions come on its stream if the session has no other. */
export class CoreTask extends Task {
  cancel() {
    if (!this.connection.closed) super.cancel(); // a session cancels its tasks before it ends
  }

  outcome(state) {
    return state.status === "cancelled" ? super.outcome(state) : this.awaited();
  }

  ask({ status }) {
    if (status === "input_required") this.awaited().catch(() => {}); // if it fails, the next poll sends it again
  }

  awaited() {
    this.waiting ??= this.request("tasks/result").catch((failure) => {
      this.waiting = null;
      throw failure;
    });
    return this.waiting;
  }
}

function pollMs(hint) {
  const wanted = Number.isFinite(hint) ? hint : DEFAULT_POLL_MS;
  return Math.min(Math.max(wanted, SHORTEST_POLL_MS), LONGEST_POLL_MS);
}
