// Gives up a call, goes on, and takes its leave; a session that was ended is gone.
import { connect, failure, print, url } from "./sdk.mjs";

const { client, transport, traffic, negotiated } = await connect();
const giveUp = new AbortController();
const call = { name: "slow_operation", arguments: { duration_ms: 20_000 } };
const abandoned = failure(client.callTool(call, { signal: giveUp.signal, onprogress: () => giveUp.abort("enough") }));
const given = await abandoned;
const next = await client.callTool({ name: "calculate", arguments: { operation: "add", a: 1, b: 1 } });
const session = transport.sessionId ?? null;
await transport.terminateSession();
const deleted = traffic.requests.find((request) => request.method === "DELETE")?.status ?? null;
await client.close();

// No client may go on in that session.
async function statusOf(method) {
  const headers = {
    "content-type": "application/json",
    accept: "application/json, text/event-stream",
    "mcp-session-id": session,
    "mcp-protocol-version": negotiated,
  };
  const response = await fetch(url, { method: "POST", headers, body: JSON.stringify({ jsonrpc: "2.0", id: 1, method }) });
  await response.text();
  return response.status;
}

print({ negotiated, given, next: next.content[0].text, session, deleted, afterwards: session && (await statusOf("ping")) });
