// Opens GraphiQL on a running server and uses it as a person would; exits 1 when anything is wrong.
//
//   BASE_URL=http://127.0.0.1:8000 node graphiql.mjs
//
//   OMOI_TEST_COOKIE        name=value of a session, or
//   OMOI_TEST_TOKEN         a token, put into the Headers tab; with neither, the page must say how to sign in
//   OMOI_TEST_SUBSCRIPTION  a subscription that answers at least once by itself; without it none is run
//   OMOI_TEST_SCREENSHOT    where to write a picture of the page
//   OMOI_TEST_THEME         dark or light
//   OMOI_TEST_BROWSER       an installed Chromium or Chrome
//
// Prints one JSON object: ok, faults, and what each step saw.
import assert from 'node:assert/strict';
import { launch, openGuarded, policyFaults } from './browser.mjs';

const environment = process.env;
const origin = new URL(environment.BASE_URL ?? 'http://127.0.0.1:8000').origin;
const cookie = environment.OMOI_TEST_COOKIE;
const token = environment.OMOI_TEST_TOKEN;
const subscription = environment.OMOI_TEST_SUBSCRIPTION;

async function main() {
  const browser = await launch();
  const report = { ok: false, faults: [], steps: {} };
  try {
    await visit(browser, report);
  } catch (error) {
    report.faults.push(String(error?.stack ?? error));
  } finally {
    await browser.close();
  }
  report.ok = report.faults.length === 0;
  console.log(JSON.stringify(report));
  process.exitCode = report.ok ? 0 : 1;
}

async function visit(browser, report) {
  const context = await browser.newContext({
    viewport: { width: 1400, height: 900 },
    colorScheme: environment.OMOI_TEST_THEME === 'light' ? 'light' : 'dark',
  });
  await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin });
  if (cookie) await context.addCookies([asCookie(cookie)]);
  const { page, faults } = await openGuarded(context, origin, { expectedStatus: cookie ? undefined : 401 });
  page.setDefaultTimeout(15_000);
  report.faults = faults;

  const response = await page.goto(`${origin}/graphiql`);
  faults.push(...policyFaults(response));
  assert.equal(await page.title(), 'OmoiOS GraphiQL');
  await page.locator('.graphiql-query-editor .view-line').first().waitFor();
  report.steps.policy = response.headers()['content-security-policy'];
  try {
    if (!cookie && !token) return void (report.steps.signedOut = await seeHowToSignIn(page));
    if (token) await signIn(page);
    for (const step of [query, docs, completion, mistake, hover, variables, find, format, prettify, copy, history, dialogs, storage]) {
      report.steps[step.name] = await step(page);
    }
    if (subscription) report.steps.subscribe = await subscribe(page);
    report.steps.layout = await layout(page);
  } finally {
    if (environment.OMOI_TEST_SCREENSHOT) await page.screenshot({ path: environment.OMOI_TEST_SCREENSHOT });
  }
}

function asCookie(text) {
  const [name, ...value] = text.split('=');
  return { name, value: value.join('='), url: origin };
}

/** The text of one editor: operation.graphql, variables.json, request-headers.json or response.json. */
function textOf(page, file) {
  return page.evaluate((name) => {
    const models = globalThis.__MONACO?.editor.getModels() ?? [];
    return models.find((model) => model.uri.path.endsWith(name))?.getValue() ?? '';
  }, file);
}

async function until(what, read, holds) {
  const deadline = Date.now() + 15_000;
  let seen;
  do {
    seen = await read();
    if (holds(seen)) return seen;
    await new Promise((resolve) => setTimeout(resolve, 50));
  } while (Date.now() < deadline);
  throw new Error(`Waited in vain for ${what}; last seen: ${JSON.stringify(seen)?.slice(0, 500)}`);
}

const response = (page, holds) => until('an answer', () => textOf(page, 'response.json'), holds);

async function write(page, editor, text) {
  await page.locator(`${editor} .view-lines:visible`).first().click();
  await page.keyboard.press('ControlOrMeta+a');
  await page.keyboard.press('Delete');
  // Pasted, because the editor closes brackets by itself when they are typed.
  await page.evaluate((clip) => navigator.clipboard.writeText(clip), text);
  await page.keyboard.press('ControlOrMeta+v');
  const holds = (wanted) => globalThis.__MONACO.editor.getModels().some((model) => model.getValue() === wanted);
  await until('the pasted text', () => page.evaluate(holds, text), Boolean);
}

async function run(page) {
  await page.getByRole('button', { name: /^Execute query/ }).click();
}

async function seeHowToSignIn(page) {
  const sentence = await page.getByRole('status').textContent();
  assert.match(sentence, /You are not signed in\. Run omoi up/);
  await run(page);
  await response(page, (text) => text.includes('You are not signed in.'));
  return sentence;
}

async function signIn(page) {
  await giveToken(page);
  await page.getByRole('button', { name: 'Re-fetch GraphQL schema' }).click();
  await page.getByRole('status').waitFor({ state: 'detached' });
}

async function giveToken(page) {
  await page.getByRole('button', { name: 'Headers' }).click();
  await write(page, '.graphiql-editor-tool', JSON.stringify({ Authorization: `Bearer ${token}` }));
}

/** Headers belong to a tab, so a new one does not know the token. */
async function openTab(page) {
  await page.getByRole('button', { name: 'New tab' }).click();
  if (token) await giveToken(page);
}

async function query(page) {
  await run(page);
  const answer = JSON.parse(await response(page, (text) => text.includes('"data"')));
  assert.equal(answer.errors, undefined, JSON.stringify(answer.errors));
  return answer;
}

async function docs(page) {
  await page.getByRole('button', { name: 'Show Documentation Explorer' }).click();
  const explorer = page.locator('.graphiql-doc-explorer');
  await explorer.getByText('Root Types').waitFor();
  await explorer.getByRole('link', { name: 'Query' }).first().click();
  await explorer.getByText('viewer').first().waitFor();
  return (await explorer.innerText()).split('\n').slice(0, 6);
}

async function completion(page) {
  await openTab(page);
  await page.locator('.graphiql-query-editor .view-lines').first().click();
  await page.keyboard.type('{ vie');
  const popup = page.locator('.suggest-widget.visible');
  await popup.getByText('viewer').first().waitFor();
  const rows = await popup.locator('.monaco-list-row').allInnerTexts();
  await page.keyboard.press('Enter');
  await until('the completed name', () => textOf(page, 'operation.graphql'), (text) => text.includes('viewer'));
  return rows.slice(0, 5);
}

/** The worker knows the schema, and its underline is drawn. */
async function mistake(page) {
  await write(page, '.graphiql-query-editor', '{ noSuchField }');
  const underline = page.locator('.graphiql-query-editor .squiggly-error');
  await underline.waitFor();
  const image = await underline.evaluate((element) => getComputedStyle(element).backgroundImage);
  assert.match(image, /^url/);
  return true;
}

async function hover(page) {
  await write(page, '.graphiql-query-editor', 'query Twice($first: Int) {\nviewer { kind }\nprojects(first: $first) { nodes { id } } }');
  await page.keyboard.press('ControlOrMeta+Home');
  await page.locator('.graphiql-query-editor .view-line span', { hasText: /^viewer$/ }).last().hover();
  const popup = page.locator('.monaco-hover:visible').first();
  await popup.waitFor();
  return popup.innerText();
}

async function variables(page) {
  await page.getByRole('button', { name: 'Variables' }).click();
  await write(page, '.graphiql-editor-tool', '{"first": 2}');
  await run(page);
  const answer = JSON.parse(await response(page, (text) => text.includes('"nodes"')));
  assert.equal(answer.errors, undefined, JSON.stringify(answer.errors));
  return answer.data.projects.nodes.length;
}

async function find(page) {
  await page.locator('.graphiql-query-editor .view-lines').first().click();
  await page.keyboard.press('ControlOrMeta+f');
  const box = page.locator('.find-widget.visible').getByRole('textbox', { name: 'Find' });
  await box.and(page.locator(':focus')).waitFor();
  await page.keyboard.type('kind');
  await page.locator('.find-widget .matchesCount', { hasText: '1 of 1' }).waitFor({ state: 'attached' });
  await page.keyboard.press('Escape');
  await box.waitFor({ state: 'detached' });
  return true;
}

/** The editor's own formatting happens in a worker, which loads more of our files. */
async function format(page) {
  const read = () => textOf(page, 'operation.graphql');
  const before = await read();
  await page.locator('.graphiql-query-editor .view-lines').first().click();
  await page.keyboard.press('ControlOrMeta+Shift+i');
  await until('a formatted query', read, (text) => text.includes('\n  viewer {\n    kind'));
  await page.keyboard.press('ControlOrMeta+z');
  await until('the query as it was', read, (text) => text === before);
  return true;
}

async function prettify(page) {
  await page.getByRole('button', { name: /^Prettify query/ }).click();
  const read = () => textOf(page, 'operation.graphql');
  return (await until('a pretty query', read, (text) => text.includes('\n  viewer {\n    kind'))).split('\n').length;
}

async function copy(page) {
  await page.getByRole('button', { name: /^Copy query/ }).click();
  const read = () => page.evaluate(() => navigator.clipboard.readText());
  await until('the query in the clipboard', read, (text) => text.includes('viewer'));
  return true;
}

async function history(page) {
  await page.getByRole('button', { name: 'Show History' }).click();
  const items = page.locator('.graphiql-history-item');
  await items.first().waitFor();
  return items.count();
}

async function dialogs(page) {
  await page.getByRole('button', { name: 'Open short keys dialog' }).click();
  await page.getByRole('dialog').getByText('Short Keys').waitFor();
  await page.keyboard.press('Escape');
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  await page.getByRole('button', { name: 'Open settings dialog' }).click();
  const dialog = page.getByRole('dialog');
  for (const name of ['Light', 'Dark', 'System']) await dialog.getByRole('button', { name }).click();
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  return true;
}

/** Nothing that the browser keeps holds the token. */
async function storage(page) {
  const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]));
  assert.ok(kept.includes('viewer'), 'the history is kept');
  assert.ok(!token || !kept.includes(token), 'the token is kept');
  return kept.length;
}

async function subscribe(page) {
  await openTab(page);
  await write(page, '.graphiql-query-editor', subscription);
  await run(page);
  const answer = JSON.parse(await response(page, (text) => text.includes('"data"') || text.includes('"errors"')));
  assert.equal(answer.errors, undefined, JSON.stringify(answer.errors));
  const stop = page.getByRole('button', { name: /^Stop query/ });
  if (await stop.isVisible()) await stop.click();
  await page.getByRole('button', { name: /^Execute query/ }).waitFor();
  await page.getByRole('tab', { name: 'Twice' }).click();
  await page.locator('.graphiql-query-editor .view-line', { hasText: 'Twice' }).waitFor();
  return answer;
}

/** Lines lie below each other and nothing waits for its style: both fail when the policy ate the style attributes. */
async function layout(page) {
  const seen = await page.evaluate(() => ({
    tops: [...document.querySelectorAll('.graphiql-query-editor .view-line')].map((line) => line.getBoundingClientRect().top),
    heights: [...document.querySelectorAll('.graphiql-query-editor .view-line')].map((line) => line.offsetHeight),
    parked: document.querySelectorAll('[data-style]').length,
    emptySheets: [...document.querySelectorAll('style')].filter((style) => style.sheet === null).length,
  }));
  assert.equal(new Set(seen.tops).size, seen.tops.length);
  assert.ok(seen.tops.length > 3 && seen.heights.every((height) => height > 10), JSON.stringify(seen));
  assert.equal(seen.parked, 0);
  assert.equal(seen.emptySheets, 0);
  return seen.tops.length;
}

await main();
