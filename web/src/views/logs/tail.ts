// The newest log lines; after the first response only new ones are requested.
import { useRef } from "react";
import { type LogLine, type LogQuery, api } from "../../api";
import { useQuery } from "../../useQuery";

/** Lines of other processes may arrive late: this much is requested again. */
const OVERLAP_NS = 3e9;
const PAGE = 300;

export interface LogTail {
  /** The newest first. */
  lines: readonly LogLine[];
  /** True if there are older lines that are not loaded. */
  hasMore: boolean;
  error: string | undefined;
  isLoading: boolean;
}

export function useLogTail(query: LogQuery, limit: number): LogTail {
  const key = `logs ${limit} ${JSON.stringify(query)}`;
  const known = useRef<{ key: string; lines: readonly LogLine[] }>({ key: "", lines: [] });
  const { data, error, isLoading } = useQuery(
    key,
    async (signal) => {
      const old = known.current.key === key ? known.current.lines : [];
      const newest = old[0];
      const found =
        newest === undefined
          ? await api.logs({ ...query, limit }, signal)
          : await api.logs(
              {
                ...query,
                start_ns: Math.max(
                  query.start_ns === undefined ? 0 : Number(query.start_ns),
                  newest.time_ns - OVERLAP_NS,
                ),
                limit: Math.min(limit, PAGE),
              },
              signal,
            );
      const isGap =
        newest !== undefined &&
        found.length === Math.min(limit, PAGE) &&
        found.every((line) => line.time_ns > newest.time_ns);
      const lines = isGap ? await api.logs({ ...query, limit }, signal) : mergeLines(found, old, limit);
      known.current = { key, lines };
      return lines;
    },
    { everyMs: 1500 },
  );
  const lines = data ?? NONE;
  return { lines, hasMore: lines.length >= limit, error, isLoading };
}

const NONE: readonly LogLine[] = [];

/** Identifies a line; two lines with the same key are one line requested twice. */
export function lineKey(line: LogLine): string {
  return `${line.time_ns} ${line.process_id} ${line.level} ${line.logger ?? ""} ${line.span_id ?? ""} ${line.message}`;
}

/** Merges two lists, newest first, without duplicates. */
export function mergeLines(found: readonly LogLine[], old: readonly LogLine[], most: number): LogLine[] {
  const seen = new Set<string>();
  const merged = [...found, ...old].filter((line) => {
    const key = lineKey(line);
    if (seen.has(key)) return false;
    seen.add(key);
    return true;
  });
  return merged.sort((one, other) => other.time_ns - one.time_ns).slice(0, most);
}
