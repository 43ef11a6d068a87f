import { useMemo } from "react";
import type { SampleGroup } from "../../api";
import { Chart } from "../../components/Chart";
import { EmptyState } from "../../components/EmptyState";
import { Panel } from "../../components/Panel";
import { SearchBox } from "../../components/SearchBox";
import { Select, labeled } from "../../components/Select";
import { type Column, Table, parseSort, sortText } from "../../components/Table";
import { ViewLink } from "../../components/ViewLink";
import { colorOfIndex } from "../../colors";
import { counted, formatCount, formatNumber, formatSeconds, formatShare } from "../../units";
import { useUrlState } from "../../url";
import { useAnswer } from "../../useQuery";
import { ErrorLine } from "../../components/ErrorLine";

const MOST = 500;
const ORDERS = ["step", "spread", "mean", "samples", "longest_s"] as const;
const DEAD = labeled({ "": "all groups", dead: "dead groups", alive: "groups with spread" });

/** GRPO's groups: the samples of one task in one step, their rewards and spread, and how stale samples are. */
export function Groups({ run }: { run: string }) {
  const [group, setGroup] = useUrlState("group", "");
  const [dead, setDead] = useUrlState("dead", "", ["", "dead", "alive"]);
  const [orderText, setOrder] = useUrlState("order", "-step");
  const asked = parseSort(orderText);
  const order = ORDERS.find((one) => one === asked.key) ?? "step";
  const query = {
    run,
    ...(group === "" ? {} : { group_id: group }),
    ...(dead === "" ? {} : { dead: dead === "dead" }),
    order,
    descending: asked.descending,
    limit: MOST,
  };
  const page = useAnswer("sessions/groups", query, { everyMs: 3000 });
  const columns = useMemo(() => columnsOf(setGroup), [setGroup]);
  const found = page.data;
  return (
    <>
      <div className="toolbar">
        <SearchBox
          value={group}
          onChange={setGroup}
          label="Group"
          placeholder="A group or task id, to plot it over steps"
        />
        <Select label="Which groups" isLabelHidden value={dead} options={DEAD} onChange={setDead} />
        <span className="muted" role="status">
          {found === undefined
            ? "Loading…"
            : `${counted(found.total, "group")}, ${formatCount(found.dead)} dead${found.total > MOST ? `; the first ${MOST} are listed` : ""}`}
        </span>
      </div>
      <ErrorLine text={page.error} />
      <GroupCharts run={run} group={group} />
      <section className="panel grows">
        <Table
          label="Groups"
          columns={columns}
          rows={found?.groups ?? []}
          rowKey={(one) => `${one.group_id} ${one.step ?? ""}`}
          sort={asked}
          onSort={(sort) => setOrder(sortText(sort))}
          height="100%"
          empty={
            found === undefined ? null : (
              <EmptyState
                title="No groups of two or more samples"
                text="Samples of one task in one step form a group, unless you set group_id:"
                code={"insight.session(task_id=item.id, group_id=prompt.id, step=step)"}
              />
            )
          }
        />
      </section>
    </>
  );
}

function GroupCharts({ run, group }: { run: string; group: string }) {
  const asked = { run, ...(group === "" ? {} : { group_id: group }) };
  const steps = useAnswer("sessions/groups/steps", asked, { everyMs: 4000 });
  const stale = useAnswer("sessions/staleness", { run }, { everyMs: 5000 });
  const rows = steps.data ?? [];
  const x = useMemo(() => rows.map((one) => one.step), [steps.data]);
  const reward = useMemo(
    () => [
      { label: "mean reward", values: rows.map((one) => one.mean), color: colorOfIndex(0) },
      {
        label: "spread within groups",
        values: rows.map((one) => one.spread),
        color: colorOfIndex(1),
        isDashed: true,
      },
    ],
    [steps.data],
  );
  const deadShare = useMemo(
    () => [{ label: "dead groups", values: rows.map((one) => one.dead / one.groups), color: colorOfIndex(2) }],
    [steps.data],
  );
  const behind = stale.data?.steps ?? [];
  const staleX = useMemo(() => behind.map((one) => one.step), [stale.data]);
  const staleLines = useMemo(
    () => [
      { label: "mean", values: behind.map((one) => one.mean), color: colorOfIndex(3) },
      { label: "oldest", values: behind.map((one) => one.most), color: colorOfIndex(4), isDashed: true },
    ],
    [stale.data],
  );
  return (
    <div className="grid">
      <Panel className="span-4" title={group === "" ? "Reward and spread by step" : `Reward of ${group} by step`}>
        {x.length === 0 ? (
          <p className="muted">{steps.isLoading ? "Loading…" : "No group has two rewards yet."}</p>
        ) : (
          <Chart label="Reward by step" x={x} series={reward} xKind="step" height={130} syncKey="groups" />
        )}
      </Panel>
      <Panel className="span-4" title="Share of dead groups">
        {x.length === 0 ? (
          <p className="muted">{steps.isLoading ? "Loading…" : "No group has two rewards yet."}</p>
        ) : (
          <Chart
            label="Dead groups by step"
            x={x}
            series={deadShare}
            xKind="step"
            height={130}
            syncKey="groups"
            range={[0, 1]}
            format={formatShare}
          />
        )}
      </Panel>
      <Panel
        className="span-4"
        title="Staleness: versions behind"
        value={stale.data?.mean == null ? undefined : `mean ${formatNumber(stale.data.mean)}`}
      >
        {staleX.length === 0 ? (
          <p className="muted">
            {stale.isLoading ? "Loading…" : "No numeric model versions: pass model_version to insight.session."}
          </p>
        ) : (
          <Chart label="Staleness by step" x={staleX} series={staleLines} xKind="step" height={130} syncKey="groups" />
        )}
      </Panel>
    </div>
  );
}

function columnsOf(onGroup: (group: string) => void): Column<SampleGroup>[] {
  const number = (
    key: "mean" | "spread" | "least" | "most",
    title: string,
    hint: string,
    isSortable: boolean,
  ): Column<SampleGroup> => ({
    key,
    title,
    hint,
    align: "right",
    width: "84px",
    isSortable,
    render: (group) => formatNumber(group[key]),
  });
  return [
    {
      key: "group_id",
      title: "Group",
      width: "minmax(120px, 2fr)",
      render: (group) => (
        <button
          type="button"
          className="link-button"
          title={`${group.group_id}: plot it over steps`}
          onClick={() => onGroup(group.group_id)}
        >
          {group.group_id}
        </button>
      ),
    },
    {
      key: "step",
      title: "Step",
      align: "right",
      width: "70px",
      isSortable: true,
      render: (group) => formatCount(group.step),
    },
    {
      key: "samples",
      title: "Samples",
      align: "right",
      width: "84px",
      isSortable: true,
      render: (group) => (
        <ViewLink
          view="sessions"
          state={{ search: `group:"${group.group_id}"${group.step === null ? "" : ` step:${group.step}`}` }}
          title={`The samples of this group; ${formatCount(group.rewarded)} of ${formatCount(group.samples)} have a reward`}
        >
          {`${formatCount(group.samples)}${group.open > 0 ? ` (${formatCount(group.open)} open)` : ""}`}
        </ViewLink>
      ),
    },
    number("mean", "Mean", "Of the rewards", true),
    number("spread", "Spread", "Standard deviation of the rewards", true),
    number("least", "Least", "Smallest reward", false),
    number("most", "Most", "Largest reward", false),
    {
      key: "dead",
      title: "",
      width: "70px",
      render: (group) =>
        group.is_dead ? (
          <span className="badge is-warning" title="All rewards are equal: the group has no learning signal">
            dead
          </span>
        ) : null,
    },
    {
      key: "longest_s",
      title: "Longest",
      hint: "The longest sample",
      align: "right",
      width: "90px",
      isSortable: true,
      render: (group) => formatSeconds(group.longest_s),
    },
    {
      key: "tokens",
      title: "Tokens",
      align: "right",
      width: "84px",
      render: (group) => formatCount(group.tokens),
    },
  ];
}
