import { useMemo, useState } from "react";
import { type LossCount, type ProcessHealth, api, errorText } from "../api";
import { EmptyState } from "../components/EmptyState";
import { Loading } from "../components/Loading";
import { Panel } from "../components/Panel";
import { LongText } from "../components/LongText";
import { figure, text } from "../components/columns";
import { type Column, Table, parseSort, sortText } from "../components/Table";
import { ViewLink } from "../components/ViewLink";
import { processTitle } from "../processTitle";
import { formatCount, formatDate, formatDuration, formatSeconds, shorten, counted } from "../units";
import { useUrlState } from "../url";
import { useAnswer } from "../useQuery";
import type { ViewProps } from ".";
import "./views.css";
import { sumOf } from "../statistics";

/** The recording processes: where each one runs, whether it reports, and what telemetry was lost and why. */
export default function Processes({ run }: ViewProps) {
  const [order, setOrder] = useUrlState("sort", "-lost");
  const processes = useAnswer("processes", { run }, { everyMs: 2000 });
  const losses = useAnswer("losses", { run }, { everyMs: 4000 });
  const lanes = useAnswer("lanes", { run }, { everyMs: 10_000 });
  const laneOf = useMemo(() => {
    const found = new Map<string, number>();
    for (const lane of lanes.data ?? []) if (!found.has(lane.process_id)) found.set(lane.process_id, lane.lane_id);
    return found;
  }, [lanes.data]);
  const columns = useMemo(() => columnsOf(laneOf, reasonsOf(losses.data ?? [])), [laneOf, losses.data]);
  if (processes.error !== undefined && processes.data === undefined)
    return <EmptyState title="No processes" text={processes.error} />;
  const found = processes.data ?? [];
  const lost = sumOf(found.map((process) => process.lost));
  return (
    <div className="view">
      <div className="toolbar">
        <span className="muted" role="status">
          {`${counted(found.length, "process", "processes")}, ${formatCount(lost)} records lost`}
        </span>
        <span className="spacer" />
        <StacksButton run={run} />
      </div>
      <StackGroups run={run} />
      <section className="panel grows">
        <Table
          label="Processes"
          columns={columns}
          rows={found}
          rowKey={(process) => process.process_id}
          sort={parseSort(order)}
          onSort={(sort) => setOrder(sortText(sort))}
          height="100%"
          empty={processes.data === undefined ? <Loading /> : <EmptyState title="No process has reported yet" />}
        />
      </section>
    </div>
  );
}

/** Requests the thread stacks of every live process. */
function StacksButton({ run }: { run: string }) {
  const [message, setMessage] = useState("");
  const ask = () =>
    void api.askForStacks(run).then(
      (answer) =>
        setMessage(
          `Asked ${formatCount((answer as { asked: number }).asked)} processes; their stacks arrive within seconds.`,
        ),
      (error: unknown) => setMessage(errorText(error)),
    );
  return (
    <>
      {message !== "" && (
        <span className="muted" role="status">
          {message}
        </span>
      )}
      <button
        type="button"
        onClick={ask}
        title="Collect the stacks of all threads of every live process, at most once per minute"
      >
        Stacks
      </button>
    </>
  );
}

const MOST_FRAMES = 8;

/** Where the processes are, grouped by location, smallest group first. */
function StackGroups({ run }: { run: string }) {
  const { data } = useAnswer("stacks", { run }, { everyMs: 3000, pollMs: 5000 });
  if (data === undefined || data.length === 0) return null;
  return (
    <Panel title="Stacks" value={counted(data.length, "place")}>
      <div className="stack-groups">
        {data.map((group, place) => (
          <section key={place}>
            <h3 className="sub-title" title={group.processes.map((one) => one.process_id).join(", ")}>
              {shorten(group.processes.map(processTitle).join(", "), 120)}
            </h3>
            <pre>{group.frames.slice(0, MOST_FRAMES).join("\n")}</pre>
          </section>
        ))}
      </div>
    </Panel>
  );
}

/** The losses of each process, as text: `1,234 spans: queue full`. */
export function reasonsOf(losses: readonly LossCount[]): ReadonlyMap<string, string> {
  const found = new Map<string, string[]>();
  for (const { process_id, kind, reason, count } of losses) {
    const reasons = found.get(process_id) ?? [];
    reasons.push(`${formatCount(count)} ${kind}: ${reason.replaceAll("_", " ")}`);
    found.set(process_id, reasons);
  }
  return new Map([...found].map(([process, reasons]) => [process, reasons.join("; ")]));
}

const STATE_BADGES = { live: "is-good", silent: "is-bad", ended: "" } as const;

function columnsOf(laneOf: ReadonlyMap<string, number>, reasons: ReadonlyMap<string, string>): Column<ProcessHealth>[] {
  return [
    {
      key: "role",
      title: "Process",
      width: "minmax(150px, 1.5fr)",
      value: processTitle,
      render: (process) => {
        const name = processTitle(process);
        const lane = laneOf.get(process.process_id);
        return lane === undefined ? (
          <LongText text={name} title={process.process_id} />
        ) : (
          <ViewLink view="timeline" state={{ lane }} title={`${process.process_id}: show its lanes`}>
            <LongText text={name} title={null} />
          </ViewLink>
        );
      },
    },
    text("host", "Host", "minmax(90px, 1fr)", (one) => one.host),
    figure("pid", "PID", "66px", (one) => one.pid, String),
    text("state", "State", "70px", (process) => process.state, {
      render: (process) => <span className={`badge ${STATE_BADGES[process.state]}`}>{process.state}</span>,
    }),
    figure(
      "silent",
      "Last report",
      "124px",
      (process) => process.silent_s,
      (seconds) => `${formatSeconds(seconds)} ago`,
    ),
    {
      key: "started",
      title: "Started",
      width: "156px",
      isSpare: true,
      value: (process) => process.started_ns,
      render: (process) => (process.started_ns === 0 ? "–" : formatDate(process.started_ns)),
    },
    figure("clock", "Clock offset", "96px", (process) => Math.abs(process.clock_offset_ns), formatDuration, {
      hint: "Added to its timestamps to match the server's clock",
      render: (process) =>
        `${process.clock_offset_ns < 0 ? "−" : ""}${formatDuration(Math.abs(process.clock_offset_ns))}`,
    }),
    figure("open", "Open spans", "88px", (process) => process.open_spans, formatCount),
    figure("missing", "Missing", "70px", (process) => process.missing_batches, formatCount, {
      hint: "Batches that were sent but have not arrived",
    }),
    figure("lost", "Lost", "70px", (process) => process.lost, formatCount, {
      render: (process) => <span className={process.lost > 0 ? "warning" : ""}>{formatCount(process.lost)}</span>,
    }),
    text("reasons", "Records lost, by reason", "minmax(172px, 2fr)", (process) => reasons.get(process.process_id)),
  ];
}
