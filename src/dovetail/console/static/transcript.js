// The record of the messages that were sent and received, with an event for each new one.
// The token is never recorded. Old records go when there are too many.

const MAX_RECORDS = 500;
const LONGEST_SHARED = 100_000; // characters
const HIDDEN = ["authorization", "cookie"];

export class Transcript extends EventTarget {
  constructor(parent = null) {
    super();
    this.parent = parent; // gets every record too
    this.records = [];
    this.started = performance.now();
  }

  /** `details`: `http` (the request line or status), `headers`, `size`. */
  note(direction, message, details = {}) {
    const record = {
      direction,
      message,
      time: Date.now(),
      after: performance.now() - this.started,
      ...details,
      headers: visible(details.headers),
    };
    this.keep(record);
    this.parent?.keep({ ...record, message: shared(record), after: performance.now() - this.parent.started });
  }

  keep(record) {
    if (!this.parent) this.records.push(record); // those of one call are kept by the view that shows them
    if (this.records.length > MAX_RECORDS) this.records.shift();
    this.dispatchEvent(new CustomEvent("record", { detail: record }));
  }
}

/** Long messages are kept by their own exchange only. */
function shared({ message, size }) {
  if (!(size > LONGEST_SHARED) || message === null || typeof message !== "object") return message;
  return { id: message.id, method: message.method, note: `${size} characters: see the call itself` };
}

function visible(headers = {}) {
  const entries = headers instanceof Headers ? [...headers] : Object.entries(headers);
  return entries.filter(([name]) => !HIDDEN.includes(name.toLowerCase()));
}

/** One line about a message: its method, or what it answers. */
export function headline(message) {
  if (Array.isArray(message)) return `batch of ${message.length}`;
  if (typeof message?.method === "string") return message.method;
  if (message && "error" in message) return `error ${message.error?.code ?? ""}`.trim();
  if (message && "result" in message) {
    return message.result?.resultType === "input_required" ? "result: input required" : "result";
  }
  return "message";
}
