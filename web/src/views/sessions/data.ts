// The queries of the sessions view: a window of the table, and a sample for its statistics.
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

/** The fields that the statistics need. */
export type Sample = Pick<
  Session,
  | "session_id"
  | "status"
  | "step"
  | "submit_ts"
  | "total_s"
  | "queue_wait_s"
  | "runner_wait_s"
  | "post_wait_s"
  | "phase_seconds"
>;

const SAMPLE = 4000;
/** A report contains all of its sessions. */
const WHOLE = 1e9;
const SLOWEST = 30;

export interface SessionSample {
  /** Finished sessions: all of them, or an even sample of the entire run. */
  samples: readonly Sample[];
  /** The slowest sessions, which a sample must include. */
  slowest: readonly Sample[];
  /** Whether there are more sessions than sampled. */
  isPart: boolean;
}

/** Finished sessions that match a search, for statistics; undefined while loading. */
export function useSessionSample(run: string, search: SessionConditions): SessionSample | undefined {
  const key = `sample ${run} ${JSON.stringify(search)}`;
  const { data } = useQuery(
    key,
    async (signal) => {
      const most = reportFacts() === null ? SAMPLE : WHOLE;
      const ask = (order: string, limit: number) =>
        api.sessions({ run, ...search, order, descending: true, limit, detail: "brief" }, signal);
      const { sessions, total } = await ask(reportFacts() === null ? "sample" : "finalized_ts", most);
      const samples = finished(sessions);
      const slowest = total <= most ? NONE : finished((await ask("total_s", SLOWEST)).sessions);
      return { samples, slowest, isPart: total > most };
    },
    { everyMs: 10_000, keep: false },
  );
  return data;
}

const NONE: readonly Sample[] = [];

/** The fields of finished sessions that the statistics need, by submission. */
export function finished(sessions: readonly Session[]): Sample[] {
  return sessions
    .filter((session) => session.total_s !== null && session.total_s !== undefined)
    .map(({ session_id, status, step, submit_ts, total_s, queue_wait_s, runner_wait_s, post_wait_s, phase_seconds }) =>
      definite({
        session_id,
        status,
        step,
        submit_ts,
        total_s,
        queue_wait_s,
        runner_wait_s,
        post_wait_s,
        phase_seconds,
      }),
    )
    .sort((one, other) => (one.submit_ts ?? 0) - (other.submit_ts ?? 0));
}

function definite(sample: { [Key in keyof Sample]: Sample[Key] | undefined } & { session_id: string }): Sample {
  return Object.fromEntries(Object.entries(sample).filter(([, value]) => value !== undefined)) as Sample;
}
