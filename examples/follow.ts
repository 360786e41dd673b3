// Follow a sandbox to its end, through restarts and lost connections, and prove that nothing was missed.
//   npm install && OMOI_URL=http://127.0.0.1:18000 OMOI_TOKEN=omoi_pat_… node follow.ts sandbox_…    (Node 22.18)
import { createHash } from 'node:crypto';
import { createClient } from 'graphql-ws';

type Event = { id: string; seq: number; type: string };
type Followed = { sandboxEvents: { cursor: string; reset: { reason: string } | null; events: Event[] } };
type Digest = { lastSeq: number; sha256: string };

const FOLLOW = `subscription Follow($sandbox: ID!, $after: String) {
  sandboxEvents(sandboxId: $sandbox, after: $after) { cursor reset { reason } events { id seq type } } }`;
const DIGEST = 'query Digest($sandbox: ID!) { sandbox(id: $sandbox) { digest { lastSeq sha256 } } }';
const PASSING = ['SLOW_CONSUMER', 'RATE_LIMITED', 'INTERNAL']; // any other error would only come again

const { OMOI_URL = 'http://127.0.0.1:18000', OMOI_TOKEN } = process.env;
const sandbox = process.argv[2];
const client = createClient({
  url: `${OMOI_URL.replace(/^http/, 'ws')}/graphql`,
  connectionParams: { authorization: `Bearer ${OMOI_TOKEN}` },
  retryAttempts: 0, // a retry of its own would send the first cursor again; the loop at the end sends the last one
  keepAlive: 15_000, // asks for a sign of life: a network that is gone does not say so
  on: { connecting: listen, message: listen, closed: () => clearTimeout(silence) },
});
let silence: NodeJS.Timeout | undefined;
function listen(): void {
  clearTimeout(silence);
  silence = setTimeout(() => client.terminate(), 45_000);
}

const START = { after: null as string | null, seq: 0, chain: Buffer.alloc(32), ended: false };
let seen = START; // whoever keeps the events keeps this with them, and goes on from it
let pause = 250;

async function follow(): Promise<boolean> {
  let digest: Digest | undefined; // what the chain has to be at its `lastSeq`
  for await (const { data } of client.iterate<Followed>({ query: FOLLOW, variables: { sandbox, after: seen.after } })) {
    const { cursor, reset, events } = data!.sandboxEvents;
    if (reset) console.log(`again from the beginning: ${reset.reason}`);
    if (reset) [seen, digest] = [START, undefined]; // whoever keeps the events throws them away
    for (const { id, seq, type } of events) {
      const chain = createHash('sha256').update(seen.chain).update(id).digest();
      seen = { ...seen, seq, chain, ended: type === 'COMPLETED' }; // the last event, however the sandbox has ended
      console.log(`${seq} ${type}`);
      verify(digest);
    }
    seen = { ...seen, after: cursor }; // only now: what was not taken is sent again
    if (events.length) pause = 250;
    if (!digest || seen.ended) {
      digest = (await client.iterate({ query: DIGEST, variables: { sandbox } }).next()).value.data.sandbox.digest;
      if (verify(digest) && seen.ended) return true;
    }
  }
  return false;
}

function verify(digest?: Digest): boolean {
  if (digest?.lastSeq !== seen.seq) return false; // the server was further than we are: compared when we get there
  if (digest.sha256 !== seen.chain.toString('hex')) throw new Error("These are not the server's events.");
  console.log(`verified up to ${seen.seq}`);
  return true;
}

/** After this the stream goes on from the cursor; what would only come again is thrown. */
function interrupted(error: unknown): undefined {
  const { code = 0, reason } = error as { code?: number; reason?: string }; // of a closed socket
  if (code >= 4400 && ![4408, 4499].includes(code)) throw new Error(`${code}: ${reason}`);
  if (error instanceof Error && !code) throw error;
  if (Array.isArray(error) && error.some(({ extensions }) => !PASSING.includes(extensions.code))) throw error;
}

while (!(await follow().catch(interrupted))) {
  await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random())));
  pause = Math.min(2 * pause, 15_000);
}
await client.dispose();
