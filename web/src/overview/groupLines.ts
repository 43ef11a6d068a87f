import type { LogLine } from "../api";

export interface LineGroup {
  /** The newest. */
  line: LogLine;
  count: number;
  /** How many processes logged it. */
  places: number;
}

/** The newest line of each message, with how often it came: a burst of one message must not hide the others. */
export function groupLines(lines: readonly LogLine[]): LineGroup[] {
  const found = new Map<string, { line: LogLine; count: number; processes: Set<string> }>();
  for (const line of lines) {
    const key = `${line.level} ${line.logger} ${line.message.replace(/\d+/g, "#")}`;
    const known = found.get(key);
    if (known === undefined) found.set(key, { line, count: 1, processes: new Set([line.process_id]) });
    else {
      known.count += 1;
      known.processes.add(line.process_id);
    }
  }
  return [...found.values()]
    .map(({ line, count, processes }) => ({ line, count, places: processes.size }))
    .sort((one, other) => other.line.level - one.line.level || other.line.time_ns - one.line.time_ns);
}
