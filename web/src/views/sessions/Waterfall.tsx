import type { Event, Session, Span } from "../../api";
import { ViewLink } from "../../components/ViewLink";
import { colorOfName } from "../../colors";
import { formatClock, formatDuration, formatSeconds, shorten } from "../../units";
import { timelineSpan } from "../links";
import { extentOf, ticks } from "./gantt";

interface Props {
  session: Session;
  spans: readonly Span[];
  events: readonly Event[];
  now: number;
}

const MOST_SPANS = 300;
const MARKS = [
  ["submit_ts", "submitted"],
  ["enqueue_ts", "enqueued"],
  ["wait_return_ts", "consumed"],
  ["finalized_ts", "finalized"],
] as const;

/** A session from its submission to its end: one line per span, with marks and events at the top. */
export function Waterfall({ session, spans, events, now }: Props) {
  const [from, to] = extentWith(session, spans, now);
  const share = (seconds: number) => `${((seconds - from) / (to - from || 1)) * 100}%`;
  const marks = MARKS.flatMap(([key, name]) => (session[key] == null ? [] : [{ at: session[key], name }]));
  return (
    <div className="waterfall">
      <div className="waterfall-line is-head">
        <span className="muted">starts {formatClock(from * 1e9, true)}</span>
        <div className="waterfall-track">
          {ticks(0, to - from, 4).map((tick) => (
            <span key={tick} className="waterfall-tick" style={{ left: share(from + tick) }}>
              {formatSeconds(tick)}
            </span>
          ))}
        </div>
      </div>
      <div className="waterfall-line is-marks">
        <span className="muted">marks{events.length > 0 ? " and events" : ""}</span>
        <div className="waterfall-track">
          {marks.map((mark) => (
            <i
              key={mark.name}
              className="waterfall-mark"
              style={{ left: share(mark.at) }}
              title={`${mark.name}: +${formatSeconds(mark.at - from)}`}
            />
          ))}
          {events.map((event, index) => (
            <i
              key={index}
              className="waterfall-event"
              style={{ left: share(event.time_ns / 1e9) }}
              title={`${shorten(event.name, 200)}: +${formatSeconds(event.time_ns / 1e9 - from)}`}
            />
          ))}
        </div>
      </div>
      {inTree(spans)
        .slice(0, MOST_SPANS)
        .map(({ span, depth }) => {
          const start = span.start_ns / 1e9;
          const end = endOf(span);
          return (
            <ViewLink
              key={`${span.process_id} ${span.span_id}`}
              view="timeline"
              state={timelineSpan(span.span_id, span.start_ns, end * 1e9)}
              className="waterfall-line"
              title={`${shorten(span.name, 200)}: show in the timeline`}
            >
              <span className="waterfall-name" style={{ paddingLeft: depth * 10 }}>
                {shorten(span.name, 120)}
              </span>
              <div className="waterfall-track">
                <i
                  className={[
                    "waterfall-bar",
                    span.duration_ns === null ? "is-open" : "",
                    span.status === "error" ? "is-error" : "",
                  ].join(" ")}
                  style={{
                    left: share(start),
                    width: `max(2px, ${((end - start) / (to - from || 1)) * 100}%)`,
                    backgroundColor: colorOfName(span.name),
                  }}
                />
              </div>
              <b>{span.duration_ns === null ? "open" : formatDuration(span.duration_ns)}</b>
            </ViewLink>
          );
        })}
      {spans.length > MOST_SPANS && <p className="muted">{`The first ${MOST_SPANS} of ${spans.length} spans.`}</p>}
    </div>
  );
}

function extentWith(session: Session, spans: readonly Span[], now: number): [number, number] {
  const [from, to] = extentOf(session, now);
  const starts = spans.map((span) => span.start_ns / 1e9);
  return [Math.min(from, ...starts), Math.max(to, ...spans.map(endOf))];
}

/** The end in seconds; of an open span, the time until which it is known to last. */
function endOf(span: Span): number {
  const end = span.duration_ns === null ? span.until_ns : span.start_ns + span.duration_ns;
  return (end ?? span.start_ns) / 1e9;
}

/** Spans by start, children below their parents; one whose parent is elsewhere is a root. */
export function inTree(spans: readonly Span[]): { span: Span; depth: number }[] {
  const known = new Set(spans.map((span) => span.span_id));
  const children = new Map<string, Span[]>();
  for (const span of [...spans].sort((one, other) => one.start_ns - other.start_ns)) {
    const parent =
      span.parent_id !== null && span.parent_id !== span.span_id && known.has(span.parent_id) ? span.parent_id : "";
    children.set(parent, [...(children.get(parent) ?? []), span]);
  }
  const found: { span: Span; depth: number }[] = [];
  const add = (parent: string, depth: number) => {
    for (const span of children.get(parent) ?? []) {
      found.push({ span, depth });
      if (found.length <= spans.length) add(span.span_id, depth + 1);
    }
  };
  add("", 0);
  return found;
}
