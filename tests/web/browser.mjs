// A browser for tests, and a page that reports everything which a strict policy or an honest console would object to.
import { chromium } from 'playwright-core';

const ARGUMENTS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

/** The browser named by OMOI_TEST_BROWSER, else the one that npm brought (Linux on x64). */
export async function launch() {
  return chromium.launch({ executablePath: await executable(), args: ARGUMENTS });
}

async function executable() {
  if (process.env.OMOI_TEST_BROWSER) return process.env.OMOI_TEST_BROWSER;
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    throw new Error('Name an installed Chromium or Chrome in OMOI_TEST_BROWSER.');
  }
  const { default: bundled } = await import('@sparticuz/chromium');
  bundled.setGraphicsMode = false;
  return bundled.executablePath();
}

/**
 * A page of `context` and the list to which its faults are added: policy violations, console errors, uncaught
 * errors, failed answers and anything asked of another origin. `expectedStatus` may be answered without fault.
 */
export async function openGuarded(context, origin, { expectedStatus } = {}) {
  const faults = [];
  const page = await context.newPage();
  await page.exposeFunction('reportViolation', (text) => faults.push(`policy: ${text}`));
  await page.addInitScript(() => {
    addEventListener('securitypolicyviolation', (event) => {
      const place = `${event.sourceFile}:${event.lineNumber}:${event.columnNumber}`;
      globalThis.reportViolation(`${event.effectiveDirective} ${event.blockedURI} ${event.sample} ${place}`);
    });
  });
  page.on('console', (message) => {
    const text = message.text();
    if (expectedStatus && text.includes(`status of ${expectedStatus}`)) return;
    if (['error', 'warning'].includes(message.type())) faults.push(`console ${message.type()}: ${text}`);
  });
  page.on('pageerror', (error) => faults.push(`uncaught: ${error.stack ?? error}`));
  page.on('requestfailed', (request) => faults.push(`failed: ${request.url()} ${request.failure()?.errorText}`));
  page.on('response', (response) => {
    if (response.status() >= 400 && response.status() !== expectedStatus) {
      faults.push(`answered ${response.status()}: ${response.url()}`);
    }
  });
  page.on('request', (request) => checkOrigin(request.url()));
  page.on('websocket', (socket) => checkOrigin(socket.url().replace(/^ws/, 'http')));
  return { page, faults };

  function checkOrigin(address) {
    const url = new URL(address);
    if (url.protocol !== 'data:' && url.origin !== origin) faults.push(`other origin: ${address}`);
  }
}

/** What the policy of `response` allows that it should not; an absent policy allows everything. */
export function policyFaults(response) {
  const policy = response.headers()['content-security-policy'];
  if (!policy) return ['no Content-Security-Policy'];
  return ["'unsafe-inline'", "'unsafe-eval'", 'http:', 'https:', 'blob:', '*']
    .filter((source) => policy.split(/[\s;]+/).includes(source))
    .map((source) => `policy allows ${source}`);
}
