// The settings of the page, which last as long as it does, and the dialog that changes them.

import { ask } from "./dialog.js";
import { el, freshId, show } from "./dom.js";
import { headersIn } from "./headers.js";

const LEVELS = ["", "debug", "info", "notice", "warning", "error"];
const MOST_ROOTS = 100;
const LONGEST_TIMEOUT = 86_400; // seconds

/** A control with its name, help and what is wrong with it. `read()` gives {value, problems}. */
class Setting {
  constructor(label, control, help, read) {
    const id = freshId("setting");
    this.control = control;
    this.read = read;
    this.error = el("p", { class: "field-error", id: `${id}-error`, hidden: true });
    control.id = id;
    control.setAttribute("aria-describedby", `${id}-help ${id}-error`);
    control.addEventListener("input", () => this.complain([]));
    this.element = el(
      "div",
      { class: "field" },
      el("label", { for: id, class: "field-label" }, label),
      control,
      this.error,
      el("p", { class: "field-help", id: `${id}-help` }, help),
    );
  }

  complain(problems) {
    this.error.textContent = problems.join(" ");
    show(this.error, problems.length > 0);
    if (problems.length) this.control.setAttribute("aria-invalid", "true");
    else this.control.removeAttribute("aria-invalid");
  }
}

function levelSetting(level) {
  const picker = el(
    "select",
    {},
    LEVELS.map((name) => el("option", { value: name }, name || "none")),
  );
  picker.value = level;
  const help = "The server is asked for log messages from this level on.";
  return new Setting("Log level", picker, help, () => ({ value: picker.value, problems: [] }));
}

function timeoutSetting(seconds) {
  const box = el("input", { type: "text", inputmode: "decimal", autocomplete: "off", placeholder: "none" });
  box.value = seconds || "";
  const help = "A call is given up when the server says nothing for so long. Empty: only when you cancel it.";
  return new Setting("Timeout in seconds", box, help, () => {
    const value = Number(box.value.trim());
    const isTime = value >= 0 && value <= LONGEST_TIMEOUT;
    return { value, problems: isTime ? [] : [`A number of seconds, at most ${LONGEST_TIMEOUT}.`] };
  });
}

function rootsSetting(roots) {
  const box = linesBox(roots, "file:///home/ann/project");
  const help = "What the server is told when it asks for roots: one file:// URI in each line.";
  return new Setting("Roots", box, help, () => rootsIn(box.value));
}

function headersSetting(headers) {
  const box = linesBox(
    headers.map(([name, value]) => `${name}: ${value}`),
    "X-Tenant: acme",
  );
  const help =
    "Sent with every request to the server: one Name: value in each line. They stay in this page, are gone when you " +
    "leave, and what you copy has their names only.";
  return new Setting("Headers", box, help, () => {
    const { headers: value, problems } = headersIn(box.value);
    return { value, problems };
  });
}

function linesBox(lines, placeholder) {
  const box = el("textarea", { rows: 3, class: "code", spellcheck: "false", autocomplete: "off", placeholder });
  box.value = lines.join("\n");
  return box;
}

function rootsIn(text) {
  const lines = text.split("\n").map((line, at) => [line.trim(), at + 1]);
  const problems = lines
    .filter(([line]) => line && !(line.startsWith("file:///") && URL.canParse(line)))
    .map(([, at]) => `Line ${at}: a root begins with file:///, as in file:///home/ann/project.`);
  const value = lines.map(([line]) => line).filter(Boolean);
  return { value, problems: value.length > MOST_ROOTS ? [`No more than ${MOST_ROOTS} roots.`] : problems };
}

export async function openSettings(client) {
  const { logLevel, timeout, roots, headers } = client.settings;
  const settings = {
    logLevel: levelSetting(logLevel),
    timeout: timeoutSetting(timeout),
    roots: rootsSetting(roots),
    headers: headersSetting(headers),
  };
  const chosen = {};
  const pressed = await ask({
    title: "Settings",
    body: Object.values(settings).map((setting) => setting.element),
    buttons: ["Save", "Cancel"],
    onPress: (name) => name !== "Save" || readAll(settings, chosen),
  });
  if (pressed !== "Save") return;
  Object.assign(client.settings, chosen);
  await client.connect();
}

/** Whether all could be read; otherwise every problem is beside its control, and the first has the focus. */
function readAll(settings, chosen) {
  const wrong = [];
  for (const [name, setting] of Object.entries(settings)) {
    const { value, problems } = setting.read();
    setting.complain(problems);
    chosen[name] = value;
    if (problems.length) wrong.push(setting);
  }
  wrong[0]?.control.focus();
  return !wrong.length;
}
