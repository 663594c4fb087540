// A reader of server-sent events in the body of a Response; yields {id, event, data, retry}.
// A server may send what it likes: an event longer than the limit ends the reading.

const MAX_EVENT = 32 * 1024 * 1024; // characters
const BUSY_MS = 50; // of reading without a rest
const FRAME_MS = 100; // at most: a page that is hidden has no frames
const END = /\r\n\r\n|\n\n|\r\r/; // of an event

/** Yields every event with data, and those that only carry an id or a time to come back. */
export async function* eventsOf(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let tail = ""; // of the piece before: an end may be cut in two
  let rested = performance.now();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const piece = decoder.decode(value, { stream: true });
      rest += piece;
      if (rest.length > MAX_EVENT) throw new Error("the server sent an event that is too long");
      const hasEnd = END.test(tail + piece);
      tail = piece.slice(-3);
      if (!hasEnd) continue;
      const blocks = rest.split(END);
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (event) yield event;
        if (document.hidden || performance.now() - rested < BUSY_MS) continue;
        await nextFrame();
        rested = performance.now();
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // a caller that stops reading does not want the rest
  }
}

/** Lets the page draw and its user act: a stream that never pauses would leave no time for either. */
function nextFrame() {
  return new Promise((resolve) => {
    requestAnimationFrame(() => setTimeout(resolve));
    setTimeout(resolve, FRAME_MS);
  });
}

function parse(block) {
  const event = { id: null, event: "message", data: null, retry: null };
  const data = [];
  for (const line of block.split(/\r\n|\n|\r/)) {
    const cut = line.indexOf(":");
    if (cut === 0) continue; // a comment keeps the connection alive
    const field = cut < 0 ? line : line.slice(0, cut);
    const value = cut < 0 ? "" : line.slice(cut + 1).replace(/^ /, "");
    if (field === "data") data.push(value);
    else if (field === "event") event.event = value;
    else if (field === "id" && !value.includes("\0")) event.id = value;
    else if (field === "retry" && /^\d{1,8}$/.test(value)) event.retry = Number(value);
  }
  if (data.length) event.data = data.join("\n");
  return event.data !== null || event.id !== null || event.retry !== null ? event : null;
}

/** The text of a body, up to the limit. */
export async function textOfBody(response) {
  if (!response.body) return "";
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    text += decoder.decode(value, { stream: true });
    if (text.length > MAX_EVENT) {
      reader.cancel().catch(() => {});
      throw new Error("the server's answer is too long");
    }
  }
}
