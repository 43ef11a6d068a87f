import { useMemo } from "react";
import { type Change, api } from "../api";
import { EmptyState } from "../components/EmptyState";
import { Loading } from "../components/Loading";
import { NumberField } from "../components/NumberField";
import { Select } from "../components/Select";
import { figure, text } from "../components/columns";
import { type Column, Table, parseSort, sortText } from "../components/Table";
import { ViewLink } from "../components/ViewLink";
import { formatCount, formatNumber, formatSeconds, metricFormatter } from "../units";
import { useUrlState } from "../url";
import { useAnswer, useQuery } from "../useQuery";
import { useWindow } from "../window";
import type { ViewProps } from ".";
import { changeText } from "./changes/words";
import "./views.css";
import { ErrorLine } from "../components/ErrorLine";

const WINDOWS = ["10", "20", "40", "100", "200"].map((value) => ({ value, label: `${value} steps on each side` }));

/** The changes at a step in metrics, phases, errors, log lines and events, largest first. */
export default function ChangesView({ run }: ViewProps) {
  const shared = useWindow(run);
  const [chosen, setChosen] = useUrlState("step", -1);
  const [window, setWindow] = useUrlState("around", "40");
  const [order, setOrder] = useUrlState("sort", "-score");
  const steps = useQuery(`steps ${run} latest`, (signal) => api.steps({ run, limit: 2 }, signal), { everyMs: 5000 });
  const latest = (steps.data ?? []).filter((step) => step.end_ns !== null).at(-1)?.step;
  const step = chosen >= 0 ? chosen : (shared.steps?.first ?? latest);
  const changes = useAnswer(
    "steps/changes",
    { run, step: step!, window: Number(window) },
    { enabled: step !== undefined, everyMs: 10_000 },
  );
  const columns = useMemo(() => columnsOf(), []);
  if (steps.data !== undefined && step === undefined)
    return (
      <EmptyState
        title="No finished steps yet"
        text="Changes are found by comparing steps. Record the step:"
        code={'with insight.step(number):\n    insight.metric_gauge("reward_mean", reward)'}
      />
    );
  const found = changes.data;
  return (
    <div className="view">
      <div className="toolbar">
        <span className="field-label">What changed at step</span>
        <NumberField label="Step" value={step ?? 0} onChange={(value) => setChosen(value)} />
        <Select label="Compared with" value={window} options={WINDOWS} onChange={setWindow} />
        <span className="muted" role="status">
          {found === undefined
            ? "Comparing…"
            : `${formatCount(found.changes.length)} of ${formatCount(found.series)} series and the events of steps ${found.first_step} to ${found.last_step}`}
        </span>
        <span className="spacer" />
        {step !== undefined && (
          <ViewLink view="hotspots" state={{ scope: "step", step }}>
            Hotspots of this step
          </ViewLink>
        )}
      </div>
      <ErrorLine text={changes.error} />
      <section className="panel grows">
        <Table
          label="Changes"
          columns={columns}
          rows={found?.changes ?? []}
          rowKey={(change) => `${change.kind} ${change.name}`}
          sort={parseSort(order)}
          onSort={(sort) => setOrder(sortText(sort))}
          height="100%"
          empty={
            found === undefined ? (
              changes.error === undefined ? (
                <Loading />
              ) : null
            ) : (
              <EmptyState
                title={`Nothing stands out at step ${found.step}`}
                text="No metric, phase, error count or log rate shifts at this step or has an outlier."
              />
            )
          }
        />
      </section>
    </div>
  );
}

function columnsOf(): Column<Change>[] {
  return [
    text("kind", "Kind", "80px", (change) => change.kind),
    text("name", "What", "minmax(180px, 2fr)", (change) => change.name, {
      render: (change) => <Name change={change} />,
    }),
    {
      key: "change",
      title: "Change",
      width: "minmax(220px, 2fr)",
      render: (change) => {
        const text = changeText(change, formatterOf(change));
        return <span title={text}>{text}</span>;
      },
    },
    figure("step", "Since step", "110px", (change) => change.step, formatCount),
    figure("score", "Size", "90px", (change) => change.score, formatNumber, {
      hint: "Relative to the noise of the series; events have a fixed size",
    }),
  ];
}

function formatterOf(change: Change): (value: number | null | undefined) => string {
  if (change.kind === "step" || change.kind === "phase") return formatSeconds;
  return change.kind === "metric" ? metricFormatter(change.name) : formatNumber;
}

/** Links to the view that shows the change. */
function Name({ change }: { change: Change }) {
  const { name } = change;
  if (change.kind === "metric")
    return (
      <ViewLink view="metrics" state={{ metric: name, axis: "step" }} title={name}>
        {name}
      </ViewLink>
    );
  if (change.kind === "phase" || change.kind === "errors")
    return (
      <ViewLink view="hotspots" state={{ shape: "latency", name, scope: "all" }} title={name}>
        {name}
      </ViewLink>
    );
  if (change.kind === "logs")
    return (
      <ViewLink view="logs" state={{ level: name.startsWith("error") ? 40 : 30 }} title={name}>
        {name}
      </ViewLink>
    );
  return <span title={name}>{name}</span>;
}
