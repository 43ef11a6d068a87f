import type { LogLine } from "../api";
import { formatClock, formatLevel, shorten } from "../units";

const LONGEST = 4000;

/** The class that colors a log level. */
export function levelClass(level: number): string {
  return level >= 40 ? "bad" : level >= 30 ? "warning" : "muted";
}

/** A list of log lines in full. */
export function LogLines({ lines }: { lines: readonly LogLine[] }) {
  return (
    <>
      {lines.map((line, index) => (
        <div key={index} className="side-line">
          <span className="mono muted">{formatClock(line.time_ns, true)}</span>{" "}
          <span className={`mono ${levelClass(line.level)}`}>{formatLevel(line.level)}</span>{" "}
          {shorten(line.message, LONGEST)}
        </div>
      ))}
    </>
  );
}
