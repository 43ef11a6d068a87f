import { useMemo } from "react";
import { type Lane, type Step, type StepMetric, api } from "../api";
import { Chart } from "../components/Chart";
import { EmptyState } from "../components/EmptyState";
import { Panel } from "../components/Panel";
import { Choice } from "../components/Select";
import { distinctColours } from "../colours";
import { Tiles } from "../overview/Tiles";
import { Troubles } from "../overview/Troubles";
import { GpuPanel } from "../overview/GpuPanel";
import { OpenWorkPanel } from "../overview/OpenWorkPanel";
import { WhoIsSlow } from "../overview/WhoIsSlow";
import { chooseMetric, otherMetrics } from "../overview/chosenMetrics";
import { phasesByStep, rolesOf, stepSeconds } from "../overview/stepPhases";
import { colourOfIndex } from "../colours";
import { formatSeconds, formatShare, metricFormatter, shorten } from "../units";
import { linkTo, navigate, useUrlState } from "../url";
import { useQuery } from "../useQuery";
import { useStepMetrics, useStepTimes, useSteps } from "../useSteps";
import type { ViewProps } from ".";

const SHOWN_STEPS = 60;

/** Is the run healthy, and where does the time go? */
export default function Overview({ run }: ViewProps) {
  const lanes = useQuery(`lanes ${run}`, (signal) => api.lanes({ run }, signal), { everyMs: 4000 });
  const steps = useSteps(run, SHOWN_STEPS);
  const times = useStepTimes(run, steps);
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
      <Tiles run={run} steps={steps ?? NO_STEPS} values={byStep} chosen={chosen} />
      <div className="grid">
        <StepPanel
          steps={steps ?? NO_STEPS}
          lanes={lanes.data ?? []}
          times={times ?? []}
          isLoading={times === undefined}
        />
        <WhoIsSlow lanes={lanes.data ?? []} times={times ?? []} steps={steps ?? NO_STEPS} />
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

interface StepPanelProps {
  steps: readonly Step[];
  lanes: readonly Lane[];
  times: readonly Parameters<typeof phasesByStep>[0][number][];
  isLoading: boolean;
}

/** The time of each step by phase, on an average lane of a role. */
function StepPanel({ steps, lanes, times, isLoading }: StepPanelProps) {
  const roles = useMemo(() => {
    const busy = new Set(times.map((time) => time.lane_id));
    return rolesOf(lanes.filter((lane) => busy.has(lane.lane_id)));
  }, [lanes, times]);
  const [wanted, setRole] = useUrlState("role", "");
  const role = roles.includes(wanted) ? wanted : (roles[0] ?? "");
  const { x, series, total } = useMemo(() => {
    // The newest step is still going on; half a bar would look like a quick step.
    const last = steps.at(-1)?.step ?? Infinity;
    const found = phasesByStep(steps.length > 1 ? times.filter((time) => time.step < last) : times, lanes, role);
    const colours = distinctColours(found.phases.map((phase) => phase.name));
    return {
      x: found.steps,
      series: found.phases.map((phase) => ({
        label: phase.name,
        values: phase.seconds,
        colour: colours.get(phase.name)!,
      })),
      total: found.phases.reduce((sum, phase) => sum + phase.total, 0),
    };
  }, [times, lanes, role, steps]);
  const largest = series[0];
  const share =
    largest === undefined || total === 0 ? null : largest.values.reduce((sum, value) => sum + value, 0) / total;
  const seconds = stepSeconds(steps);
  return (
    <Panel
      className="span-8"
      title="Where each step's time goes"
      value={largest === undefined ? undefined : `${formatShare(share)} ${shorten(largest.label, 40)}`}
      actions={
        roles.length > 1 && (
          <Choice
            label="Role"
            value={role}
            onChange={(next) => setRole(next)}
            options={roles.map((one) => ({ value: one, label: shorten(one === "" ? "no role" : one, 20) }))}
          />
        )
      }
    >
      {x.length > 0 ? (
        <Chart
          label="Step time by phase"
          kind="stacked"
          xKind="step"
          x={x}
          series={series}
          format={formatSeconds}
          height={210}
          syncKey="steps"
          onPick={(step) => showStep(steps, step)}
        />
      ) : (
        <EmptyState
          title={isLoading ? "Loading…" : "No states under steps yet"}
          text={
            seconds.length > 0
              ? "Steps are known, but no states were recorded in them."
              : "Name the step and the states, and each step's time is split here."
          }
          code={'with insight.step(7):\n    with insight.trace_state("rollout"):\n        ...'}
        />
      )}
    </Panel>
  );
}

function showStep(steps: readonly Step[], step: number): void {
  const place = steps.findIndex((one) => one.step === step);
  const found = steps[place];
  if (found === undefined) return;
  const end = steps[place + 1]?.start_ns ?? found.end_ns;
  navigate(linkTo("timeline", { from: found.start_ns / 1e9, to: end / 1e9 }));
}
