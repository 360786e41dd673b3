// Follow a project's feed for as long as it takes, missing nothing. `client` is a client of graphql-ws.

const FEED = `subscription Feed($project: ID!, $after: String) {
  projectActivity(projectId: $project, after: $after) {
    cursor
    reset { reason }
    activities { seq verb summary subject { id ... on Ticket { title ticketStatus: status } ... on Task { title taskStatus: status } } }
  }
}`;

// Coming back would only meet the same answer again.
const FINAL = new Set(['UNAUTHENTICATED', 'FORBIDDEN', 'NOT_FOUND', 'BAD_USER_INPUT']);
const FINAL_CLOSES = new Set([4401, 4403]);
const isFinal = (error) =>
  Array.isArray(error) ? error.some(({ extensions }) => FINAL.has(extensions?.code)) : FINAL_CLOSES.has(error?.code);

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 15_000;

export async function follow({ client, project, after = null, show, startAgain = () => {} }) {
  let pause = FIRST_PAUSE_MS;
  for (;;) {
    try {
      for await (const { data, errors } of client.iterate({ query: FEED, variables: { project, after } })) {
        if (errors) throw errors;
        const { cursor, reset, activities } = data.projectActivity;
        if (reset) startAgain(reset.reason); // what was kept so far may not fit what comes now
        if (activities.length) await show(activities);
        after = cursor; // only now: what was not shown is sent again
        pause = FIRST_PAUSE_MS;
      }
    } catch (error) {
      if (isFinal(error)) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random())));
    pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
  }
}
