import { useMemo } from "react";
import type { Step } from "../api";
import { Chart } from "../components/Chart";
import { colourOfName } from "../colours";
import { formatSeconds } from "../units";
import { stepSeconds, wholeSteps } from "./stepTimes";

const FEWEST_STEPS = 3;

interface Props {
  steps: readonly Step[];
  band: readonly [number, number] | null;
  onSteps: (first: number, last: number) => void;
}

/** The time of all steps, small: a click chooses a step, a drag chooses several, for all views. */
export function StepStrip({ steps, band, onSteps }: Props) {
  const seconds = useMemo(() => stepSeconds(steps), [steps]);
  const x = useMemo(() => seconds.map((one) => one.step), [seconds]);
  const series = useMemo(
    () => [{ label: "step time", values: seconds.map((one) => one.seconds), colour: colourOfName("step") }],
    [seconds],
  );
  if (seconds.length < FEWEST_STEPS) return null;
  return (
    <section
      className="panel step-strip"
      title="Click a step, or drag over several: all views show that part of the run"
    >
      <Chart
        label="Time of all steps"
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
