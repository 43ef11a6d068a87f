// Dark or light: the system's choice until somebody chooses here.
import { useCallback, useSyncExternalStore } from "react";

export type Theme = "dark" | "light";

const STORED = "rl-insight-theme";
const listeners = new Set<() => void>();
const system = window.matchMedia("(prefers-color-scheme: dark)");
system.addEventListener("change", () => apply());

function stored(): Theme | null {
  try {
    const value = window.localStorage.getItem(STORED);
    return value === "dark" || value === "light" ? value : null;
  } catch {
    return null; // storage may be forbidden; the system's choice then holds
  }
}

function current(): Theme {
  return stored() ?? (system.matches ? "dark" : "light");
}

/** Sets the theme on the document; called before the first paint. */
export function apply(): void {
  document.documentElement.dataset["theme"] = current();
  for (const listener of listeners) listener();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** The theme, and a function that changes to the other. Choosing what the system has follows the system again. */
export function useTheme(): [Theme, () => void] {
  const theme = useSyncExternalStore(subscribe, current);
  const toggle = useCallback(() => {
    const next: Theme = current() === "dark" ? "light" : "dark";
    try {
      if (next === (system.matches ? "dark" : "light")) window.localStorage.removeItem(STORED);
      else window.localStorage.setItem(STORED, next);
    } catch {
      document.documentElement.dataset["theme"] = next;
      return;
    }
    apply();
  }, []);
  return [theme, toggle];
}

/** The value of a design token such as `--text-muted`, for drawing on a canvas. */
export function token(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
