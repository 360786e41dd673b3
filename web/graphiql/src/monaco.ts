// Monaco's environment: its workers from our own files, its HTML through our policy.
import type { Environment, ITrustedTypePolicyOptions } from 'monaco-editor';
import EditorWorker from 'monaco-editor/esm/vs/editor/editor.worker.js?worker';
import JsonWorker from 'monaco-editor/esm/vs/language/json/json.worker.js?worker';
import GraphQLWorker from 'monaco-graphql/esm/graphql.worker.js?worker';
import { parkStyles } from './policy';

export const environment: Environment = {
  getWorker(_id: string, label: string): Worker {
    if (label === 'json') return new JsonWorker();
    if (label === 'graphql') return new GraphQLWorker();
    return new EditorWorker();
  },
  createTrustedTypesPolicy(name: string, options?: ITrustedTypePolicyOptions) {
    return { ...options, name, createHTML: (html: string) => parkStyles(options?.createHTML?.(html) ?? html) };
  },
};
