import { useMemo } from "react";
import type { SpanSeries } from "../../api";
import { Chart, type ChartSeries } from "../../components/Chart";
import { EmptyState } from "../../components/EmptyState";
import { colorOfName, colorOfStatus } from "../../colors";
import { formatCount, formatDuration, formatSeconds, formatShare } from "../../units";
import { linkTo, navigate } from "../../url";
import { useAnswer } from "../../useQuery";
import { timelineSpan } from "../links";
import type { SeriesQuery } from "./scope";
import { ErrorLine } from "../../components/ErrorLine";

interface Props {
  run: string;
  conditions: SeriesQuery;
  axis: "step" | "time";
  /** The selected name; empty while none is known. */
  name: string;
  isLogarithmic: boolean;
}

const seconds = (ns: number) => ns / 1e9;

/** The spans of one name over steps or time: p50, p95 and the longest of each interval, count, errors, and single spans. */
export function SpanLatency({ run, conditions, axis, name, isLogarithmic }: Props) {
  const query = { run, ...conditions, axis, name };
  const { data, error } = useAnswer("spans/series", query, { enabled: name !== "", everyMs: 5000, keep: false });
  const lines = useMemo(() => (data === undefined ? null : linesOf(data)), [data]);
  const points = useMemo(() => (data === undefined ? null : pointsOf(data)), [data]);
  if (error !== undefined) return <ErrorLine text={error} />;
  if (data === undefined || lines === null || points === null)
    return name === "" ? <EmptyState title="No data in this scope" text="Choose a wider scope." /> : null;
  if (data.count === 0)
    return (
      <EmptyState
        title="No finished spans of this name in this scope"
        text={axis === "step" ? "They may have no step: choose the time axis." : "Choose another name."}
      />
    );
  const open = (spanId: string, startNs?: number, endNs?: number) =>
    navigate(linkTo("timeline", timelineSpan(spanId, startNs, endNs)));
  return (
    <>
      <p className="muted">
        {`${formatCount(data.count)} finished spans, ${formatCount(data.errors)} with an error. p50 ${formatDuration(data.p50_ns)}, p95 ${formatDuration(data.p95_ns)}, p99 ${formatDuration(data.p99_ns)}, max ${formatDuration(data.max_ns)}. Every interval includes all of its spans. Click an interval to see its longest span in the timeline.`}
      </p>
      <Chart
        label={`Durations of ${name} by ${axis}`}
        x={lines.x}
        series={lines.durations}
        xKind={axis}
        format={formatSeconds}
        isLogarithmic={isLogarithmic}
        height={240}
        syncKey="span series"
        onPick={(at) => {
          const found = data.intervals[lines.x.indexOf(at)];
          if (found !== undefined) open(found.longest_span_id);
        }}
      />
      <Chart
        label={`Errors of ${name} by ${axis}`}
        x={lines.x}
        series={lines.counts}
        xKind={axis}
        height={110}
        format={formatCount}
        syncKey="span series"
      />
      {data.points.length > 0 && (
        <>
          <p className="muted">
            {data.points.length < data.count
              ? `An even sample of ${formatCount(data.points.length)} spans (${formatShare(data.points.length / data.count)}), spread evenly over time.`
              : `All ${formatCount(data.count)} spans.`}
          </p>
          <Chart
            label={`Durations of single spans of ${name}`}
            x={points.x}
            series={points.series}
            kind="points"
            format={formatSeconds}
            isLogarithmic={isLogarithmic}
            height={240}
            onPick={(at) => {
              const found = data.points[points.x.indexOf(at)];
              if (found !== undefined) open(found.span_id, found.start_ns, found.start_ns + found.duration_ns);
            }}
          />
        </>
      )}
    </>
  );
}

function linesOf({ intervals, axis, name }: SpanSeries) {
  const color = colorOfName(name);
  const x = intervals.map((one) => (axis === "step" ? one.x : one.x / 1e9));
  const durations: ChartSeries[] = [
    { label: "p50", values: intervals.map((one) => seconds(one.p50_ns)), color },
    { label: "p95", values: intervals.map((one) => seconds(one.p95_ns)), color, isDashed: true },
    { label: "max", values: intervals.map((one) => one.max_ns / 1e9), color: "#8a8f98", isFaint: true },
  ];
  const counts: ChartSeries[] = [
    { label: "count", values: intervals.map((one) => one.count), color },
    { label: "errors", values: intervals.map((one) => one.errors), color: colorOfStatus("error") },
  ];
  return { x, durations, counts };
}

function pointsOf({ points, name }: SpanSeries) {
  const statuses = [...new Set(points.map((point) => point.status))].sort();
  return {
    x: points.map((point) => point.start_ns / 1e9),
    series: statuses.map((status): ChartSeries => ({
      label: status,
      color: status === "ok" ? colorOfName(name) : colorOfStatus(status),
      values: points.map((point) => (point.status === status ? seconds(point.duration_ns) : null)),
    })),
  };
}
