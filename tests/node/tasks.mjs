// The official requester of tasks calls the tools of tasks_server.py, in both generations, and answers what they ask.
import { connect, isModern, print, revision, url } from "./sdk.mjs";

const installed = new URL("../../.cache/node/node_modules/@modelcontextprotocol/", import.meta.url);
const tasks = await import(new URL("ext-tasks/dist/client/index.js", installed)); // it is a module only

const ELICITATION = { elicitation: { form: {} } };
const headersSent = [];
let lastId = 0;

// The requester leaves the bytes of the newer generation to its host.
async function rawDispatch({ method, params }, { signal } = {}) {
  const name = params.name ?? params.taskId;
  const headers = { "MCP-Protocol-Version": revision, "Mcp-Method": method, "Mcp-Name": name };
  headersSent.push(headers);
  const accept = { Accept: "application/json, text/event-stream", "Content-Type": "application/json" };
  lastId += 1;
  const body = JSON.stringify({ jsonrpc: "2.0", id: `raw-${lastId}`, method, params });
  const response = await fetch(url, { method: "POST", headers: { ...accept, ...headers }, body, signal });
  const text = await response.text();
  const message = response.headers.get("content-type").startsWith("text/event-stream")
    ? text.split("\n").filter((line) => line.startsWith("data: {")).map((line) => JSON.parse(line.slice(6))).at(-1)
    : JSON.parse(text);
  return message.error ? { kind: "error", error: message.error } : { kind: "result", result: message.result };
}

const clientInfo = { name: "node-tests", version: "1.0" };
const framing = { protocolVersion: revision, clientInfo, clientCapabilities: ELICITATION };
const { client, negotiated } = await connect(ELICITATION);
const declared = new Map((await client.listTools()).tools.map((tool) => [tool.name, tool]));
const asked = [];
const session = tasks.createTaskSessionFromClient(client, {
  endpointId: "tests",
  tools: { currentTool: (name) => tasks.toolDeclarationFromMcpTool(declared.get(name)) },
  onInputRequest: async (request, { delivery, scope }) => {
    asked.push({ message: request.params.message, delivery, scope });
    return { action: "accept", content: { value: request.params.message === "Which size?" ? "small" : "red" } };
  },
  ...(isModern ? { rawDispatch, v2RequestFraming: framing } : {}),
});

async function settled(name, given, { cancels = false } = {}) {
  const execution = await session.callTool(name, given, { task: { preference: "prefer" } });
  const statuses = [];
  const onEvent = async (event) => {
    const task = tasks.taskViewFromExecutionEvent(event);
    if (task && statuses.at(-1) !== task.status) statuses.push(task.status);
  };
  if (cancels) await execution.cancel();
  const { outcome } = await execution.settle({ onEvent });
  const { status, result, error } = outcome;
  const text = result?.content?.[0]?.text ?? null;
  return { kind: execution.kind, status, text, isError: result?.isError ?? false, error: error?.message, code: error?.code, statuses };
}

const said = {
  rendered: await settled("render", { scene: "beach" }),
  quick: await settled("add", { a: 2, b: 3 }),
  failed: await settled("fail", {}),
  broken: await settled("break_down", {}),
  cancelled: await settled("wait_long", {}, { cancels: true }),
};
const capabilities = session.capabilities;
await session.close();
await client.close();
print({ negotiated, asked, capabilities, headersSent, ...said });
