// A call that has become a task, since 2026-07-28: polled until it ends. What it asks is answered by the user meanwhile.

import { pause } from "./connection.js";
import { CallError } from "./transport.js";
import { isObject } from "./format.js";

export const TASKS = "io.modelcontextprotocol/tasks";
const DEFAULT_POLL_MS = 1000;
const SHORTEST_POLL_MS = 10;
const LONGEST_POLL_MS = 24 * 3600 * 1000; // that a timer of the browser can wait
const MAX_QUESTIONS = 100; // of a task

/** The result of the task; it is cancelled if the user leaves it, or can't answer. */
export async function followTask(connection, created, call) {
  const task = new Task(connection, created.taskId, call);
  try {
    return await task.result(created);
  } catch (failure) {
    if (!task.hasEnded) connection.request("tasks/cancel", { taskId: task.id }).catch(() => {});
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
    this.failed = new AbortController(); // with the failure of an answer
    this.signal = AbortSignal.any([call.signal, this.failed.signal]);
  }

  request(method, params = {}) {
    const { transcript } = this.call;
    return this.connection.request(method, { taskId: this.id, ...params }, { signal: this.signal, transcript });
  }

  async result(created) {
    for (let state = created; ; state = await this.request("tasks/get")) {
      this.call.onTask?.(state);
      const { status, inputRequests } = state;
      this.hasEnded = state !== created && ["completed", "failed", "cancelled"].includes(status);
      if (this.hasEnded) return outcomeOf(state);
      this.ask(status === "input_required" && isObject(inputRequests) ? inputRequests : {});
      await pause(pollMs(state.pollIntervalMs), this.signal);
    }
  }

  /** Each question is asked once, and withdrawn if the task goes on without it. */
  ask(requests) {
    for (const [key, withdrawal] of this.questions) if (!Object.hasOwn(requests, key)) withdrawal.abort();
    const fresh = Object.keys(requests).filter((key) => !this.questions.has(key));
    if (this.questions.size + fresh.length > MAX_QUESTIONS) throw new CallError("The server asks too many questions.");
    for (const key of fresh) {
      const withdrawal = new AbortController();
      this.questions.set(key, withdrawal);
      this.answer(key, requests[key] ?? {}, withdrawal.signal).catch((failure) => {
        if (!withdrawal.signal.aborted) this.failed.abort(failure);
      });
    }
  }

  async answer(key, { method, params }, withdrawn) {
    const signal = AbortSignal.any([withdrawn, this.signal]);
    const answer = await this.connection.answer(method, isObject(params) ? params : {}, { signal });
    await this.request("tasks/update", { inputResponses: { [key]: answer } });
  }

  withdraw() {
    for (const withdrawal of this.questions.values()) withdrawal.abort();
  }
}

function outcomeOf({ status, statusMessage, result, error }) {
  if (status === "completed" && isObject(result)) return result;
  const words = status === "failed" ? error?.message : statusMessage;
  const { code = null, data } = status === "failed" && isObject(error) ? error : {};
  throw new CallError(typeof words === "string" ? words : `The task ended without a result: ${status}.`, { code, data });
}

function pollMs(hint) {
  const wanted = Number.isFinite(hint) ? hint : DEFAULT_POLL_MS;
  return Math.min(Math.max(wanted, SHORTEST_POLL_MS), LONGEST_POLL_MS);
}
