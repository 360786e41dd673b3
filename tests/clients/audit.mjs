// The server audits of graphql-http. Environment: URL, TOKEN. Prints one JSON line for each audit.
import { serverAudits } from 'graphql-http';

const { URL: url, TOKEN: token } = process.env;

const fetchFn = (address, init = {}) =>
  fetch(address, { ...init, headers: { ...init.headers, authorization: `Bearer ${token}` } });

for (const audit of serverAudits({ url, fetchFn })) {
  const { status, reason } = await audit.fn();
  console.log(JSON.stringify({ id: audit.id, name: audit.name, status, reason }));
}
