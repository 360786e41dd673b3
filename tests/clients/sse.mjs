// The client of graphql-sse in everyday situations. Environment: URL, TOKEN, SUBSCRIPTION (a document that ends by
// itself), ENDLESS (one that does not). Prints one JSON line for each situation.
import { createClient } from 'graphql-sse';

const { URL: url, TOKEN: token, SUBSCRIPTION: subscription, ENDLESS: endless } = process.env;

const connect = (options = {}) =>
  createClient({ url, retryAttempts: 0, headers: { authorization: `Bearer ${token}` }, ...options });

async function alone(payload, options) {
  const client = connect(options);
  const results = [];
  const outcome = await new Promise((resolve) => {
    client.subscribe(payload, {
      next: (result) => results.push(result),
      error: (error) => resolve({ status: error?.response?.status ?? null, message: String(error?.message ?? error) }),
      complete: () => resolve({ complete: true }),
    });
  });
  client.dispose();
  return { results, ...outcome };
}

async function left() {
  const client = connect();
  const results = [];
  for await (const result of client.iterate({ query: endless })) {
    results.push(result);
    break;
  }
  client.dispose();
  return { results };
}

const situations = {
  query: () => alone({ query: '{ __typename }' }),
  subscription: () => alone({ query: subscription }),
  invalid: () => alone({ query: 'subscription { nope }' }),
  syntax: () => alone({ query: 'subscription {' }),
  missingVariable: () => alone({ query: 'query ($x: Boolean!) { __typename @include(if: $x) }' }),
  leftEarly: left,
  withoutToken: () => alone({ query: '{ __typename }' }, { headers: {} }),
};

for (const [situation, act] of Object.entries(situations)) {
  console.log(JSON.stringify({ situation, ...(await act()) }));
}
process.exit(0);
