import { useMemo } from "react";
import { type Step, api } from "../api";
import { Chart } from "../components/Chart";
import { EmptyState } from "../components/EmptyState";
import { Loading } from "../components/Loading";
import { NumberField } from "../components/NumberField";
import { Panel } from "../components/Panel";
import { Choice } from "../components/Select";
import { colourOfName } from "../colours";
import { formatSeconds, formatShare, shorten } from "../units";
import { useUrlState } from "../url";
import { useQuery } from "../useQuery";
import { type Inside, barsOf, insideOf, stepSeconds, wholeSteps } from "./stepTimes";

interface Props {
  run: string;
  steps: readonly Step[];
  /** The steps are on the way. */
  isAwaited: boolean;
  /** The window that all views share, on the axis of steps; null for none. */
  band: readonly [number, number] | null;
  /** Told the steps that were chosen. */
  onSteps: (first: number, last: number) => void;
}

/** The time of each finished step by phase, on an average lane of a role, and what ran inside the phases. */
export function StepPanel({ run, steps, isAwaited, band, onSteps }: Props) {
  const [role, setRole] = useUrlState("role", "");
  const first = steps[0]?.step;
  const last = steps.at(-1)?.step;
  const { data, isLoading } = useQuery(
    `breakdown ${run} ${role} ${band === null ? "latest" : `${first} ${last}`}`,
    (signal) => api.stepBreakdown({ run, first: first!, last: last!, role: role === "" ? undefined : role }, signal),
    { enabled: first !== undefined && last !== undefined, everyMs: 2000 },
  );
  const { x, series, sums } = useMemo(() => {
    const bars = barsOf(data ?? { role: "", roles: [], steps: [] });
    return {
      x: bars.steps,
      series: bars.phases.map(({ name, seconds }) => ({ label: name, values: seconds, colour: colourOfName(name) })),
      sums: bars.phases.map(({ seconds }) => seconds.reduce((sum, value) => sum + value, 0)),
    };
  }, [data]);
  const whole = sums.reduce((sum, value) => sum + value, 0);
  const largest = series[0];
  const inside = useMemo(() => (data === undefined ? [] : insideOf(data)), [data]);
  const seconds = stepSeconds(steps);
  const roles = data?.roles ?? [];
  return (
    <Panel
      className="span-8"
      title="Where each step's time goes"
      value={
        largest === undefined || whole === 0
          ? undefined
          : `${formatShare(sums[0]! / whole)} ${shorten(largest.label, 40)}`
      }
      actions={
        <>
          <StepRange steps={steps} band={band} onSteps={onSteps} />
          {roles.length > 1 && (
            <Choice
              label="Role"
              value={data?.role ?? role}
              onChange={setRole}
              options={roles.map((one) => ({ value: one, label: shorten(one === "" ? "no role" : one, 20) }))}
            />
          )}
        </>
      }
    >
      {x.length > 0 ? (
        <>
          <Chart
            label="Step time by phase"
            kind="stacked"
            xKind="step"
            x={x}
            series={series}
            format={formatSeconds}
            height={210}
            syncKey="steps"
            band={band}
            onSelect={(from, to) => onSteps(...wholeSteps(from, to))}
            onPick={(step) => onSteps(step, step)}
          />
          {inside.slice(0, 3).map((one) => (
            <InsideLine key={one.name} inside={one} />
          ))}
        </>
      ) : seconds.length > 0 && !isLoading ? (
        <StepTimes seconds={seconds} onPick={(step) => onSteps(step, step)} />
      ) : isAwaited || (isLoading && first !== undefined) ? (
        <Loading />
      ) : (
        <EmptyState
          title="No finished step yet"
          text="Name the step and the states, and each step's time is split here."
          code={'with insight.step(7):\n    with insight.trace_state("rollout"):\n        ...'}
        />
      )}
    </Panel>
  );
}

/** Steps without states still took their time. */
function StepTimes({ seconds, onPick }: { seconds: ReturnType<typeof stepSeconds>; onPick: (step: number) => void }) {
  const x = useMemo(() => seconds.map((one) => one.step), [seconds]);
  const series = useMemo(
    () => [{ label: "step time", values: seconds.map((one) => one.seconds), colour: colourOfName("step") }],
    [seconds],
  );
  return (
    <>
      <Chart
        label="Step time"
        xKind="step"
        x={x}
        series={series}
        format={formatSeconds}
        height={210}
        syncKey="steps"
        onPick={onPick}
      />
      <p className="muted">
        No states were recorded in these steps: with insight.trace_state their time is split here.
      </p>
    </>
  );
}

/** What ran inside a phase; parts may run at once, so they are not stacked. */
function InsideLine({ inside }: { inside: Inside }) {
  return (
    <p className="inside-line">
      <i className="swatch" style={{ background: colourOfName(inside.name) }} /> {shorten(inside.name, 30)}{" "}
      <b>{formatSeconds(inside.seconds)}</b> <span className="muted">inside:</span>{" "}
      {inside.parts.slice(0, 5).map((part) => (
        <span key={part.name}>
          <i className="swatch" style={{ background: colourOfName(part.name) }} /> {shorten(part.name, 30)}{" "}
          <b>{formatSeconds(part.seconds)}</b>{" "}
        </span>
      ))}
    </p>
  );
}

/** Goes to one step, the one before or after it, or to a step that is typed. */
function StepRange({ steps, band, onSteps }: Pick<Props, "steps" | "band" | "onSteps">) {
  const last = steps.at(-1)?.step;
  if (last === undefined) return null;
  const shown = band === null ? last : Math.floor(band[1]);
  const go = (step: number) => onSteps(Math.max(0, step), Math.max(0, step));
  return (
    <span className="toolbar">
      <button type="button" className="icon-button" onClick={() => go(shown - 1)} aria-label="Earlier step">
        ‹
      </button>
      <NumberField label="Step to look at" value={shown} onChange={go} />
      <button type="button" className="icon-button" onClick={() => go(shown + 1)} aria-label="Later step">
        ›
      </button>
    </span>
  );
}
