// The whole way of OAuth: finds out, registers, signs in, calls, renews its token, comes back for more, and signs out.
// After the URL and the revision: the user, the password, a URL that lets tokens end, and what the program says of
// itself: metadata as JSON, and, if it publishes them, their URL.
import { createRequire } from "node:module";
import { isModern, print, rest, revision, url } from "./sdk.mjs";

const installed = createRequire(new URL("../../.cache/node/package.json", import.meta.url));
const { Client, StreamableHTTPClientTransport, UnauthorizedError } = installed("@modelcontextprotocol/client");
const [user, password, later, metadata, clientMetadataUrl] = rest;

// A user in front of a browser, who allows everything; it goes nowhere in the end, but knows where it was sent.
class Browser {
  visited = [];
  passwords = 0;
  #cookies = new Map();

  async visit(target) {
    this.visited.push(Object.fromEntries(target.searchParams));
    const page = await this.#ask(target, {});
    const html = await page.text();
    if (page.status !== 200) throw new Error(`no question, but ${page.status}: ${html}`);
    const action = new URL(html.match(/<form method="post" action="([^"]*)"/)[1], target);
    let answer = await this.#ask(action, { method: "POST", body: this.#filled(html) });
    const end = target.searchParams.get("redirect_uri");
    for (;;) {
      if (![302, 303].includes(answer.status)) throw new Error(`sent nowhere: ${await answer.text()}`);
      const location = answer.headers.get("location");
      this.back = new URL(location).searchParams;
      if (location.startsWith(`${end}?`)) return;
      answer = await this.#ask(location, {}); // to the identity provider, and back from there
    }
  }

  #filled(html) {
    const form = new URLSearchParams({ answer: "allow" });
    const hidden = html.matchAll(/<input type="hidden" name="([^"]*)" value="([^"]*)">/g);
    for (const [, name, value] of hidden) form.set(name, value);
    if (!html.includes('name="password"')) return form;
    this.passwords += 1;
    form.set("name", user);
    form.set("password", password);
    return form;
  }

  async #ask(target, init) {
    const cookie = [...this.#cookies].map((pair) => pair.join("=")).join("; ");
    const response = await fetch(target, { ...init, headers: { cookie }, redirect: "manual" });
    for (const line of response.headers.getSetCookie()) {
      const [name, ...value] = line.split(";")[0].split("=");
      this.#cookies.set(name, value.join("="));
    }
    return response;
  }
}

// Keeps what the client wants kept, in memory.
class Provider {
  clientMetadata = JSON.parse(metadata);
  redirectUrl = this.clientMetadata.redirect_uris[0];
  clientMetadataUrl = clientMetadataUrl;
  browser = new Browser();
  saved = []; // each set of tokens that it ever had
  #kept = {};

  state = () => (this.#kept.state = crypto.randomUUID());
  clientInformation = () => this.#kept.client;
  saveClientInformation = (client) => void (this.#kept.client = client);
  tokens = () => this.#kept.tokens;
  saveTokens = (tokens) => void this.saved.push((this.#kept.tokens = tokens));
  invalidateCredentials = (what) => void delete this.#kept[what];
  saveCodeVerifier = (verifier) => void (this.#kept.verifier = verifier);
  codeVerifier = () => this.#kept.verifier;
  saveDiscoveryState = (state) => void (this.#kept.discovery = state);
  discoveryState = () => this.#kept.discovery;
  redirectToAuthorization = (target) => this.browser.visit(target);

  // Where the browser came back to.
  returned() {
    if (this.browser.back.get("state") !== this.#kept.state) throw new Error("the state is another one");
    return this.browser.back;
  }
}

const provider = new Provider();
const steps = [];
const challenges = {};

async function noted(target, init) {
  const response = await fetch(target, init);
  const grant = init?.body instanceof URLSearchParams ? init.body.get("grant_type") : null;
  steps.push([init?.method ?? "GET", new URL(target).pathname, response.status, grant]);
  const challenge = response.headers.get("www-authenticate");
  if (challenge) (challenges[response.status] ??= []).push(challenge);
  return response;
}

// The client says when the user has to sign in; its host then lets the user do so, and tries again.
async function signingIn(transport, attempt) {
  try {
    return await attempt();
  } catch (error) {
    if (!(error instanceof UnauthorizedError)) throw error;
    await transport.finishAuth(provider.returned());
    return attempt();
  }
}

// A stream that ends with its token is not opened again: that would renew the token, and the call could not.
const reconnectionOptions = {
  maxRetries: 0,
  initialReconnectionDelay: 1,
  maxReconnectionDelay: 1,
  reconnectionDelayGrowFactor: 1,
};
const negotiation = isModern
  ? { versionNegotiation: { mode: { pin: revision } } }
  : { supportedProtocolVersions: [revision] };

function newTransport() {
  return new StreamableHTTPClientTransport(new URL(url), { authProvider: provider, fetch: noted, reconnectionOptions });
}

// Those that could not connect are used up, so each attempt has new ones.
let client;
let transport = newTransport();
await signingIn(transport, async () => {
  if (client) transport = newTransport();
  client = new Client({ name: "node-tests", version: "1.0" }, negotiation);
  await client.connect(transport);
});
const negotiated = client.getNegotiatedProtocolVersion();
const call = async (name, given = {}) => {
  const result = await signingIn(transport, () => client.callTool({ name, arguments: given }));
  return result.content[0].text;
};
const tools = async () => (await client.listTools()).tools.map((tool) => tool.name);

// What came of it, and the requests that it took.
async function chapter(play) {
  const before = steps.length;
  const text = await play();
  return { text, steps: steps.slice(before) };
}

const sum = () => call("calculate", { operation: "add", a: 2, b: 3 });
const first = { text: await sum(), steps: [...steps], tools: await tools() };
await fetch(later, { method: "POST" });
const renewed = await chapter(sum);
const stepUp = { ...(await chapter(() => call("read_note"))), tools: await tools() };
const further = await chapter(() => call("write_note", { text: "hello" }));
const upstream = await call("ask_provider");
const refusals = structuredClone(challenges);
await fetch(later, { method: "POST" });
const together = await Promise.all([sum(), sum(), sum()]); // each of them meets the end of the token
const registered = provider.clientInformation();
const { revocation_endpoint } = provider.discoveryState().authorizationServerMetadata;
const body = new URLSearchParams({ token: provider.tokens().refresh_token, client_id: registered.client_id });
const revoked = await fetch(revocation_endpoint, { method: "POST", body }); // the client has no call for it
if (!revoked.ok) throw new Error(`not revoked: ${await revoked.text()}`);
const warnings = [];
console.warn = (text) => warnings.push(text); // the client says that its tokens are over
const again = await chapter(sum);
await client.close();
print({
  negotiated,
  first,
  renewed,
  stepUp,
  further,
  upstream,
  together,
  again,
  warnings,
  challenges: refusals,
  registered,
  visited: provider.browser.visited,
  passwords: provider.browser.passwords,
  tokens: provider.saved,
});
