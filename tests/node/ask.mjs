// Answers what a server asks: forms, a URL, its model and its folders; each answer is what the test has given as JSON.
import { connect, failure, print, rest } from "./sdk.mjs";

const [calls, answers] = rest.map((text) => JSON.parse(text));
const asked = [];

function prepare(client) {
  client.setRequestHandler("elicitation/create", async ({ params }) => {
    asked.push(params.message);
    return params.mode === "url" ? { action: "accept" } : answers[params.message];
  });
  client.setRequestHandler("sampling/createMessage", async ({ params }) => {
    asked.push(params.messages.length);
    return answers.sampling;
  });
  client.setRequestHandler("roots/list", async () => answers.roots);
}

const capabilities = { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} };
const { client, negotiated } = await connect(capabilities, prepare);
const texts = {};
for (const [name, given] of Object.entries(calls)) {
  const result = await failure(client.callTool({ name, arguments: given }).then((result) => result.content[0].text));
  texts[name] = result.result ?? result;
}
const prompt = await failure(client.getPrompt({ name: "welcome", arguments: { call: "prompt" } }));
const letter = await failure(client.readResource({ uri: "letters://letter" }));
await client.close();
print({
  negotiated,
  asked,
  texts,
  prompt: prompt.result?.messages[0].content.text ?? prompt,
  letter: letter.result?.contents[0].text ?? letter,
});
