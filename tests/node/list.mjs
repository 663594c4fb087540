// Lists everything that the server has, and reads one of each.
import { connect, print } from "./sdk.mjs";

const { client, negotiated } = await connect();
const { tools } = await client.listTools();
const { resources } = await client.listResources();
const { resourceTemplates } = await client.listResourceTemplates();
const { prompts } = await client.listPrompts();
const { contents } = await client.readResource({ uri: "reference://about" });
const prompt = await client.getPrompt({ name: "code_review", arguments: { code: "x = 1" } });
const completed = await client.complete({
  ref: { type: "ref/prompt", name: "code_review" },
  argument: { name: "language", value: "py" },
});
const server = client.getServerVersion();
const instructions = client.getInstructions();
await client.close();
print({
  negotiated,
  server: server.name,
  instructions,
  tools: tools.map((tool) => tool.name),
  resources: resources.map((resource) => resource.uri),
  templates: resourceTemplates.map((template) => template.uriTemplate),
  prompts: prompts.map((each) => each.name),
  about: contents[0].text,
  prompt: prompt.messages[0].content.text,
  completed: completed.completion.values,
});
