// How the page becomes static files: everything same-origin, nothing inline, no source maps.
import { defineConfig } from 'vite';

export default defineConfig({
  base: '/graphiql/',
  build: {
    assetsDir: 'assets',
    // A data: font or image would need a wider policy.
    assetsInlineLimit: 0,
    // One sheet, so that the rules keep the order in which they were written.
    cssCodeSplit: false,
    modulePreload: { polyfill: false },
    // Whoever ships the built page ships its libraries' licences with it.
    license: { fileName: 'licenses.md' },
    sourcemap: false,
    target: 'es2022',
    rolldownOptions: {
      onwarn(warning, warn) {
        // "use client" and its like speak to other bundlers.
        if (warning.code !== 'MODULE_LEVEL_DIRECTIVE') warn(warning);
      },
    },
    // The editor is one large chunk, loaded when the page is.
    chunkSizeWarningLimit: 5000,
  },
  worker: { format: 'es' },
});
