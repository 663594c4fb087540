// The numbers of the section "Live": points of ten seconds of the last hour, and the failed calls.
// A row is [requests, errors, {bucket: count}]; rows can be added up, and percentiles are of what was added.

import { isObject } from "./format.js";

const MAX_POINTS = 360;
const MAX_FAILURES = 100;
const KINDS = ["tools", "mounts"];
const NO_ROW = [0, 0, {}];

export class LiveData {
  constructor() {
    this.points = [];
    this.failures = [];
  }

  /** The first event of a stream has all that came before; the others what is new. */
  take(event, isFirst) {
    if (isFirst) Object.assign(this, new LiveData());
    this.buckets = event.buckets;
    this.points = [...this.points, ...event.points].slice(-MAX_POINTS);
    this.failures = [...this.failures, ...event.failures].slice(-MAX_FAILURES);
    this.tail = event.tail;
    this.end = event.time;
  }

  /** The points of the last seconds, without the one that has not ended. */
  ended(seconds) {
    return this.points.filter((point) => point.time > this.end - seconds);
  }

  /** What happened in the last seconds, as one row for each tool or mount. */
  totals(kind, seconds) {
    const totals = new Map();
    for (const point of [...this.ended(seconds), this.tail]) {
      for (const [name, row] of Object.entries(point[kind])) totals.set(name, added([totals.get(name) ?? NO_ROW, row]));
    }
    return totals;
  }

  /** The last point and the one that has not ended: ten seconds at least, if there were as many. */
  now() {
    const last = this.ended(60).at(-1);
    if (!last) return this.tail;
    const both = [last, this.tail];
    const merged = { ...this.tail, seconds: last.seconds + this.tail.seconds };
    for (const name of ["all", "lag"]) merged[name] = added(both.map((point) => point[name]));
    for (const kind of KINDS) {
      const names = new Set(both.flatMap((point) => Object.keys(point[kind])));
      const rows = [...names].map((name) => [name, added(both.map((point) => point[kind][name] ?? NO_ROW))]);
      merged[kind] = Object.fromEntries(rows);
    }
    return merged;
  }

  /** `part` of the times are not longer, in milliseconds; null without any. Those of a bucket count as spread evenly. */
  percentile(row, part) {
    const counts = Object.entries(row?.[2] ?? {}).map(([bucket, count]) => [Number(bucket), count]);
    let wanted = part * counts.reduce((sum, [, count]) => sum + count, 0);
    for (const [bucket, count] of counts.sort(([one], [other]) => one - other)) {
      const upper = this.buckets[Math.min(bucket, this.buckets.length - 1)];
      const lower = bucket ? this.buckets[bucket - 1] : 0;
      if (wanted <= count) return 1000 * (lower + ((upper - lower) * wanted) / count);
      wanted -= count;
    }
    return null;
  }
}

function added(rows) {
  const buckets = {};
  for (const [, , counts] of rows)
    for (const [bucket, count] of Object.entries(counts)) buckets[bucket] = (buckets[bucket] ?? 0) + count;
  return [rows.reduce((sum, row) => sum + row[0], 0), rows.reduce((sum, row) => sum + row[1], 0), buckets];
}

export function perSecond(point, row = point.all) {
  return (row?.[0] ?? 0) / Math.max(point.seconds, 1);
}

/** Null without requests. */
export function errorShare(row) {
  return row[0] ? row[1] / row[0] : null;
}

/** An event that a page can't read would leave it half drawn. */
export function isLiveEvent(event) {
  return isObject(event) && [event.points, event.failures, event.buckets].every(Array.isArray) && isObject(event.tail);
}
