// Short texts for people, from numbers, times, texts and JSON.

const TIMES = new Intl.DateTimeFormat([], { timeStyle: "medium", hourCycle: "h23" }); // slow to make, quick to use
const MOMENTS = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const MINUTES = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const NUMBERS = new Intl.NumberFormat("en");

export function milliseconds(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 10) return `${Number(ms.toFixed(1))} ms`;
  if (ms < 10_000) return `${Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(1)} s`;
}

/** A time that was measured in buckets, of which the first ends at 1 ms. */
export function latency(ms) {
  if (ms < 1 && ms !== null) return "< 1 ms";
  return ms >= 1000 ? `${Number((ms / 1000).toPrecision(3))} s` : milliseconds(ms);
}

export function bytes(count) {
  if (count < 1024) return `${count} B`;
  if (count < 1024 * 1024) return `${(count / 1024).toFixed(1)} KiB`;
  return `${(count / 1024 / 1024).toFixed(1)} MiB`;
}

export function seconds(count) {
  const whole = Math.max(0, Math.floor(count));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

export function clock(time) {
  return written(TIMES, time);
}

export function minute(time) {
  return written(MINUTES, time);
}

export function moment(time) {
  return written(MOMENTS, time);
}

function written(format, time) {
  return Number.isNaN(new Date(time).getTime()) ? "–" : format.format(time);
}

export function number(value) {
  return Number.isFinite(value) ? NUMBERS.format(value) : "–";
}

/** So many in a second. */
export function rate(value) {
  return NUMBERS.format(Number(value.toFixed(value < 1 ? 2 : value < 100 ? 1 : 0)));
}

/** A share of 1. */
export function percent(share) {
  if (share === null) return "–";
  const hundred = 100 * share;
  return `${NUMBERS.format(Number(hundred.toFixed(hundred > 0 && hundred < 10 ? 1 : 0)))} %`;
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

export function shortened(text, length = 120) {
  const line = String(text).replace(/\s+/g, " ").trim();
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}

/** JSON for people, or a plain word if it can't be written. */
export function pretty(value) {
  try {
    return JSON.stringify(value, null, 2) ?? "";
  } catch {
    return String(value);
  }
}

export function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** Whether two values are the same JSON; the order of members does not count. */
export function isSameJson(one, other) {
  if (one === null || other === null || typeof one !== "object" || typeof other !== "object") return one === other;
  const [names, others] = [Object.keys(one), Object.keys(other)];
  if (Array.isArray(one) !== Array.isArray(other) || names.length !== others.length) return false;
  return names.every((name) => Object.hasOwn(other, name) && isSameJson(one[name], other[name]));
}

export function textOf(value) {
  return typeof value === "string" ? value : "";
}
