import { type StateUsage, api } from "../../api";
import { MeterCell } from "../../components/MeterCell";
import { Panel } from "../../components/Panel";
import { type Column, Table } from "../../components/Table";
import { ViewLink } from "../../components/ViewLink";
import { colourOfName } from "../../colours";
import { formatBytes, formatCount, formatNumber, formatSeconds, formatShare } from "../../units";
import { useQuery } from "../../useQuery";
import type { Range } from "../metrics/range";

/** How busy the accelerators were while a role was in a state: "busy 31 % during rollout". */
export function UsageTable({ run, range }: { run: string; range: Range }) {
  const query = { run, start_ns: range.start_ns, end_ns: range.end_ns };
  // Of a long stretch, some seconds more change nothing that can be seen.
  const everyMs = Math.min(60_000, Math.max(5000, range.width / 1e6));
  const { data, error } = useQuery(`usage ${JSON.stringify(query)}`, (signal) => api.usageByState(query, signal), {
    everyMs,
  });
  if (data !== undefined && data.states.length === 0) return null;
  return (
    <Panel className="span-6" title="GPU busy by state">
      {error !== undefined && <div className="error-line">{error}</div>}
      <Table
        label="GPU busy by state"
        columns={COLUMNS}
        rows={data?.states ?? []}
        rowKey={(usage) => `${usage.role} ${usage.name}`}
        sort={{ key: "seconds", descending: true }}
        height={184}
      />
    </Panel>
  );
}

function formatEnergy(joules: number | null): string {
  if (joules === null) return "–";
  return joules < 1000 ? `${formatNumber(joules)} J` : `${formatNumber(joules)}J`;
}

const COLUMNS: readonly Column<StateUsage>[] = [
  {
    key: "name",
    title: "State",
    width: "minmax(120px, 1.4fr)",
    value: (usage) => usage.name,
    render: (usage) => (
      <ViewLink view="timeline" state={{ search: usage.name }}>
        <i className="swatch" style={{ background: colourOfName(usage.name) }} /> {usage.name}
      </ViewLink>
    ),
  },
  {
    key: "role",
    title: "Role",
    width: "minmax(70px, 1fr)",
    value: (usage) => usage.role,
    render: (usage) => usage.role,
  },
  {
    key: "busy",
    title: "Busy",
    align: "right",
    width: "100px",
    value: (usage) => usage.utilization_ratio,
    render: (usage) => (
      <MeterCell share={usage.utilization_ratio ?? 0}>{formatShare(usage.utilization_ratio)}</MeterCell>
    ),
  },
  {
    key: "memory",
    title: "Memory",
    align: "right",
    width: "92px",
    value: (usage) => usage.memory_used_bytes,
    render: (usage) => formatBytes(usage.memory_used_bytes),
  },
  {
    key: "energy",
    title: "Energy",
    align: "right",
    width: "84px",
    value: (usage) => usage.energy_joules,
    render: (usage) => formatEnergy(usage.energy_joules),
  },
  {
    key: "seconds",
    title: "Time",
    align: "right",
    width: "84px",
    value: (usage) => usage.seconds,
    render: (usage) => formatSeconds(usage.seconds),
  },
  {
    key: "gpus",
    title: "GPUs",
    align: "right",
    width: "56px",
    value: (usage) => usage.gpus,
    render: (usage) => formatCount(usage.gpus),
  },
];
