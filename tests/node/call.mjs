// Calls tools: one that answers, one that fails in words, one that isn't there, and many at once.
import { connect, failure, print } from "./sdk.mjs";

const { client, negotiated } = await connect();
const add = (a, b) => client.callTool({ name: "calculate", arguments: { operation: "add", a, b } });
await client.listTools(); // from here on the client checks structured results against their schemas
const sum = await add(2, 3);
const failed = await client.callTool({ name: "calculate", arguments: { operation: "divide", a: 1, b: 0 } });
const unknown = await failure(client.callTool({ name: "no_such_tool", arguments: {} }));
const many = await Promise.all(Array.from({ length: 20 }, (_, number) => add(number, 1)));
await client.close();
print({
  negotiated,
  sum: { text: sum.content[0].text, structured: sum.structuredContent ?? null },
  failed: { isError: failed.isError, text: failed.content[0].text },
  unknown,
  many: many.map((result) => JSON.parse(result.content[0].text).result),
});
