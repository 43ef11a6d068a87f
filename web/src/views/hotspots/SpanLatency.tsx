import { useMemo } from "react";
import { type Span, type SpanQuery, api } from "../../api";
import { Chart, type ChartSeries } from "../../components/Chart";
import { Distribution } from "../../components/Distribution";
import { EmptyState } from "../../components/EmptyState";
import { colourOfName, colourOfStatus } from "../../colours";
import { quantileLines, spreadOf } from "../../statistics";
import { formatCount, formatDuration, shorten } from "../../units";
import { linkTo, navigate } from "../../url";
import { useQuery } from "../../useQuery";
import { timelineSpan } from "../links";

interface Props {
  run: string;
  conditions: SpanQuery;
  /** The spans on show; empty while none is known. */
  name: string;
  isLogarithmic: boolean;
}

const NEWEST = 4000;
const LONGEST = 500;

/** Every span of one name as a point: when it began and how long it took. What lies far above the lines is an outlier. */
export function SpanLatency({ run, conditions, name, isLogarithmic }: Props) {
  const query: SpanQuery = { run, ...conditions, name };
  const { data, error } = useQuery(`latency ${JSON.stringify(query)}`, (signal) => ask(query, signal), {
    enabled: name !== "",
    everyMs: 5000,
    keep: false,
  });
  const spans = useMemo(() => finished(data ?? []), [data]);
  const x = useMemo(() => spans.map((span) => span.start_ns / 1e9), [spans]);
  const series = useMemo<ChartSeries[]>(() => seriesOf(spans, name), [spans, name]);
  const spread = useMemo(() => spreadOf(spans.map((span) => span.duration_ns)), [spans]);
  if (error !== undefined) return <div className="error-line">{error}</div>;
  if (data === undefined && name !== "") return null;
  if (spans.length === 0)
    return (
      <EmptyState title="No finished spans of this name in this scope" text="Choose another name, or a wider scope." />
    );
  return (
    <>
      <p className="muted">
        {data!.length < NEWEST
          ? `All ${formatCount(spans.length)} spans of the scope.`
          : `The newest ${formatCount(NEWEST)} spans of the scope, and its longest.`}{" "}
        Click a point to see it in the timeline.
      </p>
      <Chart
        label={`Durations of ${name}`}
        x={x}
        series={series}
        kind="points"
        format={(seconds) => formatDuration(seconds === null || seconds === undefined ? null : seconds * 1e9)}
        isLogarithmic={isLogarithmic}
        height={420}
        onPick={(at) => {
          const span = spans.find((one) => one.start_ns / 1e9 === at);
          if (span !== undefined)
            navigate(
              linkTo("timeline", timelineSpan(span.span_id, span.start_ns, span.start_ns + (span.duration_ns ?? 0))),
            );
        }}
      />
      <table className="plain distributions">
        <thead>
          <tr>
            <th>Name</th>
            <th>Distribution</th>
            <th className="right">p50</th>
            <th className="right">p95</th>
            <th className="right">p99</th>
            <th className="right">max</th>
          </tr>
        </thead>
        <tbody>
          <Distribution name={shorten(name, 80)} spread={spread} colour={colourOfName(name)} format={formatDuration} />
        </tbody>
      </table>
    </>
  );
}

/** The newest, and the longest, which a look at the newest alone could miss. */
async function ask(query: SpanQuery, signal: AbortSignal): Promise<Span[]> {
  const newest = await api.spans({ ...query, order: "newest", limit: NEWEST }, signal);
  return newest.length < NEWEST
    ? newest
    : [...newest, ...(await api.spans({ ...query, order: "longest", limit: LONGEST }, signal))];
}

function finished(spans: readonly Span[]): Span[] {
  const byId = new Map(
    spans.filter((span) => span.duration_ns !== null).map((span) => [`${span.process_id} ${span.span_id}`, span]),
  );
  return [...byId.values()].sort((one, other) => one.start_ns - other.start_ns);
}

function seriesOf(spans: readonly Span[], name: string): ChartSeries[] {
  const statuses = [...new Set(spans.map((span) => span.status))].sort();
  const seconds = spans.map((span) => span.duration_ns! / 1e9);
  const points = statuses.map((status) => ({
    label: status,
    colour: status === "ok" ? colourOfName(name) : colourOfStatus(status),
    values: spans.map((span, place) => (span.status === status ? seconds[place]! : null)),
  }));
  return [...points, ...quantileLines(seconds)];
}
