import { useEffect, useMemo, useState } from "react";
import { type Span, api } from "../api";
import { formatCount } from "../units";
import { useQuery } from "../useQuery";

const MAX_HITS = 1000;

export interface Hits {
  ids: ReadonlySet<string>;
  count: number;
  text: string;
  move: (distance: number) => Span | null;
}

const NO_IDS: ReadonlySet<string> = new Set();

/** The spans that a search finds, and the place among them. */
export function useHits(run: string, search: string): Hits {
  const [place, setPlace] = useState(-1);
  const { data, isLoading } = useQuery(
    `hits ${run} ${search}`,
    async (signal) => (await api.spans({ run, text: search, limit: MAX_HITS }, signal)).reverse(),
    { enabled: search !== "", live: false, keep: false },
  );
  useEffect(() => setPlace(-1), [run, search]);
  const found = search === "" ? [] : (data ?? []);
  const ids = useMemo(
    () => (search === "" || data === undefined ? NO_IDS : new Set(data.map((span) => span.span_id))),
    [data, search],
  );
  const move = (distance: number) => {
    if (found.length === 0) return null;
    // The first step forward goes to the newest, which is likely in view.
    const next = place < 0 ? found.length - 1 : (place + distance + found.length) % found.length;
    setPlace(next);
    return found[next] ?? null;
  };
  const total = found.length >= MAX_HITS ? `the newest ${formatCount(MAX_HITS)}` : formatCount(found.length);
  const text = isLoading
    ? "…"
    : found.length === 0
      ? "no hits"
      : place < 0
        ? `${total} hits`
        : `${place + 1} of ${total}`;
  return { ids, count: found.length, text, move };
}
