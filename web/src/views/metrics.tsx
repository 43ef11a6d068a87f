import { useMemo } from "react";
import type { Metric, MetricQuery, RangeQuery } from "../api";
import { EmptyState } from "../components/EmptyState";
import { Loading } from "../components/Loading";
import { Choice, LogButton, Select, labeled } from "../components/Select";
import { kindOf } from "../metricKinds";
import { reportFacts } from "../reportFacts";
import { formatClock } from "../units";
import { useSavedViews } from "../savedViews";
import { useUrlState } from "../url";
import { useAnswer } from "../useQuery";
import { type StepsWindow, useWindow } from "../window";
import type { ViewProps } from ".";
import { byInterest } from "./metrics/interest";
import { LabelFilters } from "./metrics/LabelFilters";
import { Overlay } from "./metrics/Overlay";
import { MetricList } from "./metrics/MetricList";
import { type HistogramShape, MetricPanel } from "./metrics/MetricPanel";
import { RECENT, RECENT_OPTIONS, type Recent, rangeOf, stepWidth } from "./metrics/range";
import "./views.css";

const POINTS = 240;
const FIRST_SHOWN = 3;
const SHARES: Readonly<Record<string, readonly number[]>> = {
  usual: [0.5, 0.95, 0.99],
  wide: [0, 0.1, 0.5, 0.9, 1],
  tail: [0.9, 0.99, 0.999],
};
const PROCESS_LABELS = ["role", "rank", "host", "process_id"];
const AGGREGATIONS = ["", "avg", "sum", "min", "max", "last", "count", "rate", "increase"] as const;
/** The weight of a point relative to the next one. */
const SMOOTHING = [
  { value: "0", label: "none" },
  { value: "0.6", label: "light" },
  { value: "0.9", label: "medium" },
  { value: "0.97", label: "strong" },
];

/** Any metric over time or steps. */
export default function Metrics({ run }: ViewProps) {
  const [chosen, setChosen] = useUrlState("metric", []);
  const [search, setSearch] = useUrlState("search", "");
  const [hidden, setHidden] = useUrlState("hidden", []);
  const metrics = useAnswer("metrics", { run }, { everyMs: 3000 });
  const known = metrics.data ?? [];
  const [also, setAlso] = useUrlState("also", []);
  const saved = useSavedViews();
  const pinned = saved.pins.filter((name) => known.some((metric) => metric.name === name));
  const usual = pinned.length > 0 ? pinned : byInterest(known).slice(0, FIRST_SHOWN);
  const shown = chosen.length > 0 ? chosen : usual;
  const found = shown.flatMap((name) => known.filter((metric) => metric.name === name));
  const settings = useSettings(run, found, also.length > 0);
  const hiddenLabels = useMemo(() => new Set(hidden), [hidden]);

  if (metrics.error !== undefined && metrics.data === undefined)
    return <EmptyState title="No metrics" text={metrics.error} />;
  if (metrics.data !== undefined && known.length === 0) {
    return (
      <EmptyState
        title="No metrics yet"
        text="Gauges, counters and distributions appear here as soon as the run records them."
        code={
          'insight.metric_gauge("reward_mean", reward)\ninsight.metric_count("trained_tokens", tokens)\ninsight.metric_histogram("response_tokens", length)'
        }
      />
    );
  }
  const missing = chosen.filter((name) => metrics.data !== undefined && !known.some((metric) => metric.name === name));
  return (
    <div className="view metrics-view">
      <MetricList
        metrics={known}
        chosen={shown}
        search={search}
        onSearch={setSearch}
        onChange={(names) => setChosen(names, "push")}
      />
      <div className="metric-charts">
        {settings.controls}
        {reportFacts() === null && <Overlay run={run} also={also} onChange={(runs) => setAlso(runs, "push")} />}
        {metrics.data === undefined && <Loading />}
        {missing.length > 0 && <p className="muted">{`Not in this run: ${missing.join(", ")}.`}</p>}
        {settings.query !== null &&
          found.map((metric) => (
            <MetricPanel
              key={`${metric.name} ${metric.kind}`}
              metric={metric}
              query={settings.query!}
              also={also}
              smoothing={settings.smoothing}
              pin={
                reportFacts() === null
                  ? { isPinned: saved.pins.includes(metric.name), onPin: (isOn) => saved.pin(metric.name, isOn) }
                  : undefined
              }
              aggregation={settings.aggregation}
              shape={settings.shape}
              shares={settings.shares}
              isLogarithmic={settings.isLogarithmic}
              hidden={hiddenLabels}
              onToggle={(label) =>
                setHidden(hidden.includes(label) ? hidden.filter((one) => one !== label) : [...hidden, label])
              }
              onSelect={settings.onSelect}
            />
          ))}
      </div>
    </div>
  );
}

function stepsOfWindow({ first, last }: StepsWindow) {
  return { first_step: first, last_step: last };
}

/** The common settings of all charts: axis, range, filters and grouping. */
function useSettings(run: string, metrics: readonly Metric[], isOverlaid: boolean) {
  const [chosenAxis, setAxis] = useUrlState("axis", "time", ["time", "step"]);
  // Runs from different days have only steps in common.
  const axis = isOverlaid ? "step" : chosenAxis;
  const [smoothing, setSmoothing] = useUrlState(
    "smooth",
    "0",
    SMOOTHING.map((one) => one.value),
  );
  const [recent, setRecent] = useUrlState<Recent>("range", "", RECENT);
  const [from, setFrom] = useUrlState("from", 0);
  const [to, setTo] = useUrlState("to", 0);
  const [aggregation, setAggregation] = useUrlState<(typeof AGGREGATIONS)[number]>("aggregation", "", AGGREGATIONS);
  const [group, setGroup] = useUrlState("group", "*");
  const [matches, setMatches] = useUrlState("match", []);
  const [isLogarithmic, setIsLogarithmic] = useUrlState("log", false);
  const [shape, setShape] = useUrlState<HistogramShape>("shape", "both", ["quantiles", "heat", "both"]);
  const [shares, setShares] = useUrlState("quantiles", "usual", ["usual", "wide", "tail"]);
  const summary = useAnswer("summary", { run }, { everyMs: 2000 });
  const shared = useWindow(run);
  const { bounds } = shared;
  const chosen = to > from || bounds === null ? { from, to } : { from: bounds.start_ns / 1e9, to: bounds.end_ns / 1e9 };
  const range = shared.isPending ? null : rangeOf(summary.data, { recent, ...chosen }, POINTS);
  const labels = [...new Set([...metrics.flatMap((metric) => metric.labels), ...PROCESS_LABELS])];
  const hasHistogram = metrics.some((metric) => kindOf(metric.kind).isDistribution);
  const query: Omit<MetricQuery, "metric"> | null =
    range === null
      ? null
      : {
          run,
          ...range,
          ...(axis === "step"
            ? { width: stepWidth(shared.steps === null ? summary.data : stepsOfWindow(shared.steps), POINTS * 2) }
            : {}),
          axis,
          match: matches,
          group_by: group === "" ? [""] : [group],
        };
  const forget = () => {
    setFrom(0);
    setTo(0);
  };
  // The dragged range becomes the window of all views.
  const select = (start: number, end: number) => {
    forget();
    if (axis === "step")
      shared.setWindow({ kind: "steps", first: Math.ceil(start), last: Math.max(Math.ceil(start), Math.floor(end)) });
    else shared.setWindow({ kind: "time", from: start, to: end });
  };
  const controls = (
    <div className="toolbar">
      <Choice label="Axis" value={axis} options={labeled({ time: "Time", step: "Step" })} onChange={setAxis} />
      {to > from ? (
        <button
          type="button"
          onClick={forget}
          title="Show the entire run again"
        >{`${formatClock(from * 1e9)} – ${formatClock(to * 1e9)} ×`}</button>
      ) : bounds !== null ? null : (
        <Select label="Range" isLabelHidden value={recent} options={RECENT_OPTIONS} onChange={setRecent} />
      )}
      {reportFacts() === null && (
        <Select
          label="Show"
          value={aggregation}
          options={AGGREGATIONS.map((value) => ({ value, label: value === "" ? "usual" : value }))}
          onChange={setAggregation}
        />
      )}
      <Select
        label="by"
        value={group}
        options={[
          { value: "*", label: "each series" },
          { value: "", label: "all together" },
          ...labels.map((value) => ({ value, label: value })),
        ]}
        onChange={setGroup}
      />
      <LabelFilters run={run} metric={metrics[0]?.name ?? ""} labels={labels} matches={matches} onChange={setMatches} />
      <span className="spacer" />
      {hasHistogram && (
        <>
          <Select
            label="Quantiles"
            isLabelHidden
            value={shares}
            options={labeled({ usual: "p50 p95 p99", wide: "min p10 p50 p90 max", tail: "p90 p99 p99.9" })}
            onChange={setShares}
          />
          <Choice
            label="Distributions as"
            value={shape}
            options={labeled({ quantiles: "Quantiles", heat: "Heat map", both: "Both" })}
            onChange={setShape}
          />
        </>
      )}
      {reportFacts() === null && (
        <Select label="Smooth" value={smoothing} options={SMOOTHING} onChange={setSmoothing} />
      )}
      <LogButton isOn={isLogarithmic} onChange={setIsLogarithmic} />
    </div>
  );
  const how: RangeQuery["aggregation"] = aggregation === "" ? undefined : aggregation;
  return {
    query,
    smoothing: Number(smoothing),
    aggregation: how,
    shape,
    shares: SHARES[shares]!,
    isLogarithmic,
    controls,
    onSelect: select,
  };
}
