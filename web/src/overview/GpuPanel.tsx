import { useMemo } from "react";
import { type Line, api } from "../api";
import { Chart } from "../components/Chart";
import { Panel } from "../components/Panel";
import { ViewLink } from "../components/ViewLink";
import { colorOfIndex } from "../colors";
import { align } from "../lines";
import { quantityNow } from "../hardwareNow";
import { formatShare } from "../units";
import { useAnswer, useQuery } from "../useQuery";
import { alignedRange } from "../views/metrics/range";

const MINUTES = 10;
const POINTS = 120;

/** GPU utilization; hidden if it is not recorded. */
export function GpuPanel({ run }: { run: string }) {
  const { data: now } = useAnswer("hardware/now", { run, devices: false }, { everyMs: 3000 });
  const metric = now?.metric ?? null;
  const end = now?.time_ns ?? null;
  const lines = useQuery(`gpu ${run} ${metric}`, (signal) => ask(run, metric!, end!, signal), {
    enabled: metric !== null && end !== null,
    everyMs: 3000,
  });
  const factor = now?.factor ?? 1;
  const { x, series } = useMemo(() => joined(lines.data ?? [], factor), [lines.data, factor]);
  if (now === undefined || metric === null || x.length === 0) return null;
  return (
    <Panel
      className="span-4"
      title="GPU use"
      value={formatShare(quantityNow(now, "utilization_ratio")?.mean)}
      actions={<ViewLink view="hardware">by GPU</ViewLink>}
    >
      <Chart label="GPU use" x={x} series={series} height={120} range={[0, 1]} format={formatShare} />
    </Panel>
  );
}

async function ask(run: string, metric: string, end: number, signal: AbortSignal): Promise<Line[]> {
  const window = { run, metric, ...alignedRange(end - MINUTES * 60e9, end, POINTS), group_by: [""] };
  const found = await Promise.all(
    (["avg", "min"] as const).map((aggregation) => api.metricRange({ ...window, aggregation }, signal)),
  );
  return found.flatMap(([line], place) =>
    line === undefined ? [] : [{ ...line, labels: { what: place === 0 ? "average" : "least busy" } }],
  );
}

/** The lines as shares from 0 to 1. */
function joined(lines: readonly Line[], factor: number) {
  const { x, lines: rows } = align(lines);
  return {
    x: x.map((time) => time / 1e9),
    series: rows.map(({ labels, values }, place) => ({
      label: labels["what"] ?? "",
      color: colorOfIndex(place),
      isFaint: place > 0,
      values: values.map((value) => (value === null ? null : value * factor)),
    })),
  };
}
