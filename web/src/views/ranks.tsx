import { useMemo } from "react";
import { type RankGrid, api } from "../api";
import { EmptyState } from "../components/EmptyState";
import { HeatMap } from "../components/HeatMap";
import { Loading } from "../components/Loading";
import { Panel } from "../components/Panel";
import { Select, labeled } from "../components/Select";
import { naturally } from "../natural";
import { counted, formatCount, formatSeconds, metricFormatter, shorten } from "../units";
import { linkTo, navigate, useUrlState } from "../url";
import { useAnswer, useQuery } from "../useQuery";
import { useSteps } from "../useSteps";
import { useWindow } from "../window";
import type { ViewProps } from ".";
import "./views.css";
import { ErrorLine } from "../components/ErrorLine";
import { meanOf } from "../statistics";

const MOST_STEPS = 1000;
const ROW_HEIGHTS = { few: 20, many: 11, most: 4 };

/** A phase or a hardware metric by rank and step: where to start in a run with many processes. */
export default function Ranks({ run }: ViewProps) {
  const [phase, setPhase] = useUrlState("phase", "");
  const [metric, setMetric] = useUrlState("metric", "");
  const [role, setRole] = useUrlState("role", "");
  const [order, setOrder] = useUrlState("order", "rank", ["rank", "highest", "node"]);
  const shared = useWindow(run);
  const steps = useSteps(run, MOST_STEPS);
  const isOne = shared.steps !== null && shared.steps.first === shared.steps.last;
  const first = (shared.steps === null || isOne ? undefined : shared.steps.first) ?? steps?.[0]?.step;
  const last = (shared.steps === null || isOne ? undefined : shared.steps.last) ?? steps?.at(-1)?.step;
  const metrics = useAnswer("metrics", { run }, { everyMs: 10_000 });
  const { data, error } = useQuery(
    `ranks ${run} ${phase} ${metric} ${first} ${isOne || shared.steps === null ? "latest" : last}`,
    (signal) =>
      api.stepRanks(
        {
          run,
          first: first!,
          last: last!,
          name: metric === "" && phase !== "" ? phase : undefined,
          metric: metric === "" ? undefined : metric,
        },
        signal,
      ),
    { enabled: first !== undefined && last !== undefined, everyMs: 5000 },
  );
  const hardware = (metrics.data ?? []).filter((one) => one.is_hardware).map((one) => one.name);
  const rows = useMemo(() => (data === undefined ? [] : sorted(data.rows, role, order)), [data, role, order]);
  const roles = [...new Set((data?.rows ?? []).map((row) => row.role))].sort();
  if (steps?.length === 0)
    return <EmptyState title="No steps yet" text="Ranks are compared by step: record steps with insight.step." />;
  if (data?.names.length === 0 && hardware.length === 0)
    return (
      <EmptyState
        title="Nothing to compare by rank"
        text="Ranks are compared by their states and hardware: this run has recorded neither in its steps. Record states:"
        code={'with insight.trace_state("update"):\n    ...'}
      />
    );
  return (
    <div className="view">
      <div className="toolbar">
        <Select
          label="Show"
          value={metric === "" ? `phase ${data?.name ?? phase}` : `metric ${metric}`}
          options={[
            ...(data?.names ?? []).map((name) => ({ value: `phase ${name}`, label: shorten(name, 50) })),
            ...hardware.sort(naturally).map((name) => ({ value: `metric ${name}`, label: shorten(name, 50) })),
          ]}
          onChange={(chosen) => {
            const [kind, name] = [chosen.slice(0, chosen.indexOf(" ")), chosen.slice(chosen.indexOf(" ") + 1)];
            setMetric(kind === "metric" ? name : "");
            setPhase(kind === "phase" ? name : "");
          }}
        />
        <Select
          label="of"
          value={roles.includes(role) ? role : ""}
          options={[
            { value: "", label: "all roles" },
            ...roles.filter((one) => one !== "").map((one) => ({ value: one, label: one })),
          ]}
          onChange={setRole}
        />
        <Select
          label="Sort"
          value={order}
          options={labeled({ rank: "by rank", highest: "highest first", node: "by node" })}
          onChange={setOrder}
        />
        <span
          className="muted"
          role="status"
        >{`${counted(rows.length, "row")}, ${counted(data?.steps.length, "step")}`}</span>
      </div>
      <ErrorLine text={error} />
      {data === undefined && error === undefined && <Loading />}
      {data !== undefined && <Grid grid={data} rows={rows} chosenStep={isOne ? shared.steps!.first : null} />}
    </div>
  );
}

type Row = RankGrid["rows"][number];

function mean({ values }: Row): number {
  return meanOf(values) ?? -Infinity;
}

/** The rows of a role, sorted; ranks by number. */
export function sorted(rows: readonly Row[], role: string, order: string): Row[] {
  const chosen = rows.filter((row) => role === "" || row.role === role);
  if (order === "highest") return chosen.sort((one, other) => mean(other) - mean(one));
  if (order === "node")
    return chosen.sort((one, other) => naturally(one.host, other.host) || naturally(one.title, other.title));
  return chosen.sort((one, other) => naturally(one.title, other.title));
}

function Grid({ grid, rows, chosenStep }: { grid: RankGrid; rows: readonly Row[]; chosenStep: number | null }) {
  const format = grid.is_metric ? metricFormatter(grid.name) : formatSeconds;
  const data = useMemo(
    () => ({ x: grid.steps, width: 1, rows: rows.map((row) => row.title), values: rows.map((row) => row.values) }),
    [grid, rows],
  );
  const height = rows.length > 300 ? ROW_HEIGHTS.most : rows.length > 40 ? ROW_HEIGHTS.many : ROW_HEIGHTS.few;
  if (rows.length === 0) return <EmptyState title="No data with this name in these steps" />;
  return (
    <Panel
      title={`${grid.name} by rank and step`}
      actions={<span>{chosenStep === null ? "click a cell to see it on the timeline" : `step ${chosenStep}`}</span>}
    >
      <div className="scroll">
        <HeatMap
          data={data}
          label={`${grid.name} by rank and step`}
          format={(value) => format(value)}
          formatX={(step) => `step ${formatCount(Math.floor(step))}`}
          xKind="step"
          left={130}
          height={rows.length * height + 22}
          onPick={({ row, column }) => open(grid, rows[row]!, column)}
        />
      </div>
    </Panel>
  );
}

/** The timeline at a step, with the lane of a row in view. */
function open(grid: RankGrid, row: Row, column: number): void {
  const step = grid.steps[column]!;
  const start = grid.start_ns[column]!;
  const end = grid.start_ns[column + 1] ?? start + 30e9;
  navigate(
    linkTo("timeline", {
      window: `${step}-${step}`,
      from: (start / 1e9).toFixed(3),
      to: (end / 1e9).toFixed(3),
      lane: row.lane_id,
      ...(grid.is_metric ? { metric: grid.name } : { search: grid.name }),
    }),
  );
}
