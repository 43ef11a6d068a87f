import type { LogQuery } from "../../api";
import { formatClock, formatMoment } from "../../units";
import { useUrlState } from "../../url";
import { useWindow } from "../../window";

/** A condition of a link, which can be removed. */
export interface LogFilter {
  name: string;
  /** Empty for none. */
  value: string;
  clear: () => void;
}

export type LogFilters = ReturnType<typeof useLogFilters>;

/** Which lines to show, as in the address. */
export function useLogFilters(run: string) {
  const [search, setSearch] = useUrlState("search", "");
  const [level, setLevel] = useUrlState("level", "0");
  const session = useFilter("session");
  const span = useFilter("span");
  const process = useFilter("process");
  const role = useFilter("role");
  const rank = useFilter("rank");
  const step = useFilter("step");
  const { time, filter, setTime } = useTimeFilter(run);
  const query: LogQuery = {
    run,
    level: Number(level) || undefined,
    text: search.trim() || undefined,
    session_id: session.value || undefined,
    span_id: /^[0-9a-f]{1,16}$/i.test(span.value) ? span.value : undefined,
    process_id: process.value || undefined,
    role: role.value || undefined,
    rank: /^\d+$/.test(rank.value) ? Number(rank.value) : undefined,
    step: /^-?\d+$/.test(step.value) ? Number(step.value) : undefined,
    start_ns: time === null ? undefined : Math.round(time.start_ns),
    end_ns: time === null ? undefined : Math.round(time.end_ns),
  };
  const filters = [session, span, process, role, rank, step, filter].filter(({ value }) => value !== "");
  const isFiltered = time !== null || search !== "" || level !== "0" || filters.length > 0;
  return { search, setSearch, level, setLevel, query, filters, isFiltered, setTime };
}

function useFilter(name: string): LogFilter {
  const [value, setValue] = useUrlState(name, "");
  return { name, value, clear: () => setValue("") };
}

/** The time range of the address; without one, the window that all views share. */
function useTimeFilter(run: string) {
  const [from, setFrom] = useUrlState("from", 0);
  const [to, setTo] = useUrlState("to", 0);
  const { bounds } = useWindow(run);
  const isSet = to > from;
  const filter: LogFilter = {
    name: "time",
    value: isSet ? `${formatMoment(from * 1e9)} – ${formatClock(to * 1e9)}` : "",
    clear: () => {
      setFrom(0);
      setTo(0);
    },
  };
  const setTime = (start: number, end: number) => {
    setFrom(start, "push");
    setTo(end);
  };
  return { time: isSet ? { start_ns: from * 1e9, end_ns: to * 1e9 } : bounds, filter, setTime };
}
