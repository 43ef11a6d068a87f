import { useMemo } from "react";
import type { Step } from "../api";
import { Chart, type ChartSeries } from "../components/Chart";
import { colorOfName } from "../colors";
import { formatSeconds } from "../units";
import { stepSeconds, wholeSteps } from "./stepTimes";

const FEWEST_STEPS = 3;

/** The time of each finished step, for a chart. */
export function useStepTimes(steps: readonly Step[]): { x: number[]; series: ChartSeries[] } {
  return useMemo(() => {
    const times = stepSeconds(steps);
    const values = times.map((one) => one.seconds);
    return { x: times.map((one) => one.step), series: [{ label: "step time", values, color: colorOfName("step") }] };
  }, [steps]);
}

interface Props {
  steps: readonly Step[];
  band: readonly [number, number] | null;
  onSteps: (first: number, last: number) => void;
}

/** The time of all steps, small: a click chooses a step, a drag chooses several, for all views. */
export function StepStrip({ steps, band, onSteps }: Props) {
  const { x, series } = useStepTimes(steps);
  if (x.length < FEWEST_STEPS) return null;
  return (
    <section
      className="panel step-strip"
      title="Click a step, or drag across several, to show that part of the run in all views"
    >
      <Chart
        label="Step times"
        xKind="step"
        x={x}
        series={series}
        format={formatSeconds}
        height={78}
        band={band}
        hasLegend={false}
        onSelect={(from, to) => onSteps(...wholeSteps(from, to))}
        onPick={(step) => onSteps(step, step)}
      />
    </section>
  );
}
