import { useMemo } from "react";
import { type Step, type StepMetric, api } from "../api";
import { Chart } from "../components/Chart";
import { EmptyState } from "../components/EmptyState";
import { Panel } from "../components/Panel";
import { FindingBanner } from "../overview/FindingBanner";
import { Tiles } from "../overview/Tiles";
import { Troubles } from "../overview/Troubles";
import { GpuPanel } from "../overview/GpuPanel";
import { OpenWorkPanel } from "../overview/OpenWorkPanel";
import { WhoIsSlow } from "../overview/WhoIsSlow";
import { chooseMetric, otherMetrics } from "../overview/chosenMetrics";
import { StepPanel } from "../overview/StepPanel";
import { colourOfIndex } from "../colours";
import { metricFormatter, shorten } from "../units";
import { linkTo, navigate, useUrlState } from "../url";
import { useQuery } from "../useQuery";
import { useStepMetrics, useSteps } from "../useSteps";
import type { ViewProps } from ".";

const SHOWN_STEPS = 60;

/** Is the run healthy, and where does the time go? */
export default function Overview({ run }: ViewProps) {
  const lanes = useQuery(`lanes ${run}`, (signal) => api.lanes({ run }, signal), { everyMs: 4000 });
  const [until, setUntil] = useUrlState("until", -1);
  const steps = useSteps(run, SHOWN_STEPS, until < 0 ? undefined : until);
  const metrics = useStepMetrics(run, steps);
  const byStep = useMemo(() => seriesByName(metrics ?? []), [metrics]);
  const names = [...byStep.keys()];
  const chosen = {
    reward: chooseMetric(names, "reward"),
    throughput: chooseMetric(names, "throughput"),
    staleness: chooseMetric(names, "staleness"),
  };
  const shown = [chosen.reward, chosen.throughput, chosen.staleness].filter((name) => name !== undefined);
  const charts = [...shown, ...otherMetrics(names, shown, Math.max(0, 3 - shown.length))];
  if (lanes.error !== undefined && lanes.data === undefined) return <EmptyState title="No answer" text={lanes.error} />;

  return (
    <div className="overview">
      <FindingBanner run={run} />
      <Tiles run={run} steps={steps ?? NO_STEPS} values={byStep} chosen={chosen} />
      <div className="grid">
        <StepPanel run={run} steps={steps ?? NO_STEPS} until={until} onUntil={setUntil} />
        <WhoIsSlow run={run} steps={steps ?? NO_STEPS} lanes={lanes.data ?? []} />
        {charts.map((name, place) => (
          <MetricPanel key={name} name={name} points={byStep.get(name) ?? NO_POINTS} colour={colourOfIndex(place)} />
        ))}
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
    points.y.push(metric.average);
  }
  return found;
}

function MetricPanel({ name, points, colour }: { name: string; points: Points; colour: string }) {
  const format = metricFormatter(name);
  const series = useMemo(() => [{ label: name, values: points.y, colour }], [name, points, colour]);
  return (
    <Panel title={shorten(name, 60)} value={format(points.y.at(-1))} className="span-4">
      <Chart
        label={`${name} by step`}
        x={points.x}
        series={series}
        xKind="step"
        height={120}
        format={format}
        syncKey="steps"
        hasLegend={false}
        onPick={(step) => navigate(linkTo("metrics", { metric: name, step }))}
      />
    </Panel>
  );
}
