// A list of flat objects as a table; null if a table would not suit them.

import { el, moreButton } from "./dom.js";
import { isObject, plural, shortened } from "./format.js";

const AT_ONCE = 100;
const MAX_COLUMNS = 40;
const LONG = 24; // characters: such texts get a wider column
const LOOKED_AT = 1000; // rows that decide what the columns are

export function tableOf(rows) {
  const columns = columnsOf(rows);
  if (!columns) return null;
  const body = el("tbody");
  const head = el(
    "tr",
    {},
    columns.map((name) =>
      el("th", { scope: "col", class: typeof rows[0][name] === "number" ? "numeric" : null }, name),
    ),
  );
  const caption = el("caption", {}, plural(rows.length, "row"));
  const table = el("table", {}, caption, el("thead", {}, head), body);
  const place = el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, table);
  drawRows(place, body, rows, columns, 0);
  return place;
}

function columnsOf(rows) {
  if (!Array.isArray(rows) || rows.length < 2) return null;
  const names = new Set();
  for (const row of rows.slice(0, LOOKED_AT)) {
    if (!isObject(row) || Object.values(row).some((value) => value !== null && typeof value === "object")) return null;
    for (const name of Object.keys(row)) names.add(name);
  }
  return names.size && names.size <= MAX_COLUMNS ? [...names] : null;
}

function drawRows(place, body, rows, columns, from) {
  for (const row of rows.slice(from, from + AT_ONCE)) {
    body.append(
      el(
        "tr",
        {},
        columns.map((name) => cell(isObject(row) ? row[name] : undefined)),
      ),
    );
  }
  const next = from + AT_ONCE;
  if (next >= rows.length) return;
  const bring = () => {
    drawRows(place, body, rows, columns, next);
    return body.children[next];
  };
  place.append(moreButton(`Show ${AT_ONCE} more of ${rows.length - next}`, bring, { class: "small quiet" }));
}

function cell(value) {
  const text =
    value === undefined || value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
  const kind = typeof value === "number" ? "numeric" : text.length > LONG ? "long" : null;
  return el(
    "td",
    { class: kind, title: text.length > 80 ? shortened(text, 500) : null },
    shortened(text, 80),
  );
}
