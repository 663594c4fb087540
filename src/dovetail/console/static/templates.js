// URI templates (RFC 6570): their variables, and the URI for given values.

const PART = /\{([+#./;?&]?)([^{}]+)\}/g;
// operator: [what comes first, what stands between, whether the name is written, whether reserved characters stay]
const OPERATORS = {
  "": ["", ",", false, false],
  "+": ["", ",", false, true],
  "#": ["#", ",", false, true],
  ".": [".", ".", false, false],
  "/": ["/", "/", false, false],
  ";": [";", ";", true, false],
  "?": ["?", "&", true, false],
  "&": ["&", "&", true, false],
};

function namesIn(list) {
  return list.split(",").map((name) => name.trim().replace(/\*$|:\d+$/, ""));
}

export function variablesOf(template) {
  return [...new Set([...template.matchAll(PART)].flatMap(([, , list]) => namesIn(list)))].slice(0, 50);
}

/** What a template needs to be whole: variables of a query may be left out. */
export function isOptional(template, variable) {
  return [...template.matchAll(PART)].every(
    ([, sign, list]) => !namesIn(list).includes(variable) || "?&".includes(sign || " "),
  );
}

export function expanded(template, values) {
  return template.replace(PART, (_, sign, list) => {
    const [first, between, named, reserved] = OPERATORS[sign];
    const given = namesIn(list).filter((name) => values[name] !== undefined && values[name] !== "");
    const written = given.map((name) => {
      const value = reserved ? encodeURI(values[name]) : encodeURIComponent(values[name]);
      return named ? `${name}=${value}` : value;
    });
    return written.length ? first + written.join(between) : "";
  });
}
