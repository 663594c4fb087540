// The time that a call may go without a message of the server, as a signal that ends the call.
// The user's signal ends it too; 0 seconds are no limit.

export class IdleTimeout {
  constructor(seconds, signal) {
    this.ms = seconds * 1000;
    this.questions = 0; // which the user has not answered yet
    this.over = new AbortController();
    this.signal = AbortSignal.any([signal, this.over.signal]);
    this.restart();
  }

  /** A message arrived. The time of the server does not run while the user is asked. */
  restart() {
    clearTimeout(this.timer);
    if (!this.ms || this.questions || this.signal.aborted) return;
    this.timer = setTimeout(() => this.end(new DOMException("The time is over.", "TimeoutError")), this.ms);
  }

  /** It is the user who is waited for. */
  hold() {
    this.questions += 1;
    clearTimeout(this.timer);
  }

  /** One question is answered. */
  release() {
    this.questions -= 1;
    this.restart();
  }

  /** The call has ended, or it has to. */
  end(reason) {
    clearTimeout(this.timer);
    this.over.abort(reason);
  }
}
