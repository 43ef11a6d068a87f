// All state of a view is in the query part of the address: `?view=timeline&run=...&search=...`.
// So a link shows everyone the same thing, and back and forward work.
import { useCallback, useMemo, useSyncExternalStore } from "react";

export type UrlValue = string | number | boolean | readonly string[];
/** `push` adds an entry to the browser's history; `replace` does not, for frequent changes (zoom, search text). */
export type UrlMode = "push" | "replace";

/** State that is kept when the view changes; the window belongs to one run. */
const SHARED_KEYS = ["run", "window"];

const listeners = new Set<() => void>();

/** The query, if the browser refuses to write it to the address, as some do for a file opened from disk. */
let unwritten: string | null = null;

function currentSearch(): string {
  return unwritten ?? window.location.search;
}

function notify(): void {
  for (const listener of listeners) listener();
}

function subscribe(listener: () => void): () => void {
  if (listeners.size === 0) window.addEventListener("popstate", notify);
  listeners.add(listener);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) window.removeEventListener("popstate", notify);
  };
}

/** Reads a value from a query; returns the fallback if the text does not match its type. */
export function decode<T extends UrlValue>(query: URLSearchParams, key: string, fallback: T): T {
  if (Array.isArray(fallback)) {
    return (query.has(key) ? query.getAll(key).filter((text) => text !== "") : fallback) as unknown as T;
  }
  const text = query.get(key);
  if (text === null) return fallback;
  if (typeof fallback === "boolean") return (text === "1" || text === "true") as T;
  if (typeof fallback === "number") {
    const value = Number(text);
    return (text.trim() !== "" && Number.isFinite(value) ? value : fallback) as T;
  }
  return text as T;
}

/** Returns a query with one value changed; a value equal to the fallback is omitted, so addresses stay short. */
export function encode(query: URLSearchParams, key: string, value: UrlValue, fallback: UrlValue): URLSearchParams {
  const changed = new URLSearchParams(query);
  changed.delete(key);
  if (sameValue(value, fallback)) return changed;
  if (typeof value === "object") {
    // An empty list that is not the fallback must be distinguishable from a missing one.
    for (const text of value.length === 0 ? [""] : value) changed.append(key, text);
  } else {
    changed.set(key, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
  }
  return changed;
}

function sameValue(one: UrlValue, other: UrlValue): boolean {
  if (typeof one === "object" && typeof other === "object") {
    return one.length === other.length && one.every((text, index) => text === other[index]);
  }
  return one === other;
}

function write(query: URLSearchParams, mode: UrlMode): void {
  const text = query.toString();
  const address = text === "" ? window.location.pathname : `?${text}`;
  if (text === currentSearch().slice(1)) return;
  try {
    if (mode === "push") window.history.pushState(null, "", address);
    else window.history.replaceState(null, "", address);
  } catch {
    unwritten = `?${text}`;
  }
  notify();
}

type Setter<T> = (value: T, mode?: UrlMode) => void;

/** A piece of view state that lives in the address: `const [search, setSearch] = useUrlState("search", "")`.
 *
 * With a list of allowed values, others give the fallback:
 * `const [color, setColor] = useUrlState("color", "name", ["name", "status", "step"])`.
 */
export function useUrlState<T extends string>(key: string, fallback: T, allowed: readonly T[]): [T, Setter<T>];
export function useUrlState(key: string, fallback: string): [string, Setter<string>];
export function useUrlState(key: string, fallback: number): [number, Setter<number>];
export function useUrlState(key: string, fallback: boolean): [boolean, Setter<boolean>];
export function useUrlState(key: string, fallback: readonly string[]): [readonly string[], Setter<readonly string[]>];
export function useUrlState(key: string, fallback: UrlValue, allowed?: readonly string[]): [never, Setter<UrlValue>] {
  const search = useSyncExternalStore(subscribe, currentSearch);
  // Lists are new objects on each render, so compare them as strings.
  const fallbackText = JSON.stringify(fallback);
  const value = useMemo(
    () => decode(new URLSearchParams(search), key, JSON.parse(fallbackText) as UrlValue),
    [search, key, fallbackText],
  );
  const set = useCallback(
    (next: UrlValue, mode: UrlMode = "replace") => {
      const query = new URLSearchParams(currentSearch());
      write(encode(query, key, next, JSON.parse(fallbackText) as UrlValue), mode);
    },
    [key, fallbackText],
  );
  const isAllowed = allowed === undefined || (typeof value === "string" && allowed.includes(value));
  return [(isAllowed ? value : fallback) as never, set];
}

export type LinkState = Record<string, string | number | boolean | readonly string[] | null | undefined>;

/** Returns the address of a view with some state; the run is kept unless the state has another. */
export function linkTo(view: string, state: LinkState = {}, search: string = currentSearch()): string {
  const old = new URLSearchParams(search);
  const query = new URLSearchParams({ view });
  const isSameRun = state["run"] === undefined || state["run"] === old.get("run");
  for (const key of isSameRun ? SHARED_KEYS : []) {
    const kept = old.get(key);
    if (kept !== null) query.set(key, kept);
  }
  for (const [key, value] of Object.entries(state)) {
    if (value === null || value === undefined) query.delete(key);
    else if (typeof value === "object") for (const text of value) query.append(key, text);
    else query.set(key, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
  }
  return `?${query.toString()}`;
}

/** Goes to an address made by `linkTo`. */
export function navigate(address: string): void {
  write(new URLSearchParams(address), "push");
}
