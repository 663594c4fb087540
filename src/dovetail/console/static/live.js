// The section "Live": a dashboard of the last hour, from `api/live`, which sends the hour and then an event a second.
// The stream is open only while the section is seen: a browser has few connections to one server.

import { Chart } from "./chart.js";
import { button, el, fill, region, show } from "./dom.js";
import { FailureList, ToolTable } from "./livecalls.js";
import { isLiveEvent, LiveData, perSecond } from "./livedata.js";
import { Tiles } from "./livetiles.js";
import { drawMethods, drawMounts, drawSessions, drawTasks } from "./livetables.js";
import { MessagesView } from "./messages.js";
import { eventsOf } from "./sse.js";
import { onceAFrame } from "./scrollback.js";
import { clock, isObject, latency, plural, rate, seconds, shortened } from "./format.js";

const AGAIN_MS = 2000;
const RANGES = { 300: "5 min", 900: "15 min", 3600: "1 h" };

const CHARTS = [
  {
    ...{ title: "Requests per second", lines: { requests: "tone-0", errors: "tone-bad" }, write: rate, least: 0.4 },
    values: (point) => ({ requests: perSecond(point), errors: point.all[1] / Math.max(point.seconds, 1) }),
  },
  {
    ...{ title: "Latency", lines: { p50: "tone-0", p90: "tone-1", p99: "tone-2" } },
    ...{ write: latency, isLog: true, least: 100 },
    values: (point, data) => ({
      p50: data.percentile(point.all, 0.5),
      p90: data.percentile(point.all, 0.9),
      p99: data.percentile(point.all, 0.99),
    }),
  },
  {
    ...{ title: "In flight", write: String, whole: true, least: 4 },
    lines: { running: "tone-0", waiting: "tone-bad", streams: "tone-1" },
    values: ({ running, waiting, streams }) => ({ running, waiting, streams }),
  },
];

export class LiveSection {
  constructor(client) {
    this.client = client;
    this.data = new LiveData();
    this.refresh = onceAFrame(() => this.draw());
    this.tiles = new Tiles();
    this.charts = CHARTS.map((chart) => new Chart(chart));
    this.failures = new FailureList();
    this.tools = new ToolTable({ showFailures: (tool, count) => this.failures.showOf(tool, count), idle: this.advice() });
    this.tables = {
      mounts: table("Mounts", "Mounted servers"),
      methods: table("Methods", "Requests by method"),
      sessions: table("Sessions", "Connected sessions"),
      tasks: table("Tasks", "Open tasks"),
    };
    this.traffic = new MessagesView("Traffic", "Every message of this page will be here.");
    this.facts = el("p", { class: "muted facts-line" }, "Waiting for the first figures…");
    this.trouble = el("p", { class: "trouble", role: "status" });
    this.board = el(
      "div",
      { class: "board" },
      this.tiles.element,
      el("div", { class: "charts" }, ...this.charts.map((chart) => chart.element)),
      this.tools.element,
      this.failures.element,
      ...Object.values(this.tables).map(({ element }) => element),
    );
    this.element = el("div", { class: "live", hidden: true }, this.head(), this.board, this.traffic.element);
    this.traffic.follow(client.traffic, client.traffic.records);
    document.addEventListener("visibilitychange", () => this.attend(this.seen));
  }

  head() {
    const choices = Object.entries(RANGES).map(([seconds, name]) => {
      const choose = () => ((this.chosen = Number(seconds)), this.refresh());
      return el("label", {}, el("input", { type: "radio", name: "range", value: seconds, onchange: choose }), name);
    });
    this.ranges = el("fieldset", { class: "segments" }, el("legend", { class: "away" }, "Range"), choices);
    const words = el("div", { class: "live-words" }, el("h2", {}, "Live"), this.facts, this.trouble);
    return el("header", { class: "live-head" }, words, this.ranges);
  }

  advice() {
    const open = button("Open the tools", () => (location.hash = "#tools"), { class: "small" });
    return [el("p", {}, "Call one here, or connect a client to ", el("code", {}, this.client.url), "."), open];
  }

  /** Begin or stop to listen. */
  attend(seen) {
    this.seen = seen;
    const wanted = seen && !document.hidden;
    if (wanted === Boolean(this.listening)) return;
    this.listening?.abort();
    this.listening = wanted ? new AbortController() : null;
    if (!wanted) return;
    this.traffic.showLast();
    this.listen(this.listening.signal);
  }

  async listen(signal) {
    while (!signal.aborted) {
      try {
        const response = await fetch("api/live", { headers: { "X-Dovetail-Console": "1" }, cache: "no-store", signal });
        if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
        let isFirst = true;
        for await (const { data } of eventsOf(response)) {
          if (data) this.take(JSON.parse(data), isFirst);
          isFirst = false;
        }
        throw new Error("The server ended the stream");
      } catch (failure) {
        if (signal.aborted) return;
        this.complain(failure);
      }
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }

  /** The last figures stay, and look like old ones. */
  complain({ message }) {
    const since = this.data.end ? ` These figures are of ${clock(this.data.end * 1000)}.` : "";
    this.trouble.textContent = `Disconnected: ${shortened(message, 200)}.${since} Trying again…`;
    this.element.dataset.state = "stale";
  }

  take(event, isFirst) {
    if (!isLiveEvent(event)) return;
    this.element.dataset.state = "live";
    this.trouble.textContent = "";
    this.data.take(event, isFirst);
    this.latest = event;
    this.refresh();
  }

  get range() {
    const fitting = Object.keys(RANGES).find((seconds) => Number(seconds) >= this.latest.uptime);
    return this.chosen ?? Number(fitting ?? 3600);
  }

  draw() {
    const { data, latest: event, range } = this;
    if (!event) return;
    for (const input of this.ranges.querySelectorAll("input")) input.checked = Number(input.value) === range;
    const points = data.ended(range);
    const now = data.now();
    const samples = [...points, now];
    this.facts.textContent = factsOf(event, now).join(" · ");
    this.tiles.draw(samples, data);
    const span = { end: data.end, range };
    this.charts.forEach((chart, at) => this.drawChart(chart, CHARTS[at].values, samples, span));
    this.tools.draw(data, range);
    this.failures.draw(data.failures);
    this.drawTables(event, range);
  }

  drawChart(chart, values, points, span) {
    const samples = points.map((point) => ({ time: point.time, values: values(point, this.data) }));
    show(chart.element, samples.some((sample) => Object.values(sample.values).some((value) => Number.isFinite(value))));
    chart.draw({ samples, ...span, idle: points.length < 2 ? "A point is added every ten seconds." : "" });
  }

  drawTables(event, range) {
    const { mounts, methods, sessions, tasks } = this.tables;
    const mounted = Array.isArray(event.mounts) ? event.mounts.filter(isObject) : [];
    show(mounts.element, mounted.length > 0);
    fill(mounts.body, drawMounts(mounted, event.mounts_total, this.data, this.data.totals("mounts", range)));
    fill(methods.body, drawMethods(event.methods));
    fill(sessions.body, drawSessions(Array.isArray(event.sessions) ? event.sessions : [], event.sessions_total));
    fill(tasks.body, drawTasks(event.tail.tasks));
  }
}

function factsOf(event, { workers }) {
  return [
    `up ${seconds(event.uptime)}`,
    workers > 1 && plural(workers, "worker"),
    `state: ${shortened(event.state ?? "–", 40)}`,
    plural(event.subscriptions, "subscription"),
  ].filter(Boolean);
}

function table(name, title) {
  const body = el("div", { class: "table", tabindex: "0", role: "group", "aria-label": title });
  const head = el("header", { class: "bar" }, el("h3", {}, title));
  return { body, element: region(name, `pane at-${name.toLowerCase()}`, head, body) };
}

