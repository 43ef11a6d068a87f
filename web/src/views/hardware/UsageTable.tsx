import type { StateUsage } from "../../api";
import { MeterCell } from "../../components/MeterCell";
import { Panel } from "../../components/Panel";
import { figure, text } from "../../components/columns";
import { type Column, Table } from "../../components/Table";
import { ViewLink } from "../../components/ViewLink";
import { colorOfName } from "../../colors";
import { reportFacts } from "../../reportFacts";
import { formatBytes, formatCount, formatNumber, formatSeconds, formatShare } from "../../units";
import { useAnswer } from "../../useQuery";
import type { Range } from "../metrics/range";
import { ErrorLine } from "../../components/ErrorLine";

/** How busy the accelerators were while a role was in a state: "busy 31 % during rollout". */
export function UsageTable({ run, range }: { run: string; range: Range }) {
  const query = { run, start_ns: range.start_ns, end_ns: range.end_ns };
  // In a long range, a few more seconds make no visible difference.
  const everyMs = Math.min(60_000, Math.max(5000, range.width / 1e6));
  const { data, error } = useAnswer("hardware/by_state", query, { everyMs });
  if (data !== undefined && data.states.length === 0) return null;
  return (
    <Panel className="span-6" title={reportFacts() === null ? "GPU busy by state" : "GPU busy by state, entire run"}>
      <ErrorLine text={error} />
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

function formatEnergy(joules: number | null | undefined): string {
  if (joules == null) return "–";
  return joules < 1000 ? `${formatNumber(joules)} J` : `${formatNumber(joules)}J`;
}

const COLUMNS: readonly Column<StateUsage>[] = [
  {
    key: "name",
    title: "State",
    width: "minmax(150px, 1.4fr)",
    value: (usage) => usage.name,
    render: (usage) => (
      <ViewLink view="timeline" state={{ search: usage.name }}>
        <i className="swatch" style={{ background: colorOfName(usage.name) }} /> {usage.name}
      </ViewLink>
    ),
  },
  text("role", "Role", "minmax(70px, 1fr)", (usage) => usage.role),
  figure(
    "busy",
    "Busy",
    "86px",
    (usage) => usage.utilization_ratio,
    (share) => <MeterCell share={share ?? 0}>{formatShare(share)}</MeterCell>,
  ),
  figure("memory", "Memory", "92px", (usage) => usage.memory_used_bytes, formatBytes),
  figure("energy", "Energy", "84px", (usage) => usage.energy_joules, formatEnergy),
  figure("seconds", "Time", "100px", (usage) => usage.seconds, formatSeconds),
  figure("gpus", "GPUs", "56px", (usage) => usage.gpus, formatCount),
];
