// Makes calls and answers what the server asks meanwhile. Calls, and the answers by question, are given as JSON.
import { connect, failure, print, rest } from "./sdk.mjs";

const [calls, answers] = rest.map((text) => JSON.parse(text));
const asked = [];

function prepare(client) {
  const answer = (question) => {
    asked.push(question);
    return answers[question];
  };
  client.setRequestHandler("elicitation/create", async ({ params }) => answer(params.message));
  client.setRequestHandler("sampling/createMessage", async () => answer("sampling"));
  client.setRequestHandler("roots/list", async () => answer("roots"));
}

// A tool, the prompt or the resource of that name.
async function text(client, name, given) {
  if (name === "welcome") return (await client.getPrompt({ name, arguments: given })).messages[0].content.text;
  if (name === "letter") return (await client.readResource({ uri: `letters://${given.call}` })).contents[0].text;
  return (await client.callTool({ name, arguments: given })).content[0].text;
}

const capabilities = { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} };
const { client, negotiated } = await connect(capabilities, prepare);
const outcomes = {};
for (const [name, given] of Object.entries(calls)) outcomes[name] = await failure(text(client, name, given));
await client.close();
print({ negotiated, asked, outcomes });
