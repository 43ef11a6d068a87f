import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./App";
import "./styles.css";
import { apply } from "./theme";
import { preloadViews } from "./views";

const PRELOAD_AFTER_MS = 1500;

apply();
const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <App />
    </StrictMode>,
  );
  window.setTimeout(preloadViews, PRELOAD_AFTER_MS);
}
