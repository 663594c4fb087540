// Loses the connection in the middle of a long call; where the revision has it, the client comes back for the answer.
import { connect, failure, isModern, print } from "./sdk.mjs";

const { client, traffic, negotiated } = await connect();
const heard = [];
const call = { name: "slow_operation", arguments: { duration_ms: 1500 } };
const onprogress = ({ progress }) => {
  heard.push(progress);
  if (heard.length === 3) traffic.cut();
};
const outcome = await failure(client.callTool(call, { onprogress, timeout: isModern ? 2500 : 15_000 }));
const afterwards = await client.callTool({ name: "calculate", arguments: { operation: "add", a: 1, b: 1 } });
await client.close();
print({
  negotiated,
  heard,
  outcome: outcome.result ? { text: outcome.result.content[0].text } : outcome,
  resumed: traffic.requests.filter((request) => request.lastEventId !== null),
  afterwards: afterwards.content[0].text,
});
