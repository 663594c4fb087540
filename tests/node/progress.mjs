// Hears how far a long call is.
import { connect, print } from "./sdk.mjs";

const { client, traffic, negotiated } = await connect();
const heard = [];
const call = { name: "slow_operation", arguments: { duration_ms: 300 } };
const result = await client.callTool(call, { onprogress: (progress) => heard.push(progress) });
await client.close();
print({ negotiated, heard, text: result.content[0].text, requests: traffic.requests });
