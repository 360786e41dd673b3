// The example of the docs, run as it stands. Environment: URL (ws://…), TOKEN, PROJECT, AFTER (a number: entries to
// wait for, cutting the socket after each batch). Prints the seqs it was shown and how it ended, as one JSON line.
import { createClient } from 'graphql-ws';
import WebSocket from 'ws';
import { follow } from '../../docs/examples/follow.mjs';

const { URL: url, TOKEN: token, PROJECT: project, AFTER: wanted } = process.env;
let attempts = 0;
let socket = null;
const client = createClient({
  url,
  webSocketImpl: WebSocket,
  connectionParams: { authorization: `Bearer ${token}` },
  retryAttempts: 0, // so that the example's own loop is what comes back
  on: {
    opened: (opened) => {
      attempts += 1;
      socket = opened;
    },
  },
});
const seqs = [];
const show = (activities) => {
  seqs.push(...activities.map(({ seq }) => seq));
  if (seqs.length >= Number(wanted)) throw [{ extensions: { code: 'BAD_USER_INPUT' }, message: 'enough' }];
  setTimeout(() => socket.terminate(), 0);
};
const end = await follow({ client, project, show }).catch((error) => error);
console.log(JSON.stringify({ seqs, attempts, code: end[0]?.extensions?.code ?? null, message: end[0]?.message ?? null }));
process.exit(0);
