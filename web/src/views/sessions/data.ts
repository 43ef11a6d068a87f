// The queries of the sessions view: a window of the table, and a sample for its chart.
import { useCallback, useState } from "react";
import { type Session, type SessionConditions, api } from "../../api";
import type { Sort } from "../../components/Table";
import { reportFacts } from "../../reportFacts";
import { useQuery } from "../../useQuery";

/** Rows are loaded in multiples of this, so that a little scrolling needs no request. */
const ALIGNED = 25;

export interface SessionWindow {
  total: number;
  rowAt: (index: number) => Session | undefined;
  /** The loaded sessions between two indexes. */
  between: (first: number, last: number) => Session[];
  visible: readonly [number, number];
  onVisible: (first: number, last: number) => void;
  error: string | undefined;
  isLoading: boolean;
}

/** Loads the visible part of the table, however long the table is. */
export function useSessionWindow(run: string, search: SessionConditions, sort: Sort): SessionWindow {
  const [visible, setVisible] = useState<readonly [number, number]>([0, 40]);
  const offset = Math.floor(visible[0] / ALIGNED) * ALIGNED;
  const limit = (Math.ceil((visible[1] - offset) / ALIGNED) + 1) * ALIGNED;
  const query = {
    run,
    ...search,
    order: sort.key,
    descending: sort.descending,
    limit,
    offset,
    detail: "phases" as const,
  };
  const { data, error, isLoading } = useQuery(
    `sessions ${JSON.stringify(query)}`,
    async (signal) => ({ offset, page: await api.sessions(query, signal) }),
    { everyMs: 2000 },
  );
  const onVisible = useCallback((first: number, last: number) => setVisible([first, last]), []);
  const rowAt = (index: number) => (data === undefined ? undefined : data.page.sessions[index - data.offset]);
  return {
    total: data?.page.total ?? 0,
    rowAt,
    between: (first, last) =>
      data?.page.sessions.slice(Math.max(0, first - data.offset), Math.max(0, last - data.offset)) ?? [],
    visible,
    onVisible,
    error,
    isLoading,
  };
}

/** The fields that a point in the chart needs. */
export type Sample = Pick<Session, "session_id" | "status"> & { submit_ts: number; total_s: number };

const SAMPLE = 4000;
/** A report contains all of its sessions. */
const WHOLE = 1e9;
const SLOWEST = 30;

/** Finished sessions that match a search, by submission: all, or an even sample of them plus the slowest. */
export function useSessionSample(run: string, search: SessionConditions): readonly Sample[] | undefined {
  const key = `sample ${run} ${JSON.stringify(search)}`;
  const { data } = useQuery(
    key,
    async (signal) => {
      const most = reportFacts() === null ? SAMPLE : WHOLE;
      const ask = (order: string, limit: number) =>
        api.sessions({ run, ...search, order, descending: true, limit, detail: "brief" }, signal);
      const { sessions, total } = await ask(reportFacts() === null ? "sample" : "finalized_ts", most);
      return finished(total <= most ? sessions : [...sessions, ...(await ask("total_s", SLOWEST)).sessions]);
    },
    { everyMs: 10_000, keep: false },
  );
  return data;
}

/** Each finished session once, by submission. */
export function finished(sessions: readonly Session[]): Sample[] {
  const found = new Map<string, Sample>();
  for (const { session_id, status, submit_ts, total_s } of sessions)
    if (submit_ts != null && total_s != null)
      found.set(session_id, { session_id, submit_ts, total_s, ...(status === undefined ? {} : { status }) });
  return [...found.values()].sort((one, other) => one.submit_ts - other.submit_ts);
}
