// How long to wait for a server that says nothing. In: seconds (0: for ever), the user's signal, news of the server.
// Out: a signal that ends the call, because the user wants it or the time is over.

export class Patience {
  constructor(seconds, signal) {
    this.ms = seconds * 1000;
    this.over = new AbortController();
    this.signal = AbortSignal.any([signal, this.over.signal]);
    this.restart();
  }

  /** Something was heard. */
  restart() {
    this.stop();
    if (!this.ms) return;
    this.timer = setTimeout(() => this.over.abort(new DOMException("The time is over.", "TimeoutError")), this.ms);
  }

  /** The call has ended, or it is the user who is waited for. */
  stop() {
    clearTimeout(this.timer);
  }
}
