// The official client, connected to a URL in one revision, and a record of the HTTP requests that it makes.
import { createRequire } from "node:module";

const installed = createRequire(new URL("../../.cache/node/package.json", import.meta.url));
const { Client, SSEClientTransport, StreamableHTTPClientTransport } = installed("@modelcontextprotocol/client");

export const [url, revision, ...rest] = process.argv.slice(2);
export const isModern = revision === "auto" || revision >= "2026";
const Transport = url.endsWith("/sse") ? SSEClientTransport : StreamableHTTPClientTransport;

// "auto" finds out by itself; a revision with a handshake is asked for by name; a newer one is pinned.
function negotiation() {
  if (revision === "auto") return { versionNegotiation: { mode: "auto" } };
  if (isModern) return { versionNegotiation: { mode: { pin: revision } } };
  return { supportedProtocolVersions: [revision] };
}

class Traffic {
  requests = [];
  #cuts = new Set();

  // Breaks every open answer to a POST, as a network that fails does.
  cut = () => this.#cuts.forEach((controller) => controller.abort(new Error("the network failed")));

  fetch = async (target, init) => {
    const entry = { method: init.method ?? "GET", lastEventId: new Headers(init.headers).get("last-event-id") };
    this.requests.push(entry);
    const controller = new AbortController();
    if (init.method === "POST") this.#cuts.add(controller);
    const signals = [controller.signal, init.signal].filter(Boolean);
    const response = await fetch(target, { ...init, signal: AbortSignal.any(signals) });
    entry.status = response.status;
    entry.type = (response.headers.get("content-type") ?? "").split(";")[0];
    return response;
  };
}

// `prepare` sees the client before it connects: handlers have to be there by then.
export async function connect(capabilities = {}, prepare = () => {}) {
  return open(null, capabilities, prepare);
}

// The same over any transport; without one, over HTTP.
export async function open(given, capabilities, prepare) {
  const traffic = new Traffic();
  const transport = given ?? new Transport(new URL(url), { fetch: traffic.fetch });
  const client = new Client({ name: "node-tests", version: "1.0" }, { capabilities, ...negotiation() });
  prepare(client);
  await client.connect(transport);
  return { client, transport, traffic, negotiated: client.getNegotiatedProtocolVersion() };
}

export async function eventually(find, what, milliseconds = 10_000) {
  const deadline = Date.now() + milliseconds;
  while (Date.now() < deadline) {
    const found = find();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`never came: ${what}`);
}

// How a promise failed, as plain data.
export async function failure(promise) {
  try {
    return { result: await promise };
  } catch (error) {
    return { code: error.code ?? null, message: String(error.message) };
  }
}

export function print(value) {
  process.stdout.write(JSON.stringify(value) + "\n");
}
