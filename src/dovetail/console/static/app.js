// The console's page: its sections, chosen by the fragment of the address, with the keys and buttons that all share.

import { Client } from "./client.js";
import { ask } from "./dialog.js";
import { button, el, fill, isHeld, notice, show, toast } from "./dom.js";
import { HistorySection } from "./history.js";
import { LiveSection } from "./live.js";
import { promptSection } from "./prompts.js";
import { ResourceSection } from "./resources.js";
import { openSettings } from "./settings.js";
import { setUpTheme } from "./theme.js";
import { ToolSection } from "./tools.js";
import { jsonTree } from "./tree.js";
import { milliseconds, shortened, textOf } from "./format.js";

const $ = (id) => document.getElementById(id);
const STATES = { connecting: "Connecting…", open: "Connected", waiting: "Reconnecting…", failed: "Not connected" };

async function about() {
  const response = await fetch("api/about", { headers: { "X-Dovetail-Console": "1" }, cache: "no-store" });
  if (!response.ok) throw new Error(`The server answered ${response.status} ${response.statusText}.`);
  return response.json();
}

async function start() {
  setUpTheme();
  try {
    const client = new Client(await about());
    furnish(client);
    await client.connect();
  } catch (failure) {
    const again = button("Try again", () => location.reload());
    fill($("main"), notice("The console can't reach its server.", `${failure.message} Is it still running?`, again));
    showState({ state: "failed", words: "" });
  }
}

function furnish(client) {
  client.sections = {
    tools: new ToolSection(client),
    resources: new ResourceSection(client),
    prompts: promptSection(client),
    live: new LiveSection(client),
    history: new HistorySection(client),
  };
  fill(
    $("main"),
    Object.values(client.sections).map((section) => section.element),
  );
  const { name, title, version } = client.about;
  $("server-name").textContent = title || name;
  $("server-version").textContent = version ?? "";
  document.title = `${title || name} – Dovetail console`;
  client.addEventListener("state", (event) => showState(event.detail));
  client.addEventListener("count", (event) => showCount(event.detail));
  setUpRevision(client);
  setUpToken(client);
  $("settings").addEventListener("click", () => openSettings(client));
  $("about").addEventListener("click", () => openAbout(client));
  setUpKeys();
  client.history.open(`${name}@${client.url}`);
  window.addEventListener("hashchange", () => follow(client));
  client.addEventListener("moved", () => follow(client));
  window.addEventListener("pagehide", () => client.connection?.close());
  window.addEventListener("pageshow", (event) => event.persisted && client.connect()); // by the button Back
  follow(client);
}

// ── the address ──

function follow(client) {
  const [name, ...rest] = location.hash.slice(1).split("/");
  const current = Object.hasOwn(client.sections, name) ? name : "tools";
  for (const [each, section] of Object.entries(client.sections)) show(section.element, each === current);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${current}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  client.sections.live.attend(current === "live");
  client.sections[current].select?.(rest.length ? decoded(rest.join("/")) : null);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function showCount({ section, count }) {
  const place = document.querySelector(`nav a[href="#${section}"] .count`);
  if (place) place.textContent = count ? count.toLocaleString("en") : "";
}

function showState({ state, words }) {
  const place = $("state");
  place.textContent = STATES[state] ?? state;
  place.dataset.state = state;
  fill($("trouble"), shortened(words, 500));
  show($("trouble"), Boolean(words));
}

// ── the controls ──

function setUpRevision(client) {
  const picker = $("revision");
  fill(
    picker,
    client.revisions.map((name) => el("option", { value: name }, name)),
  );
  picker.value = client.revision;
  picker.addEventListener("change", () => {
    client.revision = picker.value;
    client.connect();
  });
}

function setUpToken(client) {
  const bar = $("token-bar");
  const open = () => {
    show(bar, true);
    $("token").focus();
  };
  show($("token-toggle"), Boolean(client.about.auth));
  $("token-toggle").addEventListener("click", () => (bar.hidden ? open() : show(bar, false)));
  client.addEventListener("token", () => (show($("token-toggle"), true), open()));
  bar.addEventListener("submit", (event) => {
    event.preventDefault();
    const token = $("token").value.trim();
    if (/[^\x21-\x7e]/.test(token)) return toast("That is no token: it has spaces or letters that no token has.");
    client.token = token;
    show(bar, false);
    $("token-toggle").focus();
    client.connect();
  });
}

async function openAbout(client) {
  const { info, capabilities, instructions } = client.connection.server;
  const rows = [
    ["Server", `${textOf(info.name) || client.about.name} ${textOf(info.version) || client.about.version || ""}`],
    ["Endpoint", client.url],
    ["Revision", `${client.connection.revision}; it speaks ${client.revisions.join(", ")}`],
    ["Runs on", `Dovetail ${client.about.dovetail}, Python ${client.about.python}`],
  ];
  await ask({
    title: "About this server",
    body: [
      el(
        "dl",
        { class: "facts" },
        rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
      ),
      instructions && [el("h3", {}, "Instructions"), el("p", { class: "description" }, shortened(instructions, 4000))],
      pingLine(client),
      el("h3", {}, "Capabilities"),
      jsonTree(capabilities),
      el("h3", {}, "Keys"),
      el("p", {}, "/ searches, arrows move in lists, Ctrl+Enter calls, Escape closes."),
    ],
    buttons: ["Close"],
  });
}

function pingLine(client) {
  const status = el("span", { class: "muted", role: "status" });
  const ping = async () => {
    const began = performance.now();
    status.textContent = "Waiting for the answer…";
    const words = () => `It answered in ${milliseconds(performance.now() - began)}.`;
    status.textContent = await client.connection.ping().then(words, (failure) => failure.message);
  };
  return el("p", {}, button("Ping", ping, { class: "small" }), " ", status);
}

function setUpKeys() {
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address says which section is seen
    $("main").focus();
  });
  document.addEventListener("keydown", (event) => {
    if (isHeld(event) && event.target.closest?.("button")) event.preventDefault(); // it was pressed once
    const typing = event.target.closest?.("input, textarea, select, dialog");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const search = [...document.querySelectorAll("input[type=search]")].find((input) => input.checkVisibility());
    if (!search) return;
    event.preventDefault();
    search.focus();
    search.select();
  });
}

start();
