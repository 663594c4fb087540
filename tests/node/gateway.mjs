// Does what a plan says, for each server behind a gateway, and prints what came of it. The gateway is a URL or a command.
import { createRequire } from "node:module";
import { eventually, failure, isModern, open, print, rest, url } from "./sdk.mjs";

const installed = createRequire(new URL("../../.cache/node/package.json", import.meta.url));
const { StdioClientTransport } = installed("@modelcontextprotocol/client/stdio");
const [plan] = rest.map((text) => JSON.parse(text));
const LOG_LEVEL = "io.modelcontextprotocol/logLevel";
const logged = [];
const updated = [];

function prepare(client) {
  client.setRequestHandler("elicitation/create", async ({ params }) => {
    if (params.mode === "url") return { action: "accept" };
    const field = "value" in params.requestedSchema.properties ? "value" : "name";
    return { action: "accept", content: { [field]: `Ada to ${params.message}` } };
  });
  client.setRequestHandler("sampling/createMessage", async () => ({
    model: "none",
    role: "assistant",
    content: { type: "text", text: "sampled" },
  }));
  client.setRequestHandler("roots/list", async () => ({ roots: [{ uri: "file:///srv", name: "srv" }] }));
  client.setNotificationHandler("notifications/message", ({ params: { data } }) =>
    logged.push(typeof data === "string" ? data : JSON.stringify(data)),
  );
  client.setNotificationHandler("notifications/resources/updated", ({ params }) => updated.push(params.uri));
}

const capabilities = { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} };
const [command, ...args] = url.startsWith("[") ? JSON.parse(url) : [];
const stdio = command && new StdioClientTransport({ command, args, stderr: "pipe" });
let stderr = "";
stdio?.stderr.on("data", (text) => (stderr += text));
const { client, negotiated } = await open(stdio, capabilities, prepare);
if (!isModern) await client.setLoggingLevel("debug");
const { tools } = await client.listTools();
const names = new Set(tools.map((tool) => tool.name));

async function call(name, given, options = {}, meta = {}) {
  const result = await client.callTool({ name, arguments: given, _meta: meta }, options);
  return result.content.map((block) => block.text).join("\n");
}

const doing = {
  list: async ({ names: wanted }) => wanted.filter((name) => !names.has(name)),
  call: async ({ tool, given }) => call(tool, given),
  // Reports that are read together with the response are lost by this client: the call waits until it is told to go on.
  progress: async ({ tool, given, enough, go }) => {
    const heard = [];
    const onprogress = ({ progress, total }) => {
      if (heard.push([progress, total]) === enough && go) call(go, given);
    };
    await call(tool, given, { onprogress });
    return heard.slice(0, enough);
  },
  cancel: async ({ tool, given, was }) => {
    const controller = new AbortController();
    const lost = failure(call(tool, given, { signal: controller.signal, onprogress: () => controller.abort("enough") }));
    if ((await lost).result !== undefined) return "not given up";
    for (;;) if ((await call(was, given)) === "yes") return "yes";
  },
  log: async ({ tool, given }) => {
    const before = logged.length;
    await call(tool, given, {}, isModern ? { [LOG_LEVEL]: "debug" } : {});
    await eventually(() => logged.length > before, "the log");
    return logged[before];
  },
  subscribe: async ({ uri, tool }) => {
    const listening = isModern ? await client.listen({ resourceSubscriptions: [uri] }) : await client.subscribeResource({ uri });
    for (let tries = 0; tries < 100 && !updated.includes(uri); tries++) {
      await call(tool, {}); // the backend may not be subscribed to yet
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    if (isModern) await listening.close();
    return updated.includes(uri) ? uri : "nothing";
  },
  complete: async ({ prompt, argument, value }) => {
    const ref = { type: "ref/prompt", name: prompt };
    return (await client.complete({ ref, argument: { name: argument, value } })).completion.values;
  },
};

const outcomes = {};
for (const [server, things] of Object.entries(plan)) {
  outcomes[server] = {};
  for (const [thing, { act, ...how }] of Object.entries(things)) {
    const outcome = await failure(doing[act](how));
    outcomes[server][thing] = "result" in outcome ? outcome.result : `failed: ${outcome.message}`;
  }
}
await client.close();
print({ negotiated, outcomes, stderr });
