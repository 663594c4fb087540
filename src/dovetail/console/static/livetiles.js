// The row of figures on top of the section "Live": the last seconds as a number, the range as a small line.

import { sparkline } from "./chart.js";
import { el, fill, show } from "./dom.js";
import { errorShare, perSecond } from "./livedata.js";
import { latency, number, percent, plural, rate } from "./format.js";

// name: the value of a point; how it is written; the words below; the tone of the line.
const TILES = [
  ["Requests / s", (point) => perSecond(point), rate, (_, sum) => `${plural(sum.requests, "request")}`, "tone-0"],
  ["Errors", (point) => errorShare(point.all), percent, (_, sum) => plural(sum.errors, "error"), "tone-bad"],
  ["p50", (point, data) => data.percentile(point.all, 0.5), latency, () => "half are faster", "tone-0"],
  ["p99", (point, data) => data.percentile(point.all, 0.99), latency, () => "1 of 100 is slower", "tone-2"],
  ["Running", (point) => point.running, number, ({ slots, waiting }) => slotWords(slots, waiting), "tone-0"],
  ["Sessions", (point) => point.sessions, number, () => "of older clients", "tone-2"],
  ["Streams", (point) => point.streams, number, () => "open", "tone-1"],
  ["Loop lag", (point, data) => data.percentile(point.lag, 0.99), latency, () => "p99 of the event loop", "tone-1"],
];

export class Tiles {
  constructor() {
    this.parts = TILES.map(([name]) => {
      const parts = { value: el("dd", { class: "figure" }, "–"), note: el("dd", { class: "muted" }), line: el("dd") };
      return { ...parts, element: el("div", { class: "tile" }, el("dt", {}, name), ...Object.values(parts)) };
    });
    this.element = el(
      "dl",
      { class: "tiles", "aria-label": "Figures" },
      this.parts.map(({ element }) => element),
    );
  }

  draw(points, data) {
    const now = points.at(-1);
    const ended = [...points.slice(0, -1), data.tail];
    const sum = {
      requests: ended.reduce((total, { all }) => total + all[0], 0),
      errors: ended.reduce((total, { all }) => total + all[1], 0),
    };
    TILES.forEach(([, value, write, note, tone], at) => {
      const { element, ...parts } = this.parts[at];
      const values = points.map((point) => value(point, data));
      parts.value.textContent = values.at(-1) === null ? "–" : write(values.at(-1));
      parts.value.classList.toggle("error-text", tone === "tone-bad" && values.at(-1) > 0);
      parts.note.textContent = note(now, sum);
      fill(parts.line, sparkline(values, tone));
      show(
        element,
        at < 4 || values.some((each) => Number.isFinite(each)), // what is not measured here is not shown
      );
    });
  }
}

function slotWords(slots, waiting) {
  const words = [slots > 0 && `of ${number(slots)}`, waiting > 0 && `${number(waiting)} waiting`];
  return words.filter(Boolean).join(", ") || "calls";
}
