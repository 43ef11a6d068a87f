// What the sessions view asks for: a window of the table, and a sample for its statistics.
import { useCallback, useRef, useState } from "react";
import { type Session, api } from "../../api";
import type { Sort } from "../../components/Table";
import { reportFacts } from "../../reportFacts";
import { useQuery } from "../../useQuery";
import type { SessionSearch } from "./search";

/** What is loaded begins and ends at multiples of this, so that a little scrolling asks for nothing. */
const ALIGNED = 25;

export interface SessionWindow {
  total: number;
  rowAt: (index: number) => Session | undefined;
  /** The sessions between two places, as far as they are loaded. */
  between: (first: number, last: number) => Session[];
  visible: readonly [number, number];
  onVisible: (first: number, last: number) => void;
  error: string | undefined;
  isLoading: boolean;
}

/** Loads the part of the table that is in view, however long the table is. */
export function useSessionWindow(run: string, search: SessionSearch, sort: Sort): SessionWindow {
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

/** What the statistics need of a session. */
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

const NEWS = 150;
const SAMPLE = { first: 2000, most: 4000 };
/** A report has all of its sessions at hand. */
const WHOLE = { first: 1e9, most: 1e9 };
const SLOWEST = 30;

export interface SessionSample {
  /** Of the latest finished sessions: all of them where not too many end at once. */
  samples: readonly Sample[];
  /** The slowest of all: what a sample must not miss. */
  slowest: readonly Sample[];
}

/** Finished sessions that fit a search, for statistics. After the first answer only the latest are asked for. */
export function useSessionSample(run: string, search: SessionSearch): SessionSample {
  const key = `sample ${run} ${JSON.stringify(search)}`;
  const known = useRef<{ key: string; samples: Map<string, Sample> }>({ key: "", samples: new Map() });
  const { data } = useQuery(
    key,
    async (signal) => {
      const { first, most } = reportFacts() === null ? SAMPLE : WHOLE;
      const samples = known.current.key === key ? known.current.samples : new Map<string, Sample>();
      const ask = async (order: string, limit: number) =>
        (await api.sessions({ run, ...search, order, descending: true, limit, detail: "brief" }, signal)).sessions;
      const merged = merge(samples, await ask("finalized_ts", samples.size === 0 ? first : NEWS), most);
      known.current = { key, samples: merged };
      const slowest = merged.size < first ? NONE : [...merge(new Map(), await ask("total_s", SLOWEST)).values()];
      return { samples: [...merged.values()], slowest };
    },
    { everyMs: 5000, keep: false },
  );
  return data ?? EMPTY;
}

const NONE: readonly Sample[] = [];
const EMPTY: SessionSample = { samples: NONE, slowest: NONE };

/** Adds new sessions, newest last, and forgets the oldest beyond a bound. */
export function merge(
  known: ReadonlyMap<string, Sample>,
  latest: readonly Session[],
  most: number = SAMPLE.most,
): Map<string, Sample> {
  const merged = new Map(known);
  for (const session of [...latest].reverse()) {
    if (session.total_s === null || session.total_s === undefined) continue;
    const { session_id, status, step, submit_ts, total_s, queue_wait_s, runner_wait_s, post_wait_s, phase_seconds } =
      session;
    merged.delete(session_id);
    merged.set(
      session_id,
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
    );
  }
  for (const id of merged.keys()) {
    if (merged.size <= most) break;
    merged.delete(id);
  }
  return merged;
}

function definite(sample: { [Key in keyof Sample]: Sample[Key] | undefined } & { session_id: string }): Sample {
  return Object.fromEntries(Object.entries(sample).filter(([, value]) => value !== undefined)) as Sample;
}
