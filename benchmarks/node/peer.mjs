// The peer on node: the same subscription served by graphql-js and graphql-ws, one execution for each subscriber.
import { createServer } from "node:http";
import { buildSchema } from "graphql";
import { useServer } from "graphql-ws/use/ws";
import { WebSocketServer } from "ws";

const schema = buildSchema(`
  interface SandboxEvent {
    id: ID! seq: Int! cursor: String! type: String! source: String! turn: Int occurredAt: String! recordedAt: String!
  }
  type MessageEvent implements SandboxEvent {
    id: ID! seq: Int! cursor: String! type: String! source: String! turn: Int occurredAt: String! recordedAt: String!
    text: String!
  }
  type Payload { cursor: String! caughtUp: Boolean! events: [SandboxEvent!]! }
  type Query { ready: Boolean }
  type Subscription { sandboxEvents(sandboxId: ID!): Payload! }
`);
schema.getType("SandboxEvent").resolveType = () => "MessageEvent";

const topics = new Map();

class Queue {
  #waiting = [{ sandboxEvents: { cursor: "", caughtUp: true, events: [] } }];
  #take = null;
  constructor(members) {
    this.members = members;
    members.add(this);
  }
  push(value) {
    if (this.#take === null) this.#waiting.push(value);
    else {
      this.#take({ value, done: false });
      this.#take = null;
    }
  }
  next() {
    if (this.#waiting.length > 0) return Promise.resolve({ value: this.#waiting.shift(), done: false });
    return new Promise((resolve) => (this.#take = resolve));
  }
  return() {
    this.members.delete(this);
    this.#take?.({ value: undefined, done: true });
    return Promise.resolve({ value: undefined, done: true });
  }
  [Symbol.asyncIterator]() {
    return this;
  }
}

const members = (topic) => {
  if (!topics.has(topic)) topics.set(topic, new Set());
  return topics.get(topic);
};

const server = createServer(async (request, response) => {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  const { data } = JSON.parse(Buffer.concat(pieces).toString()).payload;
  const topic = new URL(request.url, "http://127.0.0.1").searchParams.get("topic");
  for (const queue of members(topic)) queue.push(data);
  response.end();
});
const roots = { subscription: { sandboxEvents: ({ sandboxId }) => new Queue(members(sandboxId)) } };
useServer({ schema, roots }, new WebSocketServer({ server, path: "/graphql" }));
server.listen(0, "127.0.0.1", 2048, () => console.log(`http://127.0.0.1:${server.address().port}`));
