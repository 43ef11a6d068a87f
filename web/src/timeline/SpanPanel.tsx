import { type ReactNode, useEffect } from "react";
import type { Span, SpanDetail } from "../api";
import { ViewLink } from "../components/ViewLink";
import { colorOfName, colorOfStatus } from "../colors";
import { severityClass } from "../tones";
import { formatClock, formatDate, formatDuration, formatLevel, formatMoment, formatSeconds, shorten } from "../units";
import { useAnswer } from "../useQuery";
import { ErrorLine } from "../components/ErrorLine";
import { levelClass } from "../components/LogLines";
import { processTitle } from "../processTitle";

interface Props {
  run: string;
  spanId: string;
  onPick: (span: Span) => void;
  onShow: (span: Span) => void;
  onClose: () => void;
  /** Called with the relatives of the span once they are loaded. */
  onDetail: (detail: SpanDetail) => void;
}

const MAX_SHOWN = 200;

/** Everything about one span. */
export function SpanPanel({ run, spanId, onPick, onShow, onClose, onDetail }: Props) {
  const { data, error, isLoading } = useAnswer("span", { run, span_id: spanId }, { everyMs: 2000 });
  const span = data?.span;
  useEffect(() => {
    if (data !== undefined) onDetail(data);
  }, [data]);
  return (
    <aside className="side-panel" aria-label="Span">
      <header>
        <i className="swatch" style={{ background: colorOfName(span?.name ?? "") }} />
        <h2 title={span?.name}>{span === undefined ? "Span" : shorten(span.name, 200)}</h2>
        <button type="button" className="icon-button" onClick={onClose} aria-label="Close" title="Close (Esc)">
          ×
        </button>
      </header>
      <ErrorLine text={error} />
      {data === undefined && isLoading && <p className="muted">Loading…</p>}
      {data !== undefined && <Details run={run} detail={data} onPick={onPick} onShow={onShow} />}
    </aside>
  );
}

function Details({
  run,
  detail,
  onPick,
  onShow,
}: {
  run: string;
  detail: SpanDetail;
  onPick: (span: Span) => void;
  onShow: (span: Span) => void;
}) {
  const { span, parents, children, events, logs } = detail;
  return (
    <div className="side-panel-body">
      <div className="toolbar">
        <span className="badge" style={{ color: colorOfStatus(span.status) }}>
          {span.status}
        </span>
        <strong>
          {span.duration_ns === null ? `open since ${formatMoment(span.start_ns)}` : formatDuration(span.duration_ns)}
        </strong>
        {span.duration_ns === null && <OpenAge run={run} detail={detail} />}
        <span className="spacer" />
        <button type="button" onClick={() => onShow(span)} title="Zoom to this span (F)">
          Zoom to it
        </button>
      </div>
      {span.error !== null && <pre className="error-line">{span.error}</pre>}
      <Facts span={span} />
      <Attributes attributes={span.attributes} />
      <Spans title="Parents" spans={parents} onPick={onPick} />
      <Spans title="Children" spans={children} onPick={onPick} />
      {events.length > 0 && (
        <Section title={`Events (${events.length})`}>
          {events.slice(0, MAX_SHOWN).map((event, index) => (
            <div key={index} className="side-line">
              <span className="mono muted">+{formatDuration(event.time_ns - span.start_ns)}</span>{" "}
              {shorten(event.name, 300)}
              {Object.keys(event.attributes).length > 0 && (
                <code className="muted"> {shorten(JSON.stringify(event.attributes), 300)}</code>
              )}
            </div>
          ))}
        </Section>
      )}
      {logs.length > 0 && (
        <Section title={`Logs (${logs.length})`}>
          {logs.slice(0, MAX_SHOWN).map((line, index) => (
            <div key={index} className="side-line">
              <span className={`mono ${levelClass(line.level)}`}>{formatLevel(line.level)}</span>{" "}
              {shorten(line.message, 2000)}
            </div>
          ))}
        </Section>
      )}
    </div>
  );
}

/** The age of an open span, and the usual duration of such spans. */
function OpenAge({ run, detail: { span, severity } }: { run: string; detail: SpanDetail }) {
  const { data } = useAnswer("open/work", { run }, { everyMs: 2000 });
  const age = ((span.until_ns ?? span.start_ns) - span.start_ns) / 1e9;
  const work = data?.find((one) => one.name === span.name);
  return (
    <span className={severityClass(severity)}>
      {`for ${formatSeconds(age)}`}
      {work?.usual_s == null ? "" : `, usually ${formatSeconds(work.usual_s)}`}
    </span>
  );
}

function Facts({ span }: { span: Span }) {
  const facts: readonly (readonly [string, ReactNode])[] = [
    ["Start", `${formatDate(span.start_ns).slice(0, 10)} ${formatClock(span.start_ns, true)}`],
    ["Step", span.step],
    ["Lane", span.lane ?? "process"],
    ["Process", processTitle(span)],
    ["Process id", span.process_id],
    [
      "Session",
      span.session_id === null ? null : (
        <ViewLink view="sessions" state={{ session: span.session_id }}>
          {span.session_id}
        </ViewLink>
      ),
    ],
    ["Kind", span.segment],
    ["Span", <code key="id">{span.span_id}</code>],
  ];
  return (
    <dl className="facts">
      {facts
        .filter(([, value]) => value !== null && value !== "")
        .map(([title, value]) => (
          <div key={title}>
            <dt>{title}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

function Attributes({ attributes }: { attributes: Record<string, unknown> }) {
  const entries = Object.entries(attributes);
  if (entries.length === 0) return null;
  return (
    <Section title="Attributes">
      <dl className="facts">
        {entries.slice(0, MAX_SHOWN).map(([key, value]) => (
          <div key={key}>
            <dt title={key}>{shorten(key, 80)}</dt>
            <dd>{shorten(typeof value === "string" ? value : JSON.stringify(value), 4000)}</dd>
          </div>
        ))}
      </dl>
    </Section>
  );
}

function Spans({ title, spans, onPick }: { title: string; spans: readonly Span[]; onPick: (span: Span) => void }) {
  if (spans.length === 0) return null;
  return (
    <Section title={`${title} (${spans.length})`}>
      {spans.slice(0, MAX_SHOWN).map((span) => (
        <button
          key={`${span.process_id} ${span.span_id}`}
          type="button"
          className="side-span"
          onClick={() => onPick(span)}
        >
          <i className="swatch" style={{ background: colorOfName(span.name) }} />
          <span>{shorten(span.name, 120)}</span>
          <b className={span.status === "error" ? "bad" : undefined}>
            {span.duration_ns === null ? "open" : formatDuration(span.duration_ns)}
          </b>
        </button>
      ))}
    </Section>
  );
}

function Section({ title, children }: { title: string; children: ReactNode }) {
  return (
    <section>
      <h3>{title}</h3>
      {children}
    </section>
  );
}
