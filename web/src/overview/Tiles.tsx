import type { ProcessHealth, RunningStep, Step, StepErrors, StepPace } from "../api";
import { useLive } from "../live";
import { counted, formatCount, formatDuration, formatSeconds, formatShare, metricFormatter, shorten } from "../units";
import { ViewLink } from "../components/ViewLink";
import { processTitle } from "../processTitle";
import { reportFacts } from "../reportFacts";
import { type Tone, toneOf } from "../tones";
import { useAnswer } from "../useQuery";
import { median, sumOf } from "../statistics";
import { valueAt } from "./stepTimes";

interface Props {
  run: string;
  /** Undefined while loading. */
  steps: readonly Step[] | undefined;
  pace: StepPace | undefined;
  values: ReadonlyMap<string, { x: readonly number[]; y: readonly number[] }>;
  /** The step whose values to show; undefined for the latest. */
  at: number | undefined;
  chosen: Readonly<Record<"reward" | "throughput" | "staleness", string | undefined>>;
}

const NO_STEPS: readonly Step[] = [];

/** The key figures of the run in one row. */
export function Tiles({ run, steps: known, pace, values, chosen, at }: Props) {
  const steps = known ?? NO_STEPS;
  const processes = useAnswer("processes", { run }, { everyMs: 2000 });
  return (
    <div className="tiles">
      <Tile
        title="Step"
        value={formatCount(steps.at(-1)?.step)}
        detail={
          known === undefined
            ? "loading…"
            : steps.length > 0
              ? `last ${counted(steps.length, "step")} shown`
              : "no steps yet"
        }
      />
      <StepTimeTile pace={pace} />
      {pace?.running != null && <RunningTile running={pace.running} />}
      {(["reward", "throughput", "staleness"] as const).map((wish) => {
        const name = chosen[wish];
        if (name === undefined) return null;
        const points = values.get(name) ?? { x: [], y: [] };
        const value = valueAt(points, at);
        const format = metricFormatter(name);
        return (
          <Tile
            key={wish}
            title={shorten(name, 28)}
            value={Number.isNaN(value) ? "NaN" : format(value)}
            detail={at === undefined ? versus(points.y, format) : `at step ${formatCount(at)}`}
          />
        );
      })}
      <ErrorTile errors={pace?.errors} />
      {processes.data !== undefined && <ProcessTile processes={processes.data} />}
      {processes.data !== undefined && <TelemetryTile processes={processes.data} />}
    </div>
  );
}

function StepTimeTile({ pace }: { pace: StepPace | undefined }) {
  const { last_ns = null, usual_ns = null, change = null, severity } = pace ?? {};
  const typical = usual_ns === null ? "" : `typical ${formatDuration(usual_ns)}`;
  return (
    <Tile
      title="Step time"
      value={formatDuration(last_ns)}
      detail={change === null ? typical : trend(change)}
      tone={change === null ? "plain" : toneOf(severity)}
    />
  );
}

function ErrorTile({ errors }: { errors: StepErrors | undefined }) {
  const share = errors?.share ?? null;
  return (
    <Tile
      title="Errors, 10 steps"
      value={formatCount(errors?.errors)}
      detail={share === null ? (errors === undefined ? "" : "no spans") : `${formatShare(share)} of spans`}
      tone={share === null ? "plain" : toneOf(errors?.severity)}
    />
  );
}

/** The age of the running step, which shows if the run has stalled. */
function RunningTile({ running: { age_s, usual_ns, severity } }: { running: RunningStep }) {
  const usual = (usual_ns ?? 0) / 1e9;
  const times = age_s > usual ? `${formatCount(Math.round(age_s / usual))} × the typical time` : "usually";
  return (
    <Tile
      title="Running step"
      value={formatSeconds(age_s)}
      detail={usual === 0 ? "none finished yet" : `${times} ${formatSeconds(usual)}`}
      tone={toneOf(severity)}
    />
  );
}

function trend(change: number): string {
  if (Math.abs(change) < 0.03) return "steady";
  return `${formatShare(Math.abs(change))} ${change > 0 ? "slower" : "faster"}`;
}

function versus(values: readonly number[], format: (value: number) => string): string {
  return values.length < 6 ? "" : `median ${format(median(values))}`;
}

function ProcessTile({ processes }: { processes: readonly ProcessHealth[] }) {
  const silent = processes.filter((process) => process.state === "silent");
  const live = processes.filter((process) => process.state === "live").length;
  const worst = silent[0];
  return (
    <Tile
      title="Processes"
      value={`${formatCount(live)} of ${formatCount(processes.length)}`}
      detail={
        worst === undefined
          ? live > 0
            ? "live"
            : "the run has ended"
          : `${processTitle(worst)} ${worst.state} for ${formatSeconds(worst.silent_s)}`
      }
      tone={worst === undefined ? "good" : "bad"}
      view="processes"
    />
  );
}

function TelemetryTile({ processes }: { processes: readonly ProcessHealth[] }) {
  const { latestNs } = useLive();
  const lost = sumOf(processes.map((process) => process.lost));
  const missing = sumOf(processes.map((process) => process.missing_batches));
  const live = processes.filter((process) => process.state === "live");
  const lag = live.length === 0 ? null : Math.max(...live.map((process) => process.silent_s));
  const problems = [
    lost > 0 ? `${formatCount(lost)} lost` : "",
    missing > 0 ? `${formatCount(missing)} batches missing` : "",
  ].filter(Boolean);
  return (
    <Tile
      title="Telemetry"
      value={problems.length === 0 ? "complete" : problems.join(", ")}
      detail={lag === null ? (latestNs === 0 ? "no process is reporting" : "") : `lag ${formatSeconds(lag)}`}
      tone={problems.length === 0 ? "good" : "warning"}
      view="processes"
    />
  );
}

interface TileProps {
  title: string;
  value: string;
  detail: string;
  tone?: Tone;
  /** The view that explains the value. */
  view?: string;
}

function Tile({ title, value, detail, tone = "plain", view }: TileProps) {
  const content = (
    <>
      <span className="tile-title">{title}</span>
      <span className={value.length > 9 ? "tile-value is-long" : "tile-value"}>{value}</span>
      <span className="tile-detail">{detail}</span>
    </>
  );
  const shared = { className: `tile tone-${tone}`, title: `${title}: ${value}. ${detail}` };
  // A report has no such view: its run has ended.
  if (view === undefined || reportFacts() !== null) return <div {...shared}>{content}</div>;
  return (
    <ViewLink view={view} {...shared}>
      {content}
    </ViewLink>
  );
}
