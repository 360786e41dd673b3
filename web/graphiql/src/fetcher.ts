// How operations reach the server: POST /graphql, and for subscriptions graphql-ws at the same address.
import type { Fetcher, FetcherParams, Observable } from '@graphiql/toolkit';
import { getOperationAST, GraphQLError, parse, type ExecutionResult, type OperationDefinitionNode } from 'graphql';
import { createClient, type Client } from 'graphql-ws';

const ENDPOINT = '/graphql';
const CLIENT_NAME = 'graphiql';
const NOT_SIGNED_IN = 'You are not signed in. Run `omoi up` for a sign-in link, or put a token into the Headers tab.';

type Headers = Record<string, string>;
type OnSignedIn = (signedIn: boolean) => void;

/** A fetcher that tells after each answer whether the server knew who asked. */
export function createFetcher(onSignedIn: OnSignedIn): Fetcher {
  const subscribe = createSubscriber(onSignedIn);
  return (params, options) => {
    const headers: Headers = options?.headers ?? {};
    const operation = chosenOperation(params);
    const request = operation ? { ...params, operationName: operation.name?.value } : params;
    return operation?.operation === 'subscription' ? subscribe(request, headers) : post(request, headers, onSignedIn);
  };
}

/** The named operation, or the only one: GraphiQL's name is a moment old, and may be that of another tab. */
function chosenOperation({ query, operationName }: FetcherParams): OperationDefinitionNode | undefined {
  try {
    const document = parse(query);
    return getOperationAST(document, operationName) ?? getOperationAST(document) ?? undefined;
  } catch (error) {
    // The server explains a wrong document better.
    if (error instanceof GraphQLError) return undefined;
    throw error;
  }
}

async function post(params: FetcherParams, headers: Headers, onSignedIn: OnSignedIn): Promise<ExecutionResult> {
  const response = await fetch(ENDPOINT, {
    method: 'POST',
    credentials: 'same-origin',
    headers: {
      accept: 'application/graphql-response+json, application/json',
      'content-type': 'application/json',
      'omoi-client': CLIENT_NAME,
      ...headers,
    },
    body: JSON.stringify(params),
  });
  onSignedIn(response.status !== 401);
  if (response.status === 401) return failure(NOT_SIGNED_IN);
  if (!response.headers.get('content-type')?.includes('json')) {
    return failure(`The server answered ${response.status} ${response.statusText}`.trim() + ', not JSON.');
  }
  return (await response.json()) as ExecutionResult;
}

function failure(message: string): ExecutionResult {
  return { errors: [new GraphQLError(message)] };
}

type Subscribe = (params: FetcherParams, headers: Headers) => Observable<ExecutionResult>;

function createSubscriber(onSignedIn: OnSignedIn): Subscribe {
  let socket: { authorization: string | undefined; client: Client } | undefined;

  /** One socket for each token: the server reads it once, when the connection opens. */
  function clientFor(authorization: string | undefined): Client {
    if (socket && socket.authorization === authorization) return socket.client;
    void socket?.client.dispose();
    socket = { authorization, client: openClient(authorization) };
    return socket.client;
  }

  return (params, headers) => ({
    subscribe(observer: Observer | ((value: ExecutionResult) => void) | undefined) {
      if (typeof observer !== 'object') throw new TypeError('An observer object is needed.');
      const unsubscribe = clientFor(authorizationOf(headers)).subscribe<ExecutionResult['data']>(
        { query: params.query, operationName: params.operationName, variables: params.variables },
        {
          next: (result) => observer.next(result as ExecutionResult),
          error: (error) => {
            if (isRefusal(error)) onSignedIn(false);
            observer.error(explain(error));
          },
          complete: () => observer.complete(),
        },
      );
      return { unsubscribe };
    },
  });
}

type Observer = {
  next: (value: ExecutionResult) => void;
  error: (error: unknown) => void;
  complete: () => void;
};

function openClient(authorization: string | undefined): Client {
  const url = new URL(ENDPOINT, location.href);
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
  return createClient({
    url: url.href,
    connectionParams: { 'omoi-client': CLIENT_NAME, ...(authorization && { authorization }) },
    // A refusal does not become an admission by asking again.
    shouldRetry: (error) => error instanceof CloseEvent && !isRefusal(error),
  });
}

function authorizationOf(headers: Headers): string | undefined {
  return Object.entries(headers).find(([name]) => name.toLowerCase() === 'authorization')?.[1];
}

function isRefusal(error: unknown): boolean {
  return error instanceof CloseEvent && (error.code === 4401 || error.code === 4403);
}

/** What the result pane should say; GraphQL errors pass as they are. */
function explain(error: unknown): unknown {
  if (isRefusal(error)) return [new GraphQLError(NOT_SIGNED_IN)];
  if (error instanceof CloseEvent) {
    return [new GraphQLError(`The socket closed with code ${error.code}${error.reason && `: ${error.reason}`}.`)];
  }
  return error;
}
