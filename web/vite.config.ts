import react from "@vitejs/plugin-react";
import { type Plugin, build } from "vite";
import { defineConfig } from "vitest/config";

// Built into the Python package; the server serves it from there.
const STATIC = "../src/rl_insight/server/static";

export default defineConfig({
  plugins: [react(), reportToo()],
  base: "./",
  // The licenses of React and the others ask for their notices wherever the bundle goes.
  build: {
    outDir: STATIC,
    emptyOutDir: true,
    chunkSizeWarningLimit: 900,
    license: { fileName: "third-party-licenses.md" },
  },
  server: { proxy: { "/api": "http://127.0.0.1:18080" } },
  test: { environment: "node" },
});

/** Builds the page of reports after the live one: one script and one style sheet, which Python puts into each report. */
function reportToo(): Plugin {
  let place = STATIC;
  return {
    name: "report",
    apply: "build",
    configResolved: (config) => {
      place = config.build.outDir;
    },
    closeBundle: async () => {
      await build({
        configFile: false,
        plugins: [react()],
        publicDir: false,
        logLevel: "warn",
        build: {
          outDir: `${place}/report`,
          emptyOutDir: true,
          cssCodeSplit: false,
          modulePreload: false,
          assetsInlineLimit: Number.MAX_SAFE_INTEGER,
          chunkSizeWarningLimit: 900,
          rolldownOptions: {
            input: "src/report/main.tsx",
            output: {
              format: "es",
              codeSplitting: false,
              entryFileNames: "report.js",
              assetFileNames: "report[extname]",
            },
          },
        },
      });
    },
  };
}
