import { useMemo } from "react";
import type { GpusNow, Line, Metric, MetricQuery, QuantityNow } from "../api";
import { Chart, type ChartSeries } from "../components/Chart";
import { EmptyState } from "../components/EmptyState";
import { HeatMap } from "../components/HeatMap";
import { Loading } from "../components/Loading";
import { Panel } from "../components/Panel";
import { Select } from "../components/Select";
import { ViewLink } from "../components/ViewLink";
import { colorOfIndex } from "../colors";
import { quantityNow } from "../hardwareNow";
import { align } from "../lines";
import { kindOf } from "../metricKinds";
import { formatBytes, formatClock, formatCount, metricFormatter } from "../units";
import { useUrlState } from "../url";
import { useAnswer } from "../useQuery";
import { useWindow } from "../window";
import type { ViewProps } from ".";
import { timelineWindow } from "./links";
import { deviceName, gridOf } from "./hardware/grid";
import { UsageTable } from "./hardware/UsageTable";
import { RECENT, RECENT_OPTIONS, type Range, type Recent, rangeOf } from "./metrics/range";
import "./views.css";
import { ErrorLine } from "../components/ErrorLine";

interface Quantity {
  value: string;
  label: string;
  metric: string;
  /** Shown as a share of this metric. */
  total?: string;
  range?: readonly [number, number];
}

const QUANTITIES: readonly Quantity[] = [
  { value: "busy", label: "GPU busy", metric: "gpu_utilization_ratio", range: [0, 1] },
  {
    value: "memory",
    label: "GPU memory in use",
    metric: "gpu_memory_used_bytes",
    total: "gpu_memory_total_bytes",
    range: [0, 1],
  },
  { value: "bandwidth", label: "GPU memory busy", metric: "gpu_memory_busy_ratio", range: [0, 1] },
  { value: "power", label: "GPU power", metric: "gpu_power_watts" },
  { value: "temperature", label: "GPU temperature", metric: "gpu_temperature_celsius" },
  { value: "clock", label: "GPU clock", metric: "gpu_sm_clock_hertz" },
];
const HOST_CHARTS: readonly (readonly [metric: string, title: string])[] = [
  ["node_cpu_utilization_ratio", "Host CPU"],
  ["node_memory_used_bytes", "Host RAM in use"],
  ["gpu_memory_used_bytes", "GPU memory in use"],
  ["gpu_power_watts", "GPU power"],
  ["gpu_temperature_celsius", "GPU temperature"],
  ["node_network_received_bytes", "Network received"],
  ["node_network_sent_bytes", "Network sent"],
  ["node_disk_read_bytes", "Disk read"],
];
const COLUMNS = 160;

/** The load of accelerators and hosts. */
export default function Hardware({ run }: ViewProps) {
  const [recent, setRecent] = useUrlState<Recent>("range", "", RECENT);
  const [chosen, setChosen] = useUrlState("quantity", "busy");
  const metrics = useAnswer("metrics", { run }, { everyMs: 3000 });
  const summary = useAnswer("summary", { run }, { everyMs: 2000 });
  const { bounds, setWindow } = useWindow(run);
  const wanted = { from: (bounds?.start_ns ?? 0) / 1e9, to: (bounds?.end_ns ?? 0) / 1e9 };
  const range = rangeOf(summary.data, { recent, ...wanted }, COLUMNS);
  const [isByNode, setIsByNode] = useUrlState("nodes", false);
  const known = new Map((metrics.data ?? []).map((metric) => [metric.name, metric]));
  const offered = QUANTITIES.filter((quantity) => known.has(quantity.metric));
  const quantity = offered.find((one) => one.value === chosen) ?? offered[0];
  const charts = HOST_CHARTS.filter(([metric]) => known.has(metric) && metric !== quantity?.metric);

  if (metrics.error !== undefined && metrics.data === undefined)
    return <EmptyState title="No hardware" text={metrics.error} />;
  if (metrics.data === undefined || range === null) return <Loading />;
  if (quantity === undefined && charts.length === 0) {
    return (
      <EmptyState
        title="No hardware metrics in this run"
        text="Turn them on after init to record GPU utilization, memory, power, temperature, and host load: in the driver with Ray, in every process without."
        code={'insight.init("my-project", "my-experiment")\ninsight.monitor_hardware()'}
      />
    );
  }
  return (
    <div className="view">
      <div className="toolbar">
        {quantity !== undefined && (
          <Select label="Show" value={quantity.value} options={offered} onChange={setChosen} />
        )}
        {bounds === null && <Select label="of" value={recent} options={RECENT_OPTIONS} onChange={setRecent} />}
        <button
          type="button"
          aria-pressed={isByNode}
          onClick={() => setIsByNode(!isByNode)}
          title="One row and one line per node: the mean of its accelerators"
        >
          By node
        </button>
      </div>
      {quantity === undefined ? (
        <EmptyState
          title="No accelerators are monitored"
          text="Only hosts are. Accelerators need nvidia-ml-py on the nodes (pip install 'rl-insight[nvml]') or Ray's own metrics."
        />
      ) : (
        <Accelerators
          run={run}
          quantity={quantity}
          range={range}
          isByNode={isByNode}
          onWindow={(from, to) => setWindow({ kind: "time", from, to })}
          hasTotal={quantity.total !== undefined && known.has(quantity.total)}
        />
      )}
      <div className="grid">
        {known.has("gpu_utilization_ratio") && <UsageTable run={run} range={range} />}
        {charts.map(([metric, title]) => (
          <DeviceChart
            key={metric}
            run={run}
            metric={known.get(metric)!}
            title={title}
            range={range}
            isByNode={isByNode}
            onWindow={(from, to) => setWindow({ kind: "time", from, to })}
          />
        ))}
      </div>
    </div>
  );
}

function useLines(
  run: string,
  metric: string | undefined,
  range: Range,
  groups: readonly string[],
): { lines: readonly Line[] | undefined; error: string | undefined } {
  const query: MetricQuery = { run, metric: metric ?? "", ...range, group_by: groups };
  const { data, error } = useAnswer("metrics/range", query, { everyMs: 3000, enabled: metric !== undefined });
  return { lines: data, error };
}

function Accelerators({
  run,
  quantity,
  range,
  hasTotal,
  isByNode,
  onWindow,
}: {
  run: string;
  quantity: Quantity;
  range: Range;
  hasTotal: boolean;
  isByNode: boolean;
  onWindow: (from: number, to: number) => void;
}) {
  const groups = isByNode ? ["host"] : ["host", "gpu"];
  const { lines, error } = useLines(run, quantity.metric, range, groups);
  const { lines: totals } = useLines(
    run,
    hasTotal ? quantity.total : undefined,
    { ...range, start_ns: 0, width: range.end_ns },
    groups,
  );
  const isShare = hasTotal && totals !== undefined;
  const data = useMemo(
    () => gridOf(lines ?? [], range.width, isShare ? totals : null),
    [lines, range.width, isShare, totals],
  );
  const { data: gpus } = useAnswer("hardware/now", { run, devices: false }, { everyMs: 3000 });
  const format = metricFormatter(isShare ? "share" : quantity.metric);
  const now = gpus && quantityNow(gpus, hasTotal ? "memory_used_ratio" : quantity.metric.replace(/^gpu_/, ""));
  if (error !== undefined) return <ErrorLine text={error} />;
  return (
    <Panel
      title={`${quantity.label} by node and accelerator`}
      value={gpus && nowText(gpus, now, format)}
      actions={
        now !== undefined && (
          <span>{`lowest ${format(now.lowest.value)} on ${placeOf(now.lowest)} · highest ${format(now.highest.value)} on ${placeOf(now.highest)}`}</span>
        )
      }
    >
      {lines !== undefined && data.rows.length === 0 ? (
        <EmptyState title="No data in this time range" />
      ) : (
        <div className="scroll">
          <HeatMap
            data={data}
            label={`${quantity.label} by node and accelerator over time`}
            format={format}
            formatX={(x) => formatClock(x * 1e9)}
            {...(quantity.range !== undefined && (isShare || quantity.total === undefined)
              ? { range: quantity.range }
              : {})}
            left={150}
            onPick={({ column }) => onWindow(data.x[column]!, data.x[column]! + data.width)}
            height={Math.min(900, Math.max(80, data.rows.length * (data.rows.length > 40 ? 14 : 22)) + 22)}
          />
        </div>
      )}
      <p className="muted">
        <ViewLink view="timeline" state={timelineWindow(range.start_ns, range.end_ns, { metric: quantity.metric })}>
          Show it next to the timeline
        </ViewLink>
      </p>
    </Panel>
  );
}

function nowText(gpus: GpusNow, now: QuantityNow | undefined, format: (value: number | null) => string): string {
  const silent = gpus.stale === 0 ? "" : `, ${formatCount(gpus.stale)} silent for more than ${gpus.max_age_s} s`;
  return now === undefined
    ? `not known now${silent}`
    : `${format(now.mean)} now, average of ${formatCount(now.gpus)}${silent}`;
}

function placeOf({ host, gpu }: { host: string; gpu: string }): string {
  return deviceName({ host, gpu });
}

/** The most lines that can be distinguished; beyond it there is one per node. */
const MOST_DEVICES = 16;

interface DeviceProps {
  run: string;
  metric: Metric;
  title: string;
  range: Range;
  isByNode: boolean;
  onWindow: (from: number, to: number) => void;
}

function DeviceChart({ run, metric, title, range, isByNode, onWindow }: DeviceProps) {
  const isOfGpu = metric.labels.includes("gpu") && !isByNode && metric.series <= MOST_DEVICES;
  const { lines, error } = useLines(run, metric.name, range, isOfGpu ? ["host", "gpu"] : ["host"]);
  const aligned = useMemo(() => align(lines ?? []), [lines]);
  const x = useMemo(() => aligned.x.map((ns) => ns / 1e9), [aligned]);
  const series = useMemo<ChartSeries[]>(
    () =>
      aligned.lines.map((line, index) => ({
        label: deviceName(line.labels) || "all",
        values: line.values,
        color: colorOfIndex(index),
        isFaint: aligned.lines.length > 10,
      })),
    [aligned],
  );
  const format = metricFormatter(metric.name);
  const { isRate } = kindOf(metric.kind);
  return (
    <Panel
      className="span-6"
      title={title}
      actions={
        <ViewLink view="metrics" state={{ metric: metric.name }}>
          explore
        </ViewLink>
      }
    >
      <ErrorLine text={error} />
      <Chart
        label={title}
        x={x}
        series={series}
        format={isRate ? (value) => `${format(value)}/s` : format}
        height={150}
        syncKey="hardware"
        onSelect={onWindow}
        isBinary={format === formatBytes}
        {...(metric.name.endsWith("utilization_ratio") ? { range: [0, 1] as const } : {})}
      />
    </Panel>
  );
}
