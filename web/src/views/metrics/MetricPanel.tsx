import { type ReactNode, useMemo, useRef } from "react";
import { type Line, type Metric, type MetricQuery, type RangeQuery, api } from "../../api";
import { Chart, type ChartSeries } from "../../components/Chart";
import { EmptyState } from "../../components/EmptyState";
import { HeatMap } from "../../components/HeatMap";
import type { HeatMapData } from "../../components/heatMapDrawing";
import { Panel } from "../../components/Panel";
import { colorOfIndex } from "../../colors";
import { savePicture, saveText } from "../../download";
import { type AlignedLines, align, toCsv } from "../../lines";
import { kindOf } from "../../metricKinds";
import { type Formatter, formatBytes, formatClock, formatCount, formatNumber, metricFormatter } from "../../units";
import { useAnswer, keyOf, useQuery } from "../../useQuery";
import { ErrorLine } from "../../components/ErrorLine";

export type HistogramShape = "quantiles" | "heat" | "both";

interface Props {
  metric: Metric;
  /** The query, without the metric's name. */
  query: Omit<MetricQuery, "metric">;
  aggregation: RangeQuery["aggregation"];
  shape: HistogramShape;
  shares: readonly number[];
  isLogarithmic: boolean;
  hidden: ReadonlySet<string>;
  onToggle: (label: string) => void;
  onSelect: (from: number, to: number) => void;
  /** Other runs to draw in the same charts. */
  also?: readonly string[];
  smoothing?: number;
  pin?: { isPinned: boolean; onPin: (isPinned: boolean) => void } | undefined;
}

/** A time range that contains every run. */
const ALWAYS = { start_ns: 0, end_ns: 2n ** 62n - 1n };

const MOST_LINES = 60;

/** One metric: a chart of its values, or of its quantiles and their spread. */
export function MetricPanel(props: Props) {
  const { metric } = props;
  if (!kindOf(metric.kind).isDistribution) return <Lines {...props} kind="values" />;
  return (
    <>
      {props.shape !== "heat" && <Lines {...props} kind="quantiles" />}
      {props.shape !== "quantiles" && <Spread {...props} />}
    </>
  );
}

function Lines({
  metric,
  query,
  aggregation,
  shares,
  isLogarithmic,
  hidden,
  onToggle,
  onSelect,
  also = [],
  smoothing = 0,
  pin,
  kind,
}: Props & { kind: "values" | "quantiles" }) {
  const asked = { ...query, metric: metric.name };
  const isStep = query.axis === "step";
  const { data, error } = useQuery(
    `lines ${kind} ${keyOf([asked, aggregation, shares, also, smoothing])}`,
    async (signal) => {
      const runs = also.length === 0 ? [asked] : [asked.run!, ...also].map((run) => ({ ...asked, ...ALWAYS, run }));
      const found = await Promise.all(
        runs.map((one) =>
          kind === "values"
            ? api.metricRange({ ...one, aggregation, ...(smoothing > 0 ? { smoothing } : {}) }, signal)
            : api.metricQuantiles(
                { ...one, share: shares, group_by: one.group_by?.includes("*") === true ? [] : one.group_by },
                signal,
              ),
        ),
      );
      if (also.length === 0) return found[0]!;
      return found.flatMap((lines, index) => lines.map((line) => inRun(line, runs[index]!.run!)));
    },
    { everyMs: 2000 },
  );
  const aligned = useMemo(() => align(data ?? [], metric.name), [data, metric.name]);
  const x = useMemo(() => (isStep ? aligned.x : aligned.x.map((ns) => ns / 1e9)), [aligned, isStep]);
  const series = useMemo(() => seriesOf(aligned), [aligned]);
  const box = useRef<HTMLDivElement>(null);
  const format = formatterOf(metric, aggregation);
  const title = `${metric.name}${kind === "quantiles" ? " · quantiles" : ""}`;
  const actions = (
    <SaveButtons
      pin={pin}
      onPicture={() => {
        const canvas = box.current?.querySelector("canvas");
        if (canvas !== null && canvas !== undefined)
          savePicture(
            `${metric.name}.png`,
            canvas,
            title,
            series.filter((one) => !hidden.has(one.label)),
          );
      }}
      onCsv={() =>
        saveText(
          `${metric.name}.csv`,
          toCsv(
            isStep ? aligned.x : aligned.x.map((ns) => new Date(ns / 1e6).toISOString()),
            isStep ? "step" : "time",
            aligned.lines,
          ),
          "text/csv",
        )
      }
    />
  );
  return (
    <Panel
      title={<span title={metric.documentation}>{title}</span>}
      value={<span className="muted">{metric.documentation}</span>}
      actions={actions}
    >
      <ErrorLine text={error} />
      <div ref={box}>
        {x.length === 0 && data !== undefined ? (
          <Nothing isStep={isStep} />
        ) : (
          <Chart
            label={title}
            x={x}
            series={series}
            xKind={isStep ? "step" : "time"}
            format={format}
            height={210}
            isLogarithmic={isLogarithmic && hasPositive(aligned)}
            isBinary={metricFormatter(metric.name) === formatBytes}
            syncKey={isStep ? "metrics step" : "metrics time"}
            hidden={hidden}
            onToggle={series.length > 1 ? onToggle : undefined}
            onSelect={onSelect}
          />
        )}
      </div>
      {aligned.lines.length > MOST_LINES && (
        <p className="muted">{`The first ${MOST_LINES} of ${aligned.lines.length} lines: filter or group to see others. The CSV file has all of them.`}</p>
      )}
    </Panel>
  );
}

function Nothing({ isStep }: { isStep: boolean }) {
  return (
    <EmptyState
      title="No values here"
      text={
        isStep
          ? "This metric was recorded outside of steps: choose the time axis."
          : "No data in this time range, or no series matches the filters."
      }
    />
  );
}

/** A line of one of several runs; process ids of different runs are meaningless. */
function inRun(line: Line, run: string): Line {
  return { ...line, labels: { ...line.labels, run } };
}

interface SaveProps {
  onPicture?: () => void;
  onCsv: () => void;
  pin?: Props["pin"];
}

function SaveButtons({ onPicture, onCsv, pin }: SaveProps): ReactNode {
  return (
    <>
      {pin !== undefined && (
        <button
          type="button"
          className="chip"
          aria-pressed={pin.isPinned}
          onClick={() => pin.onPin(!pin.isPinned)}
          title="Pinned charts are shown first in Metrics"
        >
          {pin.isPinned ? "Pinned" : "Pin"}
        </button>
      )}
      {onPicture !== undefined && (
        <button type="button" className="chip" onClick={onPicture} title="Save as a picture">
          PNG
        </button>
      )}
      <button type="button" className="chip" onClick={onCsv} title="Save the values">
        CSV
      </button>
    </>
  );
}

function seriesOf(aligned: AlignedLines): ChartSeries[] {
  const taken = new Map<string, number>();
  return aligned.lines.slice(0, MOST_LINES).map((line, index) => {
    const count = taken.get(line.label) ?? 0;
    taken.set(line.label, count + 1);
    return {
      label: count === 0 ? line.label : `${line.label} (${count + 1})`,
      values: line.values,
      color: colorOfIndex(index),
      isFaint: aligned.lines.length > 12,
    };
  });
}

/** A logarithmic axis has no room for zero and negative values. */
function hasPositive(aligned: AlignedLines): boolean {
  return aligned.lines.some((line) => line.values.some((value) => value !== null && value > 0));
}

function formatterOf(metric: Metric, aggregation: RangeQuery["aggregation"]): Formatter {
  if (aggregation === "count") return formatNumber;
  const format = metricFormatter(metric.name);
  const isRate = aggregation === "rate" || (aggregation === undefined && kindOf(metric.kind).isRate);
  return isRate ? (value) => `${format(value)}/s` : format;
}

function Spread({ metric, query }: Props) {
  const isStep = query.axis === "step";
  // Cells are read individually, so they are coarser than the points of a line.
  const width = Number(query.width) * (isStep ? 1 : 2);
  const asked = { ...query, metric: metric.name, rows: 40, group_by: undefined, width };
  const { data, error } = useAnswer("metrics/heatmap", asked, { everyMs: 3000 });
  const format = metricFormatter(metric.name);
  const map = useMemo<HeatMapData | null>(() => {
    if (data === undefined || data.x.length === 0) return null;
    const rows = data.lower.map((lower, row) => `${format(lower)} – ${format(data.upper[row])}`);
    return {
      x: isStep ? data.x : data.x.map((ns) => ns / 1e9),
      width: width / (isStep ? 1 : 1e9),
      rows: rows.reverse(),
      // Large values at the top; no values is not the same as few.
      values: data.lower.map((_, row) => data.counts.map((counts) => counts[row] || null)).reverse(),
    };
  }, [data, isStep, width, metric.name]);
  return (
    <Panel
      title={`${metric.name} · spread`}
      actions={
        <SaveButtons
          onCsv={() =>
            saveText(
              `${metric.name}-spread.csv`,
              toCsv(
                data?.x ?? [],
                isStep ? "step" : "time_ns",
                (data?.lower ?? []).map((lower, row) => ({
                  label: `from ${lower}`,
                  values: data!.counts.map((counts) => counts[row] ?? 0),
                })),
              ),
              "text/csv",
            )
          }
        />
      }
    >
      <ErrorLine text={error} />
      {map === null ? (
        data !== undefined && <Nothing isStep={isStep} />
      ) : (
        <HeatMap
          data={map}
          label={`Distribution of ${metric.name}`}
          format={(count) => `${formatCount(count)} values`}
          formatX={(x) => (isStep ? `step ${formatCount(Math.floor(x))}` : formatClock(x * 1e9))}
          isLogarithmic
          left={150}
          height={Math.min(420, Math.max(140, map.rows.length * 11 + 22))}
        />
      )}
    </Panel>
  );
}
