import { useMemo } from "react";
import { Chart, type ChartSeries } from "../../components/Chart";
import { Distribution } from "../../components/Distribution";
import { Loading } from "../../components/Loading";
import { Panel } from "../../components/Panel";
import { colorOfName } from "../../colors";
import { ENDED_STATUSES } from "../../sessionStatus";
import { quantileLines, spreadOf } from "../../statistics";
import { formatCount, formatSeconds } from "../../units";
import type { Sample } from "./data";

const MOST_PHASES = 8;

/** How long sessions and their parts take: distributions with p50, p95, p99. */
export function Distributions({ samples }: { samples: readonly Sample[] | undefined }) {
  const rows = useMemo(() => quantities(samples ?? []), [samples]);
  return (
    <Panel title="Durations" actions={<span>{`${formatCount(samples?.length)} finished`}</span>}>
      {samples === undefined ? (
        <Loading />
      ) : rows.length === 0 ? (
        <p className="muted">No finished sessions yet.</p>
      ) : (
        <div className="scroll">
          <table className="plain distributions">
            <thead>
              <tr>
                <th>Part</th>
                <th>Distribution</th>
                <th className="right">p50</th>
                <th className="right">p95</th>
                <th className="right">p99</th>
                <th className="right">max</th>
              </tr>
            </thead>
            <tbody>
              {rows.map(([name, spread]) => (
                <Distribution
                  key={name}
                  name={name}
                  spread={spread}
                  color={name === "total" ? "#336699" : colorOfName(name)}
                  format={formatSeconds}
                />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}

function quantities(samples: readonly Sample[]) {
  const phases = new Map<string, number>();
  for (const sample of samples) {
    for (const [name, seconds] of Object.entries(sample.phase_seconds ?? {}))
      phases.set(name, (phases.get(name) ?? 0) + seconds);
  }
  const largest = [...phases]
    .sort((one, other) => other[1] - one[1])
    .slice(0, MOST_PHASES)
    .map(([name]) => name);
  const all = [
    ["total", spreadOf(samples.map((sample) => sample.total_s))] as const,
    ["queue wait", spreadOf(samples.map((sample) => sample.queue_wait_s))] as const,
    ["runner wait", spreadOf(samples.map((sample) => sample.runner_wait_s))] as const,
    ...largest.map((name) => [name, spreadOf(samples.map((sample) => sample.phase_seconds?.[name]))] as const),
    ["post wait", spreadOf(samples.map((sample) => sample.post_wait_s))] as const,
  ];
  return all.filter(([, spread]) => spread.count > 0);
}

const STATUS_COLORS: Readonly<Record<string, string>> = {
  accepted: "#2c8c7c",
  rejected: "#e69f00",
  failed: "#d1372c",
  cancelled: "#8a8f98",
  dropped: "#7a6fd0",
  lost: "#aa4466",
};

interface ScatterProps {
  samples: readonly Sample[];
  /** Always shown, even if they are not in the sample. */
  slowest: readonly Sample[];
  isLogarithmic: boolean;
  onPick: (sessionId: string) => void;
}

/** Each finished session as a point, by submission and duration. */
export function LatencyScatter({ samples, slowest, isLogarithmic, onPick }: ScatterProps) {
  const sorted = useMemo(() => {
    const all = new Map([...samples, ...slowest].map((sample) => [sample.session_id, sample]));
    return [...all.values()]
      .filter((sample) => sample.submit_ts != null && sample.total_s != null)
      .sort((one, other) => one.submit_ts! - other.submit_ts!);
  }, [samples, slowest]);
  const x = useMemo(() => sorted.map((sample) => sample.submit_ts!), [sorted]);
  const series = useMemo<ChartSeries[]>(() => {
    const present = new Set(sorted.map((sample) => sample.status ?? ""));
    const points = ENDED_STATUSES.filter((status) => present.has(status)).map((status) => ({
      label: status,
      color: STATUS_COLORS[status] ?? "#336699",
      values: sorted.map((sample) => (sample.status === status ? sample.total_s! : null)),
    }));
    return [...points, ...quantileLines(sorted.map((sample) => sample.total_s!))];
  }, [sorted]);
  if (sorted.length === 0) return <p className="muted">No finished sessions yet.</p>;
  return (
    <Chart
      label="Total time of sessions by submission"
      x={x}
      series={series}
      kind="points"
      format={formatSeconds}
      isLogarithmic={isLogarithmic}
      height={158}
      onPick={(at) => {
        const found = sorted.find((sample) => sample.submit_ts === at);
        if (found !== undefined) onPick(found.session_id);
      }}
    />
  );
}
