// Switch between dark and light: the system's choice until the user chooses here.
import { useSyncExternalStore } from "react";

export type Theme = "dark" | "light";

const STORED = "rl-insight-theme";
const listeners = new Set<() => void>();
const system = window.matchMedia("(prefers-color-scheme: dark)");
system.addEventListener("change", apply);

let chosen = stored();
// Drawing reads this and not `system.matches`: reading that right after a change makes Chromium drop the event.
let shown: Theme = "light";

function stored(): Theme | null {
  try {
    const value = window.localStorage.getItem(STORED);
    return value === "dark" || value === "light" ? value : null;
  } catch {
    return null; // storage may be forbidden; then the system's choice applies
  }
}

function store(value: Theme | null): void {
  try {
    if (value === null) window.localStorage.removeItem(STORED);
    else window.localStorage.setItem(STORED, value);
  } catch {
    // Storage may be forbidden; then the choice lasts until the page is closed.
  }
}

function systemTheme(): Theme {
  return system.matches ? "dark" : "light";
}

/** Sets the theme on the document; called before the first paint. */
export function apply(): void {
  shown = chosen ?? systemTheme();
  document.documentElement.dataset["theme"] = shown;
  for (const listener of listeners) listener();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function toggle(): void {
  const next: Theme = shown === "dark" ? "light" : "dark";
  chosen = next === systemTheme() ? null : next;
  store(chosen);
  apply();
}

/** The theme, and a function that switches it. Choosing the system's theme follows the system again. */
export function useTheme(): [Theme, () => void] {
  return [useSyncExternalStore(subscribe, () => shown), toggle];
}

/** The value of a design token such as `--text-muted`, for drawing on a canvas. */
export function token(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
