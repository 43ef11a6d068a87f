import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./App";
import "./styles.css";
import { apply } from "./theme";

const RELOADED = "rl-insight-reloaded";
const RELOAD_PAUSE_MS = 60_000;

// The server was upgraded while the page was open: the parts that it would load now have other names. Once, not forever.
window.addEventListener("vite:preloadError", (event) => {
  const last = Number(window.sessionStorage.getItem(RELOADED) ?? 0);
  if (Date.now() - last < RELOAD_PAUSE_MS) return;
  event.preventDefault();
  window.sessionStorage.setItem(RELOADED, String(Date.now()));
  window.location.reload();
});

apply();
const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <App />
    </StrictMode>,
  );
}
