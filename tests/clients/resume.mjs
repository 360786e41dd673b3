// Four clients follow a sandbox to its end, each coming back after every loss with the cursor of its last payload.
// Environment: URL (http://…), TOKEN, SANDBOX. Prints one JSON line for each payload, and one for each client's end.
import { createHash } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import { ApolloClient, InMemoryCache, gql } from '@apollo/client';
import { GraphQLWsLink } from '@apollo/client/link/subscriptions';
import { Client, subscriptionExchange } from '@urql/core';
import { createClient as overStream } from 'graphql-sse';
import { createClient as overSocket } from 'graphql-ws';
import WebSocket from 'ws';

const { URL: url, TOKEN: token, SANDBOX: sandbox } = process.env;
const authorization = `Bearer ${token}`;
const query = `subscription Follow($sandbox: ID!, $after: String) {
  sandboxEvents(sandboxId: $sandbox, after: $after) {
    cursor reset { reason } events { id seq type }
  }
}`;

// A retry of the clients' own would send the first cursor again, so they have none: whoever follows knows the last one.
const socket = () =>
  overSocket({
    url: url.replace('http', 'ws'),
    webSocketImpl: WebSocket,
    connectionParams: { authorization },
    retryAttempts: 0,
  });

function graphqlWs() {
  const client = socket();
  return (variables, sink) => client.subscribe({ query, variables }, sink);
}

function graphqlSse() {
  const client = overStream({ url, headers: { authorization }, retryAttempts: 0 });
  return (variables, sink) => client.subscribe({ query, variables }, sink);
}

function urql() {
  const sockets = socket();
  const forwardSubscription = ({ query: text, variables }) => ({
    subscribe: (sink) => ({ unsubscribe: sockets.subscribe({ query: text, variables }, sink) }),
  });
  const client = new Client({ url, exchanges: [subscriptionExchange({ forwardSubscription })] });
  return (variables, sink) => {
    const told = ({ data, error }) => (error ? sink.error(error) : sink.next({ data }));
    return client.subscription(query, variables).subscribe(told).unsubscribe;
  };
}

function apollo() {
  const client = new ApolloClient({ link: new GraphQLWsLink(socket()), cache: new InMemoryCache() });
  return (variables, sink) => {
    const told = { ...sink, next: ({ data, error }) => (error ? sink.error(error) : sink.next({ data })) };
    const subscription = client.subscribe({ query: gql(query), variables }).subscribe(told);
    return () => subscription.unsubscribe();
  };
}

async function follow(name, subscribe) {
  const seqs = [];
  let [after, chain, losses, resets, ended] = [null, Buffer.alloc(32), 0, 0, false];
  const take = ({ id, seq, type }) => {
    seqs.push(seq);
    chain = createHash('sha256').update(chain).update(id).digest();
    ended ||= type === 'COMPLETED';
  };
  while (!ended) {
    await new Promise((over) => {
      const next = ({ data: { sandboxEvents: told } }) => {
        told.events.forEach(take);
        after = told.cursor;
        resets += told.reset ? 1 : 0;
        console.log(JSON.stringify({ client: name, seen: seqs.length, losses }));
        if (ended) queueMicrotask(() => over(leave()));
      };
      const leave = subscribe({ sandbox, after }, { next, error: over, complete: over });
    });
    if (ended) break;
    losses += 1;
    await setTimeout(50);
  }
  console.log(JSON.stringify({ client: name, seqs, resets, losses, sha256: chain.toString('hex') }));
}

const clients = { 'graphql-ws': graphqlWs(), 'graphql-sse': graphqlSse(), urql: urql(), 'Apollo Client': apollo() };
await Promise.all(Object.entries(clients).map(([name, subscribe]) => follow(name, subscribe)));
process.exit(0);
