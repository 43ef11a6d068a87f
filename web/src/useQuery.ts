// Asks the server and keeps asking while there is news; the old answer stays until the new one is here.
import { useEffect, useRef, useState, useSyncExternalStore } from "react";
import { type AnswerOf, type QueryOf, type Route, get } from "./api";
import { useLive } from "./live";

export interface Query<T> {
  /** The latest answer; undefined before the first. With another key, the old key's answer until the new one comes. */
  data: T | undefined;
  /** A sentence; undefined while all is well. */
  error: string | undefined;
  /** True while an answer for this key is awaited for the first time. */
  isLoading: boolean;
}

export interface QueryOptions {
  /** Ask again when the run has something new (default true). */
  live?: boolean;
  /** False: do not ask at all. */
  enabled?: boolean;
  /** At least this long between two questions (default 1000 ms); slow answers stretch it further. */
  everyMs?: number;
  /** Ask again after this long also without news of the run on show: for what other runs change. */
  pollMs?: number;
  /** False: another key shows nothing until its answer is here (default true: the old answer stays). */
  keep?: boolean;
}

/** A share of the time at most is spent waiting for one query, so that a large run is not asked without pause. */
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

/** Asks a route: `const { data } = useAnswer("lanes", { run })`. All that is asked for makes the key of the question. */
export function useAnswer<R extends Route>(route: R, query: QueryOf<R>, options?: QueryOptions): Query<AnswerOf<R>> {
  // JSON has no BigInt.
  const key = JSON.stringify(query, (_, value: unknown) => (typeof value === "bigint" ? String(value) : value));
  return useQuery(`${route} ${key}`, (signal) => get(route, query, signal), options);
}

/** Asks for data: `const { data } = useQuery(`lanes ${run}`, (signal) => api.lanes({ run }, signal))`.
 *
 * The key says what is asked for: everything that `ask` depends on must be in it.
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
        (error: unknown) => settle({ error: error instanceof Error ? error.message : String(error) }),
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
