import type { LogLine } from "../api";

export interface LineGroup {
  /** The newest. */
  line: LogLine;
  count: number;
  /** The number of processes that logged it. */
  places: number;
}

/** Lines that differ only in numbers are the same message. */
function messageOf(line: LogLine): string {
  return `${line.level} ${line.logger} ${line.message.replace(/\d+/g, "#")}`;
}

/** The lines in order, with a burst of one message as one entry: its first line and a count. */
export function foldLines(lines: readonly LogLine[]): LineGroup[] {
  const folded: LineGroup[] = [];
  let message = "";
  let processes = new Set<string>();
  for (const line of lines) {
    const last = folded.at(-1);
    const next = messageOf(line);
    if (last === undefined || next !== message) {
      processes = new Set([line.process_id]);
      folded.push({ line, count: 1, places: 1 });
    } else {
      processes.add(line.process_id);
      folded[folded.length - 1] = { line: last.line, count: last.count + 1, places: processes.size };
    }
    message = next;
  }
  return folded;
}

/** The newest line of each message, with a count: a burst of one message must not hide the others. */
export function groupLines(lines: readonly LogLine[]): LineGroup[] {
  const found = new Map<string, { line: LogLine; count: number; processes: Set<string> }>();
  for (const line of lines) {
    const key = messageOf(line);
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
