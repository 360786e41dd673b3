// The clients of graphql-ws and graphql-sse follow a project's feed while they change the project. Environment: URL
// (http://…), TOKEN, PROJECT. Prints one JSON line for each client: the verbs that it saw, in order.
import { createClient as overSocket } from 'graphql-ws';
import { createClient as overStream } from 'graphql-sse';
import WebSocket from 'ws';

const { URL: url, TOKEN: token, PROJECT: project } = process.env;
const authorization = `Bearer ${token}`;
const feed = `subscription($project: ID!, $after: String) {
  projectActivity(projectId: $project, after: $after) { cursor caughtUp activities { verb } }
}`;
const create = `mutation($input: CreateTicketInput!) { createTicket(input: $input) { errors { code } } }`;

const clients = {
  'graphql-ws': overSocket({ url: url.replace('http', 'ws'), webSocketImpl: WebSocket, connectionParams: { authorization } }),
  'graphql-sse': overStream({ url, headers: { authorization } }),
};

async function follow(client) {
  const verbs = [];
  let asked = false;
  for await (const { data } of client.iterate({ query: feed, variables: { project } })) {
    verbs.push(...data.projectActivity.activities.map(({ verb }) => verb));
    if (data.projectActivity.caughtUp && !asked) {
      asked = true;
      const input = { projectId: project, title: 'Made while watching', startTask: false };
      for await (const result of client.iterate({ query: create, variables: { input } })) {
        if (result.data.createTicket.errors.length) throw new Error(JSON.stringify(result));
      }
    } else if (asked && verbs.at(-1) === 'ticket.created') break;
  }
  return verbs;
}

for (const [name, client] of Object.entries(clients)) {
  console.log(JSON.stringify({ client: name, verbs: await follow(client) }));
  client.dispose();
}
