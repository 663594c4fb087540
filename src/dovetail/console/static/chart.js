// A line chart of the last minutes as SVG, from samples [{time, values}], with a description for screen readers.

import { el, fill, svg } from "./dom.js";

const LEAST_WIDTH = 260; // in pixels, as the drawing is shown
const HEIGHT = 140;
const LEFT = 58;
const BOTTOM = 18;
const SPAN = 120; // seconds
const GAP = 3; // seconds without a sample that break a line

export class LineChart {
  /** `lines`: names of the values; `write(number)`: a value in words; `whole`: there are no halves of them. */
  constructor({ title, lines, write, whole = false }) {
    Object.assign(this, { title, lines, write, whole });
    this.drawing = svg("svg", { role: "img", class: "chart" });
    this.legend = el("p", { class: "legend" });
    this.element = el(
      "figure",
      { class: "pane" },
      el("figcaption", { class: "bar" }, el("h3", {}, title), el("span", { class: "push" }), this.legend),
      this.drawing,
    );
  }

  draw(samples) {
    this.width = Math.max(LEAST_WIDTH, this.drawing.clientWidth - 16); // without its padding
    this.drawing.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    const end = samples.at(-1)?.time ?? 0;
    const recent = samples.filter((sample) => sample.time > end - SPAN);
    const values = recent.flatMap((sample) => this.lines.map((name) => sample.values[name] ?? 0));
    const highest = niceCeiling(Math.max(this.whole ? 1 : 0, ...values));
    const place = (sample, value) => [
      LEFT + (1 - (end - sample.time) / SPAN) * (this.width - LEFT - 4),
      6 + (1 - value / highest) * (HEIGHT - BOTTOM - 6),
    ];
    const drawn = this.lines.map((name, at) => runsOf(recent, name, place).map((run) => drawRun(run, at)));
    fill(this.drawing, this.grid(highest), drawn.reverse()); // the first is on top, the others are wider
    this.describe(recent, highest);
  }

  grid(highest) {
    const values = [0, highest / 2, highest].filter((value) => !this.whole || Number.isInteger(value));
    const marks = values.map((value) => {
      const y = 6 + (1 - value / highest) * (HEIGHT - BOTTOM - 6);
      return [
        svg("line", { class: "gridline", x1: LEFT, x2: this.width - 4, y1: y, y2: y }),
        svg("text", { class: "axis", x: LEFT - 6, y: y + 4, "text-anchor": "end" }, value ? this.write(value) : "0"),
      ];
    });
    const ends = [
      ["2 min ago", LEFT, "start"],
      ["now", this.width - 4, "end"],
    ].map(([words, x, anchor]) => svg("text", { class: "axis", x, y: HEIGHT - 3, "text-anchor": anchor }, words));
    return [...marks, ...ends];
  }

  describe(recent, highest) {
    const latest = recent.at(-1)?.values ?? {};
    const words = this.lines.map(
      (name) => `${name} ${latest[name] === undefined || latest[name] === null ? "–" : this.write(latest[name])}`,
    );
    this.drawing.setAttribute(
      "aria-label",
      `${this.title}: now ${words.join(", ")}; the scale ends at ${this.write(highest)}.`,
    );
    fill(
      this.legend,
      words.map((text, at) => el("span", { class: `legend-${at}` }, text)),
    );
  }
}

/** The points of a line, as one list for each stretch without a gap. */
function runsOf(samples, name, place) {
  const runs = [];
  let before = null;
  for (const sample of samples) {
    const value = sample.values[name];
    if (value === null || value === undefined) continue;
    if (before === null || sample.time - before > GAP) runs.push([]);
    runs.at(-1).push(place(sample, value).map((each) => each.toFixed(1)));
    before = sample.time;
  }
  return runs;
}

/** A lone sample is a dot. */
function drawRun(points, at) {
  if (points.length === 1) return svg("circle", { class: `dot line-${at}`, cx: points[0][0], cy: points[0][1], r: 3 });
  return svg("path", { class: `line line-${at}`, d: `M${points.map((point) => point.join(" ")).join("L")}` });
}

function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}
