import { useCallback, useMemo } from "react";
import type { Step, StepMetric } from "../api";
import { Chart } from "../components/Chart";
import { EmptyState } from "../components/EmptyState";
import { Panel } from "../components/Panel";
import { ViewLink } from "../components/ViewLink";
import { FindingBanner } from "../overview/FindingBanner";
import { Tiles } from "../overview/Tiles";
import { Troubles } from "../overview/Troubles";
import { GpuPanel } from "../overview/GpuPanel";
import { OpenWorkPanel } from "../overview/OpenWorkPanel";
import { WhoIsSlow } from "../overview/WhoIsSlow";
import { metricOf, otherMetrics } from "../overview/chosenMetrics";
import { ComparisonPanel } from "../overview/ComparisonPanel";
import { CriticalPathPanel } from "../overview/CriticalPathPanel";
import { StepPanel } from "../overview/StepPanel";
import { StepStrip } from "../overview/StepStrip";
import { lastShown, valueAt, wholeSteps } from "../overview/stepTimes";
import { usePace } from "../overview/usePace";
import { colorOfIndex } from "../colors";
import { useSavedViews } from "../savedViews";
import { metricFormatter, shorten } from "../units";
import { useAnswer } from "../useQuery";
import { useStepMetrics, useSteps } from "../useSteps";
import { useWindow } from "../window";
import type { ViewProps } from ".";

const SHOWN_STEPS = 60;
const MOST_STEPS = 1000;

/** Is the run healthy, and where does the time go? */
export default function Overview({ run }: ViewProps) {
  const lanes = useAnswer("lanes", { run }, { everyMs: 4000 });
  const shared = useWindow(run);
  const chosenSteps = shared.steps;
  const until = chosenSteps === null ? -1 : lastShown(chosenSteps);
  const count = chosenSteps === null ? SHOWN_STEPS : Math.max(SHOWN_STEPS, chosenSteps.last - chosenSteps.first + 1);
  const steps = useSteps(run, Math.min(MOST_STEPS, count), chosenSteps === null ? undefined : until);
  const all = useSteps(run, MOST_STEPS);
  const latestPace = usePace(run, SHOWN_STEPS);
  const chosenPace = usePace(run, Math.min(MOST_STEPS, count), until, chosenSteps !== null);
  const latest = useMemo(() => all?.slice(-SHOWN_STEPS), [all]);
  const onSteps = useCallback(
    (first: number, last: number) => shared.setWindow({ kind: "steps", first, last }),
    [shared.setWindow],
  );
  const band = chosenSteps === null ? null : ([chosenSteps.first - 0.5, chosenSteps.last + 0.5] as const);
  const metrics = useStepMetrics(run, steps);
  const byStep = useMemo(() => seriesByName(metrics ?? []), [metrics]);
  const known = useAnswer("metrics", { run }, { everyMs: 10_000 });
  const listed = (known.data ?? []).filter((metric) => byStep.has(metric.name));
  const chosen = {
    reward: metricOf(listed, "reward"),
    throughput: metricOf(listed, "throughput"),
    staleness: metricOf(listed, "staleness"),
  };
  const shown = [chosen.reward, chosen.throughput, chosen.staleness].filter((name) => name !== undefined);
  const pinned = useSavedViews().pins.filter((name) => byStep.has(name) && !shown.includes(name));
  const wanted = [...shown, ...pinned];
  const charts = [...wanted, ...otherMetrics(listed, wanted, Math.max(0, 3 - wanted.length))];
  if (lanes.error !== undefined && lanes.data === undefined)
    return <EmptyState title="No response" text={lanes.error} />;

  return (
    <div className="overview">
      <FindingBanner run={run} />
      <Tiles run={run} steps={latest} pace={latestPace.data} values={byStep} chosen={chosen} at={chosenSteps?.last} />
      <StepStrip steps={all ?? NO_STEPS} band={band} onSteps={onSteps} />
      <div className="grid">
        {chosenSteps !== null && chosenSteps.first === chosenSteps.last && (
          <ComparisonPanel run={run} step={chosenSteps.first} onSteps={onSteps} />
        )}
        <StepPanel run={run} steps={steps ?? NO_STEPS} isAwaited={steps === undefined} band={band} onSteps={onSteps} />
        <WhoIsSlow
          run={run}
          steps={steps}
          pace={(chosenSteps === null ? latestPace : chosenPace).data}
          lanes={lanes.data ?? []}
        />
        {charts.map((name, place) => (
          <MetricPanel
            key={name}
            name={name}
            points={byStep.get(name) ?? NO_POINTS}
            at={chosenSteps?.last}
            color={colorOfIndex(place)}
            band={band}
            onSteps={onSteps}
          />
        ))}
        <CriticalPathPanel run={run} last={chosenSteps?.last} />
        <GpuPanel run={run} />
        <OpenWorkPanel run={run} />
        <Troubles run={run} />
      </div>
    </div>
  );
}

const NO_STEPS: readonly Step[] = [];

interface Points {
  x: number[];
  y: number[];
}
const NO_POINTS: Points = { x: [], y: [] };

function seriesByName(metrics: readonly StepMetric[]): Map<string, Points> {
  const found = new Map<string, Points>();
  for (const metric of metrics) {
    let points = found.get(metric.name);
    if (points === undefined) found.set(metric.name, (points = { x: [], y: [] }));
    points.x.push(metric.step);
    points.y.push(averageOf(metric));
  }
  return found;
}

/** JSON has no NaN: an average is never absent, so null means NaN. */
function averageOf({ average }: { average: number | null }): number {
  return average ?? NaN;
}

interface MetricPanelProps {
  name: string;
  points: Points;
  /** The step whose value to show; undefined for the latest. */
  at: number | undefined;
  color: string;
  band: readonly [number, number] | null;
  onSteps: (first: number, last: number) => void;
}

function MetricPanel({ name, points, at, color, band, onSteps }: MetricPanelProps) {
  const format = metricFormatter(name);
  const value = valueAt(points, at);
  const series = useMemo(() => [{ label: name, values: points.y, color }], [name, points, color]);
  return (
    <Panel
      title={shorten(name, 60)}
      value={Number.isNaN(value) ? "NaN" : format(value)}
      className="span-4"
      actions={
        <ViewLink view="metrics" state={{ metric: name, axis: "step" }}>
          explore
        </ViewLink>
      }
    >
      <Chart
        label={`${name} by step`}
        x={points.x}
        series={series}
        xKind="step"
        height={120}
        format={format}
        syncKey="steps"
        hasLegend={false}
        band={band}
        onSelect={(from, to) => onSteps(...wholeSteps(from, to))}
        onPick={(step) => onSteps(step, step)}
      />
    </Panel>
  );
}
