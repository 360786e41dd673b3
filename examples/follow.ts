// Follow a sandbox to its end, through restarts and lost connections, and prove that nothing was missed.
//   npm install
//   OMOI_URL=http://127.0.0.1:18000 OMOI_TOKEN=omoi_pat_… node follow.ts sandbox_…    (in this folder; Node 22.18 or newer)
import { createHash } from 'node:crypto';
import { createClient } from 'graphql-ws';

type Event = { id: string; seq: number; type: string };
type Reset = { reason: string; firstAvailableSeq: number };
type Followed = { sandboxEvents: { cursor: string; caughtUp: boolean; reset: Reset | null; events: Event[] } };
type Asked = { sandbox: { digest: { lastSeq: number; sha256: string } } };

const FOLLOW = `subscription Follow($sandbox: ID!, $after: String) {
  sandboxEvents(sandboxId: $sandbox, after: $after) {
    cursor caughtUp reset { reason firstAvailableSeq }
    events { id seq type }
  }
}`;
const DIGEST = 'query Digest($sandbox: ID!) { sandbox(id: $sandbox) { digest { lastSeq sha256 } } }';
const FINAL = ['UNAUTHENTICATED', 'FORBIDDEN', 'NOT_FOUND', 'BAD_USER_INPUT', 'COST_EXCEEDED'];

const { OMOI_URL = 'http://127.0.0.1:18000', OMOI_TOKEN } = process.env;
const sandbox = process.argv[2];
const client = createClient({
  url: `${OMOI_URL.replace(/^http/, 'ws')}/graphql`,
  connectionParams: { authorization: `Bearer ${OMOI_TOKEN}` },
  retryAttempts: 0, // a retry of its own would send the first cursor again; the loop at the end sends the last one
});

let after: string | null = null; // resumes here; whoever keeps events keeps this with them, and seq and chain
let seq = 0;
let chain: Buffer = Buffer.alloc(32);
let expected: Asked['sandbox']['digest'] | null = null; // what the chain has to be at some seq
let ended = false;

function take(event: Event): void {
  if (event.seq !== seq + 1) throw new Error(`${event.seq} came after ${seq}.`);
  seq = event.seq;
  chain = createHash('sha256').update(chain).update(event.id).digest();
  ended = event.type === 'COMPLETED'; // the last event, however the sandbox has ended
  console.log(`${seq} ${event.type}`);
  verify();
}

function verify(): boolean {
  if (expected?.lastSeq !== seq) return false;
  if (expected.sha256 !== chain.toString('hex')) throw new Error(`The events up to ${seq} are not the server's.`);
  console.log(`verified up to ${seq}`);
  return true;
}

async function read(): Promise<boolean> {
  let asked = false;
  for await (const { data } of client.iterate<Followed>({ query: FOLLOW, variables: { sandbox, after } })) {
    const { cursor, caughtUp, reset, events } = data!.sandboxEvents;
    if (reset) startAgain(reset);
    events.forEach(take);
    after = cursor; // only now: what was not taken is sent again
    if (ended || (caughtUp && !asked)) {
      asked = true;
      for await (const answer of client.iterate<Asked>({ query: DIGEST, variables: { sandbox } })) {
        expected = answer.data!.sandbox.digest;
      }
      if (verify() && ended) return true;
    }
  }
  return false;
}

function startAgain({ reason, firstAvailableSeq }: Reset): void {
  if (firstAvailableSeq > 1) throw new Error(reason); // what came before is gone; begin at `digest.cursor` instead
  console.log(`again from the beginning: ${reason}`);
  [seq, chain, expected] = [0, Buffer.alloc(32), null];
}

function reasonToStop(error: unknown): string | undefined {
  if (Array.isArray(error)) {
    const final = error.find(({ extensions }) => FINAL.includes(extensions?.code));
    return final && `${final.extensions.code}: ${final.message}`;
  }
  if (error instanceof Error && !('code' in error)) return error.message; // what the events prove, or a fault in here
  const { code = 0, reason } = error as { code?: number; reason?: string }; // of a closed socket
  return code >= 4400 && code < 4499 && code !== 4408 ? `${code}: ${reason}` : undefined;
}

let finished = false;
for (let pause = 250; !finished; pause = Math.min(2 * pause, 15_000)) {
  const before: string | null = after;
  finished = await read().catch((error: unknown) => {
    const reason = reasonToStop(error);
    if (reason === undefined) return false;
    console.error(reason);
    process.exit(1);
  });
  if (after !== before) pause = 250;
  if (!finished) await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random())));
}
await client.dispose();
