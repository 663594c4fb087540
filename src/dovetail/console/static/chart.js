// Line charts as SVG, from samples [{time, values}], with a line under the pointer that tells the values there;
// and small ones without axes.

import { announce, el, fill, show, svg } from "./dom.js";
import { clock, minute } from "./format.js";

const LEAST_WIDTH = 240; // in pixels, as the drawing is shown
const HEIGHT = 200;
const [LEFT, RIGHT, TOP, BOTTOM] = [58, 10, 10, 22];
const GAP = 25; // seconds without a sample that break a line
const TICKS = { 300: 60, 900: 180, 3600: 600 }; // seconds between two marks of the time, by the range
const STEPS = [1, 2, 2.5, 5, 10];
const SPARK = { width: 100, height: 26 };

export class Chart {
  /**
   * `lines`: {name: tone}, the first on top; `write(number)`: a value in words; `whole`: there are no halves of it;
   * `least`: where the scale ends at least. `isLog`: the scale begins at 1 and has a mark for each power of ten.
   */
  constructor({ title, lines, write, whole = false, least = 0, isLog = false }) {
    Object.assign(this, { title, write, whole, least, isLog, names: Object.keys(lines), tones: Object.values(lines) });
    this.samples = [];
    this.drawing = svg("svg", { role: "img", class: "chart", "aria-label": title });
    this.cursor = el("div", { class: "cursor", hidden: true });
    this.tip = el("div", { class: "tip", hidden: true });
    this.idle = el("p", { class: "chart-idle muted", hidden: true });
    this.legend = el("p", { class: "legend" });
    this.plot = el(
      "div",
      {
        ...{ class: "plot", tabindex: "0", role: "group", "aria-label": `${title}: arrow keys tell the values` },
        onpointermove: (event) => this.point(this.nearest(this.timeAt(event.offsetX))),
        onpointerleave: () => this.point(null),
        onblur: () => this.point(null),
        onkeydown: (event) => this.key(event),
      },
      ...[this.drawing, this.cursor, this.tip, this.idle],
    );
    const head = el("figcaption", { class: "bar" }, el("h3", {}, title), el("span", { class: "push" }), this.legend);
    this.element = el("figure", { class: "pane" }, head, this.plot);
    new ResizeObserver(() => this.drawing.checkVisibility() && this.redraw()).observe(this.plot);
  }

  /** `range` and `end` in seconds; `idle`: words instead of lines. */
  draw({ samples, end, range, idle = "" }) {
    Object.assign(this, { samples: samples.filter(({ time }) => time >= end - range), end, range });
    this.idle.textContent = idle;
    show(this.idle, Boolean(idle));
    this.redraw();
  }

  redraw() {
    if (!this.range) return;
    this.width = Math.max(LEAST_WIDTH, this.plot.clientWidth);
    this.drawing.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    const values = this.samples.flatMap(({ values }) => this.names.map((name) => values[name] ?? 0));
    this.scale = (this.isLog ? powersOfTen : evenSteps)(Math.max(this.least, ...values), this.whole);
    this.highest = this.scale.at(-1);
    const drawn = this.names.map((name, at) => this.runs(name).map((run) => this.drawRun(run, this.tones[at], !at)));
    fill(this.drawing, this.grid(), drawn.reverse());
    this.describe();
    this.point(this.pointed ? this.nearest(this.pointed.time) : null);
  }

  x(time) {
    return LEFT + (1 - (this.end - time) / this.range) * (this.width - LEFT - RIGHT);
  }

  y(value) {
    const share = this.isLog ? Math.log10(Math.max(1, value)) / Math.log10(this.highest) : value / this.highest;
    return TOP + (1 - share) * (HEIGHT - BOTTOM - TOP);
  }

  timeAt(x) {
    return this.end - (1 - (x - LEFT) / (this.width - LEFT - RIGHT)) * this.range;
  }

  grid() {
    const marks = this.scale.map((value, at) => {
      const y = Math.round(this.y(value)) + 0.5; // between two pixels a line would be blurred
      return [
        svg("line", { class: at ? "gridline" : "baseline", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }),
        svg("text", { class: "axis", x: LEFT - 8, y: y + 4, "text-anchor": "end" }, value ? this.write(value) : "0"),
      ];
    });
    return [...marks, this.times()];
  }

  times() {
    const every = TICKS[this.range] * (this.width < 420 && this.range === 3600 ? 2 : 1);
    const offset = new Date(this.end * 1000).getTimezoneOffset() * 60; // full hours of the clock on the wall
    const first = Math.ceil((this.end - this.range - offset) / every) * every + offset;
    const marks = [];
    for (let time = first; time <= this.end; time += every) {
      const x = this.x(time);
      if (x < LEFT + 14 || x > this.width - RIGHT - 14) continue;
      marks.push(
        svg("line", { class: "baseline", x1: x, x2: x, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }),
        svg("text", { class: "axis", x, y: HEIGHT - 5, "text-anchor": "middle" }, minute(time * 1000)),
      );
    }
    return marks;
  }

  /** The places of a line, as one list for each stretch without a gap. */
  runs(name) {
    const runs = [];
    let before = -Infinity;
    for (const { time, values } of this.samples) {
      const value = values[name];
      if (value === null || value === undefined) continue;
      if (time - before > GAP) runs.push([]);
      runs.at(-1).push([this.x(time).toFixed(1), this.y(value).toFixed(1)]);
      before = time;
    }
    return runs;
  }

  /** A lone sample is a dot; below the first line is an area. */
  drawRun(places, tone, isFirst) {
    const [[x, y]] = places;
    if (places.length === 1) return svg("circle", { class: `dot ${tone}`, cx: x, cy: y, r: 2.5 });
    const path = `M${places.map((place) => place.join(" ")).join("L")}`;
    const bottom = this.y(0);
    return [
      isFirst && !this.isLog && svg("path", { class: `area ${tone}`, d: `${path}L${places.at(-1)[0]} ${bottom}L${x} ${bottom}Z` }),
      svg("path", { class: `line ${tone}`, d: path }),
    ];
  }

  describe() {
    const latest = this.samples.at(-1)?.values ?? {};
    const words = this.names.map((name) => `${name} ${this.said(latest[name])}`);
    const text = `${this.title}: now ${words.join(", ")}; the scale ends at ${this.write(this.highest)}.`;
    this.drawing.setAttribute("aria-label", text);
    const marks = this.names.map((name, at) => [
      el("span", { class: `key-mark ${this.tones[at]}` }, name),
      el("b", {}, this.said(latest[name])),
    ]);
    fill(
      this.legend,
      marks.map((mark) => el("span", {}, mark)),
    );
  }

  said(value) {
    return value === null || value === undefined ? "–" : this.write(value);
  }

  // ── the values under the pointer ──

  nearest(time) {
    const distance = (sample) => Math.abs(sample.time - time);
    return this.samples.reduce((best, each) => (best && distance(best) <= distance(each) ? best : each), null);
  }

  key(event) {
    const at = this.samples.indexOf(this.pointed);
    const last = this.samples.length - 1;
    const targets = { ArrowLeft: at < 0 ? last : at - 1, ArrowRight: at < 0 ? last : at + 1, Home: 0, End: last };
    if (event.key === "Escape") this.point(null);
    if (!(event.key in targets) || last < 0) return;
    event.preventDefault();
    this.point(this.samples[Math.min(last, Math.max(0, targets[event.key]))]);
    announce(this.tip.innerText);
  }

  point(sample) {
    this.pointed = sample;
    show(this.cursor, Boolean(sample));
    show(this.tip, Boolean(sample));
    if (!sample) return;
    const x = this.x(sample.time);
    this.cursor.style.left = `${x}px`;
    const rows = this.names.map((name, at) => [
      el("span", { class: `key-mark ${this.tones[at]}` }, name),
      el("b", {}, this.said(sample.values[name])),
    ]);
    fill(this.tip, el("p", { class: "muted" }, clock(sample.time * 1000)), el("div", { class: "tip-rows" }, rows));
    const isRight = x > this.width / 2;
    this.tip.style.left = isRight ? "auto" : `${x + 10}px`;
    this.tip.style.right = isRight ? `${this.plot.clientWidth - x + 10}px` : "auto";
  }
}

/** A small line: values from left to right, null where there are none. */
export function sparkline(values, tone) {
  const most = Math.max(...values.map((value) => value ?? 0)) || 1;
  const place = (value, at) => [
    ((at * SPARK.width) / Math.max(1, values.length - 1)).toFixed(1),
    (SPARK.height - 1 - ((value ?? 0) / most) * (SPARK.height - 4)).toFixed(1),
  ];
  const path = `M${values.map((value, at) => place(value, at).join(" ")).join("L")}`;
  const drawing = { class: "spark", viewBox: `0 0 ${SPARK.width} ${SPARK.height}`, preserveAspectRatio: "none" };
  return svg(
    "svg",
    { ...drawing, "aria-hidden": "true" },
    values.length > 1 && [
      svg("path", { class: `area ${tone}`, d: `${path}V${SPARK.height}H0Z` }),
      svg("path", { class: `line ${tone}`, d: path }),
    ],
  );
}

/** The marks of a scale from 0 on, about four. */
function evenSteps(highest, whole) {
  const rough = Math.max(highest / 4, whole ? 1 : 0.001);
  const power = 10 ** Math.floor(Math.log10(rough));
  const found = STEPS.map((each) => each * power).find((each) => each >= rough * 0.999);
  const step = whole ? Math.ceil(found) : found;
  return Array.from({ length: Math.ceil(highest / step - 0.001) + 1 }, (_, at) => Number((at * step).toPrecision(6)));
}

function powersOfTen(highest) {
  return Array.from({ length: Math.ceil(Math.log10(highest) - 0.001) + 1 }, (_, at) => 10 ** at);
}
