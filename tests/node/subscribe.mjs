// Subscribes to a resource, changes the file behind it, hears of it, reads it, and ends the subscription.
import { appendFile } from "node:fs/promises";
import { connect, eventually, isModern, print, rest } from "./sdk.mjs";

const uri = "reference://notes.md";
const [notes] = rest;
const { client, negotiated } = await connect();
const heard = [];
client.setNotificationHandler("notifications/resources/updated", ({ params }) => heard.push(params.uri));

async function subscribe() {
  if (!isModern) {
    await client.subscribeResource({ uri });
    return { filter: null, end: () => client.unsubscribeResource({ uri }) };
  }
  const subscription = await client.listen({ resourceSubscriptions: [uri] });
  const end = async () => {
    await subscription.close();
    return subscription.closed;
  };
  return { filter: subscription.honoredFilter, end };
}

const { filter, end } = await subscribe();
await appendFile(notes, "changed once\n");
await eventually(() => heard.length > 0, "the news of the change");
const { contents } = await client.readResource({ uri });
const ended = await end();
const before = heard.length;
await appendFile(notes, "changed twice\n");
await new Promise((resolve) => setTimeout(resolve, 700)); // longer than the notification of a change takes
await client.close();
print({ negotiated, filter, heard: heard.slice(0, before), afterwards: heard.length - before, text: contents[0].text, ended });
