// The section "Live": figures, charts, sessions and all messages, from `api/live`, which sends one event a second.
// The stream is open only while the section is seen: a browser has few connections to one server.

import { LineChart } from "./chart.js";
import { el, fill, notice, region, show } from "./dom.js";
import { MessagesView } from "./messages.js";
import { eventsOf } from "./sse.js";
import { onceAFrame } from "./scrollback.js";
import { clock, isObject, milliseconds, number, seconds, shortened } from "./format.js";

const KEPT = 300; // samples
const SAME_SECOND = 0.5;
const AGAIN_MS = 2000;
const SESSIONS_SHOWN = 100;
const FIGURES = [
  ["Uptime", (event) => seconds(event.uptime)],
  ["Requests", (event) => number(event.requests)],
  ["Errors", (event) => number(event.errors)],
  ["Running", (event) => number(event.running)],
  ["Streams", (event) => number(event.streams)],
  ["Sessions", (event) => number(event.sessions_total)],
  ["Subscriptions", (event) => number(event.subscriptions)],
  ["State", (event) => shortened(event.state ?? "–", 40)],
];

export class LiveSection {
  constructor(client) {
    this.client = client;
    this.samples = [];
    this.refresh = onceAFrame(() => this.draw(this.latest));
    this.values = FIGURES.map(() => el("dd", {}, "–"));
    const tiles = FIGURES.map(([name], at) => el("div", { class: "tile" }, el("dt", {}, name), this.values[at]));
    this.rate = new LineChart({
      title: "Requests per second",
      lines: ["requests"],
      whole: true,
      write: (value) => String(Math.round(value * 10) / 10),
    });
    this.latency = new LineChart({ title: "Latency", lines: ["p50", "p90", "p99"], write: milliseconds });
    this.methods = el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Requests by method" });
    this.sessions = el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Connected sessions" });
    this.mounts = el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Mounted servers" });
    const head = el("header", { class: "bar" }, el("h3", {}, "Mounted servers"));
    this.mounted = region("Mounts", "pane", head, this.mounts);
    this.trouble = el("div", { role: "status", hidden: true });
    this.traffic = new MessagesView("Traffic", "Every message of this page will be here.");
    this.element = el(
      "div",
      { class: "live", hidden: true },
      el("h2", { class: "away" }, "Live"),
      this.trouble,
      el("dl", { class: "tiles", "aria-label": "Figures" }, tiles),
      el("div", { class: "charts" }, this.rate.element, this.latency.element),
      this.mounted,
      el(
        "div",
        { class: "charts" },
        region("Sessions", "pane", el("header", { class: "bar" }, el("h3", {}, "Connected sessions")), this.sessions),
        region("Methods", "pane", el("header", { class: "bar" }, el("h3", {}, "Requests by method")), this.methods),
      ),
      this.traffic.element,
    );
    this.traffic.follow(client.traffic, client.traffic.records);
    document.addEventListener("visibilitychange", () => this.attend(this.seen));
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
        for await (const event of eventsOf(response)) {
          if (event.data) this.take(JSON.parse(event.data));
        }
      } catch (failure) {
        if (signal.aborted) return;
        this.complain(failure);
      }
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }

  complain(failure) {
    fill(
      this.trouble,
      notice(
        "No live figures at the moment.",
        `${shortened(failure.message, 200)}. Is the server still running? Trying again…`,
      ),
    );
    show(this.trouble, true);
  }

  take(event) {
    show(this.trouble, false);
    const latency = isObject(event.latency) ? event.latency : {};
    if (event.time - this.samples.at(-1)?.time < SAME_SECOND) this.samples.pop(); // the same sample, sent twice
    this.samples.push({
      time: event.time,
      values: { requests: event.rate, p50: latency.p50, p90: latency.p90, p99: latency.p99 },
    });
    if (this.samples.length > KEPT) this.samples.shift();
    this.latest = event;
    this.refresh();
  }

  draw(event) {
    FIGURES.forEach(([, write], at) => (this.values[at].textContent = write(event)));
    this.rate.draw(this.samples);
    this.latency.draw(this.samples);
    const mounts = Array.isArray(event.mounts) ? event.mounts.filter(isObject) : [];
    show(this.mounted, mounts.length > 0);
    fill(this.mounts, drawMounts(mounts, event.mounts_total));
    fill(this.methods, drawMethods(event.methods));
    fill(this.sessions, drawSessions(Array.isArray(event.sessions) ? event.sessions : [], event.sessions_total));
  }
}

function drawMethods(methods) {
  const rows = Object.entries(isObject(methods) ? methods : {}).sort((one, other) => other[1] - one[1]);
  if (!rows.length) return el("p", { class: "muted idle" }, "No requests yet.");
  const most = rows[0][1] || 1;
  const body = rows.map(([name, count]) =>
    el(
      "tr",
      {},
      el("td", {}, el("code", {}, shortened(name, 80))),
      el("td", { class: "meter-cell" }, drawMeter(name, count, most)),
      el("td", { class: "numeric" }, number(count)),
    ),
  );
  return table(["Method", "Share", "Requests"], body);
}

/** Not a `<meter>`: browsers place its bar as they like. */
function drawMeter(name, count, most) {
  const bar = el("div");
  bar.style.width = `${(100 * count) / most}%`;
  const words = { "aria-label": shortened(name, 80), "aria-valuemin": 0, "aria-valuemax": most, "aria-valuenow": count };
  return el("div", { class: "meter", role: "meter", ...words }, bar);
}

function drawSessions(sessions, total) {
  if (!sessions.length)
    return el("p", { class: "muted idle" }, "No sessions. Clients of 2026-07-28 have none; older ones begin one.");
  const rows = sessions.slice(0, SESSIONS_SHOWN).map((session) => {
    const watched = Array.isArray(session.subscriptions) ? session.subscriptions : [];
    const cells = [
      el("code", {}, shortened(session.id, 20)),
      shortened(session.client || "unknown", 60),
      shortened(session.revision, 20),
      clock(session.since * 1000),
      seconds(session.idle),
      watched.length ? el("span", { title: watched.slice(0, 20).join("\n") }, String(watched.length)) : "0",
    ];
    return el(
      "tr",
      {},
      cells.map((cell) => el("td", {}, cell)),
    );
  });
  const heads = ["Id", "Client", "Revision", "Since", "Idle", "Subscriptions"];
  return [table(heads, rows), drawRest(total - sessions.length)];
}

function drawMounts(mounts, total) {
  const rows = mounts.map((mount) => {
    const backend = isObject(mount.backend) ? mount.backend : null;
    const cells = [
      shortened(mount.name, 60),
      mount.namespace ? el("code", {}, shortened(mount.namespace, 60)) : "–",
      backend ? `${mount.kind}: ${shortened(backend.target, 80)}` : shortened(mount.kind, 20),
      drawState(backend),
      shortened(backend?.revision ?? "–", 20),
      milliseconds(backend?.latency),
    ];
    return el(
      "tr",
      {},
      cells.map((cell) => el("td", {}, cell)),
    );
  });
  const heads = ["Name", "Namespace", "Is", "State", "Revision", "Latency"];
  return [table(heads, rows), drawRest(total - mounts.length)];
}

/** In words: a colour alone is not for all. */
function drawState(backend) {
  if (!backend) return "here";
  if (!backend.problem) return shortened(backend.state, 20);
  const words = `${backend.state}: ${backend.problem}`;
  return el("span", { class: "error-text", title: shortened(words, 500) }, shortened(words, 120));
}

function drawRest(count) {
  return count > 0 ? el("p", { class: "muted" }, `and ${number(count)} more`) : null;
}

function table(heads, rows) {
  return el(
    "table",
    {},
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        heads.map((head) => el("th", { scope: "col", class: head === "Requests" ? "numeric" : null }, head)),
      ),
    ),
    el("tbody", {}, rows),
  );
}
