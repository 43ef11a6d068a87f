import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// Built into the Python package; the server serves it from there.
export default defineConfig({
  plugins: [react()],
  base: "./",
  build: { outDir: "../src/rl_insight/server/static", emptyOutDir: true, chunkSizeWarningLimit: 900 },
  server: { proxy: { "/api": "http://127.0.0.1:18080" } },
  test: { environment: "node" },
});
