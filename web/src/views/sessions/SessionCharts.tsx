import { useMemo } from "react";
import type { PartDurations } from "../../api";
import { Chart, type ChartSeries } from "../../components/Chart";
import { Distribution } from "../../components/Distribution";
import { ErrorLine } from "../../components/ErrorLine";
import { Loading } from "../../components/Loading";
import { Panel } from "../../components/Panel";
import { colorOfName } from "../../colors";
import { ENDED_STATUSES } from "../../sessionStatus";
import { quantileLines } from "../../statistics";
import { formatCount, formatSeconds } from "../../units";
import type { Sample } from "./data";

/** How long sessions and their parts take: distributions with p50, p95, p99 of all that match a search. */
export function Distributions({ parts, error }: { parts: readonly PartDurations[] | undefined; error?: string }) {
  const finished = totalOf(parts)?.count;
  return (
    <Panel title="Durations" actions={finished !== undefined && <span>{`${formatCount(finished)} finished`}</span>}>
      {parts === undefined ? (
        error === undefined ? (
          <Loading />
        ) : (
          <ErrorLine text={error} />
        )
      ) : parts.length === 0 ? (
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
              {parts.map((part) => (
                <Distribution
                  key={`${part.is_phase} ${part.name}`}
                  part={part}
                  color={isTotal(part) ? "#336699" : colorOfName(part.name)}
                />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}

function isTotal(part: PartDurations): boolean {
  return part.name === "total" && !part.is_phase;
}

/** The durations of sessions from submission to the end; undefined if none has finished. */
export function totalOf(parts: readonly PartDurations[] | undefined): PartDurations | undefined {
  return parts?.find(isTotal);
}

const STATUS_COLORS: Readonly<Record<string, string>> = {
  accepted: "#2c8c7c",
  rejected: "#e69f00",
  failed: "#d1372c",
  cancelled: "#8a8f98",
  dropped: "#7a6fd0",
  lost: "#aa4466",
};

/** With more series than this, the legend needs a second or a third row. */
const FEW = 3;

interface ScatterProps {
  /** Finished sessions by submission: all of them, or a sample that includes the slowest. */
  samples: readonly Sample[];
  /** Of all finished sessions, also of those without a point. */
  total: PartDurations | undefined;
  isLogarithmic: boolean;
  onPick: (sessionId: string) => void;
}

/** Finished sessions as points, by submission and duration. */
export function LatencyScatter({ samples: sorted, total, isLogarithmic, onPick }: ScatterProps) {
  const x = useMemo(() => sorted.map((sample) => sample.submit_ts), [sorted]);
  const series = useMemo<ChartSeries[]>(() => {
    const present = new Set(sorted.map((sample) => sample.status ?? ""));
    const points = ENDED_STATUSES.filter((status) => present.has(status)).map((status) => ({
      label: status,
      color: STATUS_COLORS[status] ?? "#336699",
      values: sorted.map((sample) => (sample.status === status ? sample.total_s : null)),
    }));
    return total === undefined ? points : [...points, ...quantileLines(total.p50_s, total.p95_s, sorted.length)];
  }, [sorted, total]);
  if (sorted.length === 0) return <p className="muted">No finished sessions yet.</p>;
  return (
    <Chart
      label="Total time of sessions by submission"
      x={x}
      series={series}
      kind="points"
      format={formatSeconds}
      isLogarithmic={isLogarithmic}
      height={series.length > FEW ? 132 : 158}
      onPick={(at) => {
        const found = sorted.find((sample) => sample.submit_ts === at);
        if (found !== undefined) onPick(found.session_id);
      }}
    />
  );
}
