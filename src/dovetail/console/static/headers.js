// The user's own headers for every request, read from lines as `Name: value`.
// Their values are secrets like the token: kept by the page alone, and named but never written in what is copied.

const MOST = 50;
const LONGEST = 8000; // characters of a value
const NAME = /^[A-Za-z0-9][\w.-]{0,99}$/;
const PRINTABLE = /^[\x20-\x7e]+$/;

const OWN = [/^accept$/, /^content-type$/, /^last-event-id$/, /^mcp-/]; // of the console
const OF_BROWSER = [
  ...[/^accept-(charset|encoding)$/, /^access-control-/, /^connection$/, /^content-length$/, /^cookie2?$/, /^date$/],
  ...[/^dnt$/, /^expect$/, /^host$/, /^keep-alive$/, /^origin$/, /^permissions-policy$/, /^proxy-/, /^referer$/],
  ...[/^sec-/, /^set-cookie$/, /^te$/, /^trailer$/, /^transfer-encoding$/, /^upgrade$/, /^user-agent$/, /^via$/],
  ...[/^x-http-method/, /^x-method-override$/],
];

/** Out: {headers, problems}; a problem says in which line it is. */
export function headersIn(text) {
  const headers = [];
  const problems = [];
  for (const [at, line] of text.split("\n").entries()) {
    if (!line.trim()) continue;
    const [name, value] = parted(line.trim());
    const problem = problemOf(name, value, headers);
    if (problem) problems.push(`Line ${at + 1}: ${problem}.`);
    else headers.push([name, value]);
  }
  return { headers, problems };
}

/** The value is undefined if there is no colon. */
function parted(line) {
  const colon = line.indexOf(":");
  return colon < 0 ? [line] : [line.slice(0, colon).trim(), line.slice(colon + 1).trim()];
}

function problemOf(name, value, before) {
  const lower = name.toLowerCase();
  const isOneOf = (names) => names.some((each) => each.test(lower));
  if (!value) return "write it as Name: value";
  if (!NAME.test(name)) return "a name has only letters, digits and - _ .";
  if (isOneOf(OF_BROWSER)) return `${name} is set by the browser, which lets no page do that`;
  if (isOneOf(OWN)) return `${name} is set by the console itself`;
  if (before.some(([each]) => each.toLowerCase() === lower)) return `${name} is there twice`;
  if (!PRINTABLE.test(value)) return "a value has only printable ASCII characters";
  if (value.length > LONGEST) return `a value has at most ${LONGEST} characters`;
  return before.length >= MOST ? `no more than ${MOST} headers` : null;
}

/** The variables that hold the values of headers, in what is copied. With a stem: `Path` must not become `$PATH`. */
export function variablesOf(names) {
  const variables = [];
  for (const name of names) {
    const stem = `HEADER_${name.toUpperCase().replace(/[.-]/g, "_")}`;
    let variable = stem;
    for (let at = 2; variables.includes(variable); at += 1) variable = `${stem}_${at}`;
    variables.push(variable);
  }
  return variables;
}
