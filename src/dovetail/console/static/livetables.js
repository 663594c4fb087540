// The tables of the section "Live": methods, tasks, sessions and mounts.

import { el } from "./dom.js";
import { clock, isObject, latency, milliseconds, number, seconds, shortened } from "./format.js";

const SESSIONS_SHOWN = 100;

export function drawMethods(methods) {
  const counts = Object.entries(isObject(methods) ? methods : {});
  return counts.length ? drawBars("Method", counts) : el("p", { class: "muted idle" }, "No requests yet.");
}

export function drawTasks(tasks) {
  const counts = Object.entries(isObject(tasks) ? tasks : {}).filter(([, count]) => count > 0);
  if (counts.length) return drawBars("Status", counts);
  return el("p", { class: "muted idle" }, "No task is open. A tool with task= runs as one when its client asks for it.");
}

function drawBars(head, counts) {
  const rows = counts.sort((one, other) => other[1] - one[1]);
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
  return table([head, "Share", "Count"], body);
}

/** Not a `<meter>`: browsers place its bar as they like. */
function drawMeter(name, count, most) {
  const bar = el("div");
  bar.style.width = `${(100 * count) / most}%`;
  const words = { "aria-label": shortened(name, 80), "aria-valuemin": 0, "aria-valuemax": most, "aria-valuenow": count };
  return el("div", { class: "meter", role: "meter", ...words }, bar);
}

export function drawSessions(sessions, total) {
  if (!sessions.length)
    return el("p", { class: "muted idle" }, "No sessions. Clients of 2026-07-28 have none; older ones begin one.");
  const rows = sessions.slice(0, SESSIONS_SHOWN).map((session) => {
    const watched = Array.isArray(session.subscriptions) ? session.subscriptions : [];
    return row(
      el("code", {}, shortened(session.id, 20)),
      shortened(session.client || "unknown", 60),
      shortened(session.revision, 20),
      clock(session.since * 1000),
      seconds(session.idle),
      watched.length ? el("span", { title: watched.slice(0, 20).join("\n") }, String(watched.length)) : "0",
    );
  });
  return [table(["Id", "Client", "Revision", "Since", "Idle", "Subscriptions"], rows), drawRest(total - rows.length)];
}

/** `totals`: what was measured of them in the range, by their names. */
export function drawMounts(mounts, total, data, totals) {
  const rows = mounts.map((mount) => {
    const backend = isObject(mount.backend) ? mount.backend : null;
    const measured = totals.get(mount.namespace) ?? totals.get(mount.name);
    return row(
      shortened(mount.name, 60),
      mount.namespace ? el("code", {}, shortened(mount.namespace, 60)) : "–",
      backend ? `${mount.kind}: ${shortened(backend.target, 80)}` : shortened(mount.kind, 20),
      drawState(backend),
      shortened(backend?.revision ?? "–", 20),
      measured ? latency(data.percentile(measured, 0.5)) : milliseconds(backend?.latency),
      measured ? latency(data.percentile(measured, 0.99)) : "–",
    );
  });
  const heads = ["Name", "Namespace", "Is", "State", "Revision", "p50", "p99"];
  return [table(heads, rows), drawRest(total - mounts.length)];
}

/** In words: a colour alone is not for all. */
function drawState(backend) {
  if (!backend) return "here";
  if (!backend.problem) return el("span", { class: "state-mark good" }, shortened(backend.state, 20));
  const words = `${backend.state}: ${backend.problem}`;
  return el("span", { class: "state-mark bad", title: shortened(words, 500) }, shortened(words, 120));
}

function drawRest(count) {
  return count > 0 ? el("p", { class: "muted idle" }, `and ${number(count)} more`) : null;
}

function row(...cells) {
  return el(
    "tr",
    {},
    cells.map((cell) => el("td", { class: cell?.matches?.(".state-mark") ? "cell-state" : null }, cell)),
  );
}

function table(heads, rows) {
  const names = heads.map((head) => el("th", { scope: "col", class: head === "Count" ? "numeric" : null }, head));
  return el("table", {}, el("thead", {}, el("tr", {}, names)), el("tbody", {}, rows));
}
