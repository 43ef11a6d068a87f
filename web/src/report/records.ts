// The log lines and events of a report.
import type { Event, LogLine, LogQuery, StringColumn } from "../api";
import { containing, sameId } from "./columns";

/** Log lines or events that match every condition, in the requested order. */
export function searchRecords<T extends LogLine | Event>(
  records: readonly T[],
  attributes: StringColumn,
  textOf: (record: T) => string,
  query: LogQuery,
): T[] {
  const { text, span_id, process_id, role, rank, session_id, step, lane, start_ns, end_ns, level = 0 } = query;
  const wanted = text?.toLowerCase();
  const inAttributes = text === undefined ? null : containing(attributes, text);
  const found = records.filter(
    (record, row) =>
      (!("level" in record) || record.level >= level) &&
      (span_id === undefined || record.span_id === sameId(span_id)) &&
      (process_id === undefined || record.process_id === process_id) &&
      (role === undefined || record.role === role) &&
      (rank === undefined || record.rank === rank) &&
      (session_id === undefined || record.session_id === session_id) &&
      (step === undefined || record.step === step) &&
      (lane === undefined || lane.includes(record.lane_id)) &&
      (start_ns === undefined || record.time_ns >= Number(start_ns)) &&
      (end_ns === undefined || record.time_ns < Number(end_ns)) &&
      (wanted === undefined || textOf(record).toLowerCase().includes(wanted) || inAttributes!(row)),
  );
  const direction = query.newest_first === false ? 1 : -1;
  return found.sort((one, other) => direction * (one.time_ns - other.time_ns)).slice(0, query.limit ?? 200);
}
