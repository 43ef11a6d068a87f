import { useMemo } from "react";
import { type Line, api } from "../api";
import { Chart } from "../components/Chart";
import { Panel } from "../components/Panel";
import { ViewLink } from "../components/ViewLink";
import { colorOfIndex } from "../colors";
import { align } from "../lines";
import { formatNumber, formatShare } from "../units";
import { useAnswer, useQuery } from "../useQuery";
import { chooseMetric } from "./chosenMetrics";

const MINUTES = 10;
const POINTS = 120;

/** GPU utilization; hidden if it is not recorded. */
export function GpuPanel({ run }: { run: string }) {
  const metrics = useAnswer("metrics", { run }, { everyMs: 10_000 });
  const summary = useAnswer("summary", { run }, { everyMs: 2000 });
  const metric = chooseMetric(
    (metrics.data ?? []).map((one) => one.name),
    "gpu",
  );
  const end = summary.data?.end_ns ?? null;
  const lines = useQuery(`gpu ${run} ${metric}`, (signal) => ask(run, metric!, end!, signal), {
    enabled: metric !== undefined && end !== null,
    everyMs: 3000,
  });
  const { x, series } = useMemo(() => joined(lines.data ?? []), [lines.data]);
  if (metric === undefined || x.length === 0) return null;
  // Shares from 0 to 1 from our own monitor, percent from Ray's.
  const isShare = /ratio$/.test(metric);
  const format = isShare ? formatShare : (value: number | null | undefined) => `${formatNumber(value)} %`;
  return (
    <Panel
      className="span-4"
      title="GPU use"
      value={format(series[0]?.values.at(-1))}
      actions={<ViewLink view="hardware">by GPU</ViewLink>}
    >
      <Chart label="GPU use" x={x} series={series} height={120} range={[0, isShare ? 1 : 100]} format={format} />
    </Panel>
  );
}

async function ask(run: string, metric: string, end: number, signal: AbortSignal): Promise<Line[]> {
  const window = {
    run,
    metric,
    start_ns: end - MINUTES * 60e9,
    end_ns: end,
    width: (MINUTES * 60e9) / POINTS,
    group_by: [""],
  };
  const found = await Promise.all(
    (["avg", "min"] as const).map((aggregation) => api.metricRange({ ...window, aggregation }, signal)),
  );
  return found.flatMap(([line], place) =>
    line === undefined ? [] : [{ ...line, labels: { what: place === 0 ? "average" : "least busy" } }],
  );
}

function joined(lines: readonly Line[]) {
  const { x, lines: rows } = align(lines);
  return {
    x: x.map((time) => time / 1e9),
    series: rows.map(({ labels, values }, place) => ({
      label: labels["what"] ?? "",
      color: colorOfIndex(place),
      isFaint: place > 0,
      values,
    })),
  };
}
