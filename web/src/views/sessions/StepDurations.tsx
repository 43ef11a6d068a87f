import { useMemo } from "react";
import type { SessionConditions, SessionStep } from "../../api";
import { Chart, type ChartSeries } from "../../components/Chart";
import { ErrorLine } from "../../components/ErrorLine";
import { Loading } from "../../components/Loading";
import { formatSeconds } from "../../units";
import { useAnswer } from "../../useQuery";

interface Props {
  run: string;
  search: SessionConditions;
  isLogarithmic: boolean;
  onStep: (step: number) => void;
}

const NO_STEPS: readonly SessionStep[] = [];

/** Session durations by step, of all sessions that match a search. */
export function StepDurations({ run, search, isLogarithmic, onStep }: Props) {
  const { data, error } = useAnswer("sessions/steps", { run, ...search }, { everyMs: 10_000 });
  const rows = data ?? NO_STEPS;
  const x = useMemo(() => rows.map((row) => row.step), [rows]);
  const series = useMemo<ChartSeries[]>(
    () => [
      { label: "max", color: "#c8553d", values: rows.map((row) => row.max_s), isFaint: true },
      { label: "p95", color: "#e69f00", values: rows.map((row) => row.p95_s) },
      { label: "p50", color: "#336699", values: rows.map((row) => row.p50_s) },
    ],
    [rows],
  );
  if (data === undefined) return error === undefined ? <Loading /> : <ErrorLine text={error} />;
  if (rows.length === 0) return <p className="muted">No finished sessions with a step yet.</p>;
  return (
    <Chart
      label="Total time of sessions by step"
      x={x}
      series={series}
      xKind="step"
      format={formatSeconds}
      isLogarithmic={isLogarithmic}
      height={158}
      onPick={onStep}
    />
  );
}
