// The client of graphql-ws in everyday situations. Environment: URL (ws://…), TOKEN, SUBSCRIPTION (a document that
// ends by itself), ENDLESS (one that does not). Prints one JSON line for each situation.
import { createClient } from 'graphql-ws';
import WebSocket from 'ws';

const { URL: url, TOKEN: token, SUBSCRIPTION: subscription, ENDLESS: endless } = process.env;

const connect = (options = {}) =>
  createClient({
    url,
    webSocketImpl: WebSocket,
    retryAttempts: 0,
    connectionParams: { authorization: `Bearer ${token}`, 'omoi-client': 'tests' },
    ...options,
  });

const failure = (error) =>
  Array.isArray(error)
    ? { errors: error }
    : { closed: error?.code ?? null, reason: error?.reason ?? String(error?.message ?? error) };

function run(client, payload) {
  const results = [];
  return new Promise((resolve) => {
    client.subscribe(payload, {
      next: (result) => results.push(result),
      error: (error) => resolve({ results, ...failure(error) }),
      complete: () => resolve({ results, complete: true }),
    });
  });
}

async function alone(payload, options) {
  const client = connect(options);
  try {
    return await run(client, payload);
  } finally {
    client.dispose();
  }
}

async function besideEndless(payload) {
  const client = connect();
  let beats = 0;
  let over = null;
  const first = new Promise((resolve) => {
    const end = (how) => () => { over = how; resolve(); };
    client.subscribe({ query: endless }, { next: () => { beats += 1; resolve(); }, error: end('error'), complete: end('complete') });
  });
  await first;
  const beside = await run(client, payload);
  const still = over === null && beats > 0;
  client.dispose();
  return { beside, still };
}

async function pinged() {
  let pong = false;
  const client = connect({ lazy: false, keepAlive: 20 });
  await new Promise((resolve) => client.on('pong', (received) => { pong = received; resolve(); }));
  client.dispose();
  return { pong };
}

async function left() {
  const client = connect();
  const results = [];
  for await (const result of client.iterate({ query: endless })) {
    results.push(result);
    break;
  }
  const after = await run(client, { query: '{ __typename }' });
  client.dispose();
  return { results, after };
}

const long = 'x'.repeat(300);
const situations = {
  query: () => alone({ query: '{ __typename }' }),
  subscription: () => alone({ query: subscription }),
  invalid: () => alone({ query: 'subscription { nope }' }),
  syntax: () => alone({ query: 'subscription {' }),
  longSyntax: () => alone({ query: `{ a } ${long}` }),
  unknownOperation: () => alone({ query: 'query A { __typename }', operationName: 'B' }),
  missingVariable: () => alone({ query: 'query ($x: Boolean!) { __typename @include(if: $x) }' }),
  unknownDocument: () => alone({ query: '', extensions: { persistedQuery: { version: 1, sha256Hash: 'ab'.repeat(32) } } }),
  syntaxBesideEndless: () => besideEndless({ query: 'subscription }' }),
  queryBesideEndless: () => besideEndless({ query: '{ __typename }' }),
  leftEarly: left,
  pinged,
  withoutToken: () => alone({ query: '{ __typename }' }, { connectionParams: undefined }),
  wrongToken: () => alone({ query: '{ __typename }' }, { connectionParams: { authorization: 'Bearer wrong' } }),
  tokenKey: () => alone({ query: '{ __typename }' }, { connectionParams: { token } }),
};

for (const [situation, act] of Object.entries(situations)) {
  console.log(JSON.stringify({ situation, ...(await act()) }));
}
process.exit(0);
