// What GraphiQL keeps in the browser: everything but request headers, which may hold a token.
import type { Storage } from '@graphiql/toolkit';

const PREFIX = 'graphiql:';
const HISTORY_KEYS = new Set([`${PREFIX}queries`, `${PREFIX}favorites`]);

export const storage: Storage = {
  getItem: (key) => localStorage.getItem(key),
  // The history writes headers down even where `shouldPersistHeaders` is off.
  setItem: (key, value) => localStorage.setItem(key, HISTORY_KEYS.has(key) ? withoutHeaders(value) : value),
  removeItem: (key) => localStorage.removeItem(key),
  clear: () => ownKeys().forEach((key) => localStorage.removeItem(key)),
  get length() {
    return ownKeys().length;
  },
};

function ownKeys(): string[] {
  return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
}

function withoutHeaders(json: string): string {
  const parsed: unknown = JSON.parse(json);
  return JSON.stringify(parsed, (key: string, value: unknown) => (key === 'headers' ? undefined : value));
}
