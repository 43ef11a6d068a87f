// Queries the server, again when there is new data; the old response is kept until the new one arrives.
import { useEffect, useRef, useState, useSyncExternalStore } from "react";
import { type AnswerOf, type QueryOf, type Route, get, errorText } from "./api";
import { useLive } from "./live";

export interface Query<T> {
  /** The latest response; undefined before the first. After a key change, the old key's response until the new one arrives. */
  data: T | undefined;
  /** An error message; undefined without an error. */
  error: string | undefined;
  /** True until the first response for this key. */
  isLoading: boolean;
}

export interface QueryOptions {
  /** Query again when the run has new data (default true). */
  live?: boolean;
  /** False: do not query at all. */
  enabled?: boolean;
  /** The minimum time between two requests (default 1000 ms); longer after slow responses. */
  everyMs?: number;
  /** Also query at this interval, without new data in the shown run: for data of other runs. */
  pollMs?: number;
  /** False: after a key change, show nothing until the response arrives (default true: keep the old one). */
  keep?: boolean;
}

/** Wait this many times the duration of a request before the next one, so that a large run is not queried nonstop. */
const PATIENCE = 3;

function subscribeToVisibility(listener: () => void): () => void {
  document.addEventListener("visibilitychange", listener);
  return () => document.removeEventListener("visibilitychange", listener);
}

/** Whether the page can be seen. */
export function useIsVisible(): boolean {
  return useSyncExternalStore(subscribeToVisibility, () => !document.hidden);
}

interface Answer<T> {
  key: string;
  data: T | undefined;
  error: string | undefined;
}

/** Queries a route: `const { data } = useAnswer("lanes", { run })`. The route and the query form the key. */
export function useAnswer<R extends Route>(route: R, query: QueryOf<R>, options?: QueryOptions): Query<AnswerOf<R>> {
  return useQuery(`${route} ${keyOf(query)}`, (signal) => get(route, query, signal), options);
}

/** Part of the key of a query, from anything it depends on. */
export function keyOf(query: unknown): string {
  // JSON has no BigInt.
  return JSON.stringify(query, (_, value: unknown) => (typeof value === "bigint" ? String(value) : value));
}

/** Queries data: `const { data } = useQuery(`lanes ${run}`, (signal) => api.lanes({ run }, signal))`.
 *
 * The key must contain everything that `ask` depends on.
 */
export function useQuery<T>(
  key: string,
  ask: (signal: AbortSignal) => Promise<T>,
  { live = true, enabled = true, everyMs = 1000, pollMs, keep = true }: QueryOptions = {},
): Query<T> {
  const { version } = useLive();
  const isVisible = useIsVisible();
  const [answer, setAnswer] = useState<Answer<T>>({ key: "", data: undefined, error: undefined });
  const asking = useRef<{ key: string; controller: AbortController } | null>(null);
  const pace = useRef({ key: "", askedAt: 0, restMs: 0, isWanted: false });
  const latestAsk = useRef(ask);
  latestAsk.current = ask;
  const [turn, setTurn] = useState(0);
  const news = live ? version : 0;

  useEffect(() => {
    if (pollMs === undefined) return undefined;
    const timer = window.setInterval(() => setTurn((count) => count + 1), pollMs);
    return () => window.clearInterval(timer);
  }, [pollMs]);

  useEffect(() => {
    if (!enabled || !isVisible) return undefined;
    const state = pace.current;
    if (asking.current !== null) {
      if (asking.current.key === key) {
        state.isWanted = true;
        return undefined;
      }
      asking.current.controller.abort();
      asking.current = null;
    }
    const isSameKey = state.key === key;
    const wait = isSameKey ? Math.max(0, state.askedAt + Math.max(everyMs, state.restMs) - performance.now()) : 0;
    const timer = window.setTimeout(() => {
      const controller = new AbortController();
      asking.current = { key, controller };
      Object.assign(state, { key, askedAt: performance.now(), isWanted: false });
      const settle = (found: Partial<Answer<T>>) => {
        if (asking.current?.controller !== controller) return;
        asking.current = null;
        state.restMs = (performance.now() - state.askedAt) * PATIENCE;
        setAnswer((old) => ({
          key,
          data: found.error !== undefined && old.key === key ? old.data : found.data,
          error: found.error,
        }));
        if (state.isWanted) setTurn((count) => count + 1);
      };
      latestAsk.current(controller.signal).then(
        (data) => settle({ data }),
        (error: unknown) => settle({ error: errorText(error) }),
      );
    }, wait);
    return () => window.clearTimeout(timer);
  }, [key, news, enabled, isVisible, everyMs, turn]);

  useEffect(
    () => () => {
      asking.current?.controller.abort();
      asking.current = null;
    },
    [],
  );

  const isCurrent = answer.key === key;
  return {
    data: isCurrent || keep ? answer.data : undefined,
    error: isCurrent ? answer.error : undefined,
    isLoading: enabled && !isCurrent,
  };
}
