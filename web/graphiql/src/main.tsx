// The page: GraphiQL on this server's own endpoint.
import '@graphiql/react/style.css';
import '@graphiql/plugin-doc-explorer/style.css';
import '@graphiql/plugin-history/style.css';
import 'graphiql/graphiql.css';
import './page.css';
import { GraphiQL } from 'graphiql';
import { useState } from 'react';
import { createRoot } from 'react-dom/client';
import { createFetcher } from './fetcher';
import { environment } from './monaco';
import { applyParkedStyles, nonceStyleElements } from './policy';
import { storage } from './storage';

const DEFAULT_QUERY = `# Who am I, and what may I see?
# Ctrl-Enter runs it, Ctrl-Space completes.
query {
  viewer {
    kind
    user {
      name
      email
    }
  }
  projects(first: 5) {
    nodes {
      id
      name
    }
  }
}
`;

const SIGNED_OUT = (
  <p className="signed-out" role="status">
    You are not signed in. Run <code>omoi up</code> for a sign-in link, or put a token into the Headers tab:{' '}
    <code>{'{"Authorization": "Bearer omoi_pat_…"}'}</code>
  </p>
);

function Page() {
  const [signedIn, setSignedIn] = useState(true);
  const [fetcher] = useState(() => createFetcher(setSignedIn));
  return (
    <GraphiQL
      fetcher={fetcher}
      storage={storage}
      defaultQuery={DEFAULT_QUERY}
      shouldPersistHeaders={false}
      showPersistHeadersSettings={false}
    >
      {signedIn ? null : <GraphiQL.Footer>{SIGNED_OUT}</GraphiQL.Footer>}
    </GraphiQL>
  );
}

nonceStyleElements();
applyParkedStyles();
window.MonacoEnvironment = environment;

const root = document.getElementById('root');
if (!root) throw new Error('The page has no #root.');
createRoot(root).render(<Page />);
