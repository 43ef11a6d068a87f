import { useMemo } from "react";
import { Chart, type ChartSeries } from "../../components/Chart";
import { type StepDuration, reportFacts } from "../../reportFacts";
import { formatSeconds } from "../../units";
import type { Sample } from "./data";
import { durationsByStep } from "./durations";

interface Props {
  samples: readonly Sample[];
  isLogarithmic: boolean;
  onStep: (step: number) => void;
}

/** Session durations by step; a report has all steps, the page only the loaded ones. */
export function StepDurations({ samples, isLogarithmic, onStep }: Props) {
  const rows: readonly StepDuration[] = useMemo(
    () => reportFacts()?.sessionSteps ?? durationsByStep(samples),
    [samples],
  );
  const x = useMemo(() => rows.map((row) => row.step), [rows]);
  const series = useMemo<ChartSeries[]>(
    () => [
      { label: "max", color: "#c8553d", values: rows.map((row) => row.max), isFaint: true },
      { label: "p95", color: "#e69f00", values: rows.map((row) => row.p95) },
      { label: "p50", color: "#336699", values: rows.map((row) => row.p50) },
    ],
    [rows],
  );
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
