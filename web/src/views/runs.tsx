import { useMemo, useState } from "react";
import { type RunInfo, api, errorText } from "../api";
import { ConfirmDialog } from "../components/ConfirmDialog";
import { EmptyState } from "../components/EmptyState";
import { Loading } from "../components/Loading";
import { SearchBox } from "../components/SearchBox";
import { Select } from "../components/Select";
import { figure, text } from "../components/columns";
import { type Column, Table, parseSort, sortText } from "../components/Table";
import { ViewLink } from "../components/ViewLink";
import { counted, formatBytes, formatCount, formatDate, formatDuration, formatNumber, shorten } from "../units";
import { useUrlState } from "../url";
import { useQuery } from "../useQuery";
import type { ViewProps } from ".";
import { Comparison } from "./runs/Comparison";
import { RunPanel } from "./runs/RunPanel";
import "./views.css";
import { ErrorLine } from "../components/ErrorLine";
import { sumOf } from "../statistics";

/** All runs; two of them side by side. */
export default function Runs({ run }: ViewProps) {
  const [search, setSearch] = useUrlState("search", "");
  const [order, setOrder] = useUrlState("sort", "-started");
  const [one, setOne] = useUrlState("one", "");
  const [other, setOther] = useUrlState("other", "");
  const [more, setMore] = useUrlState("more", []);
  const [opened, setOpened] = useUrlState("about", "");
  const [changes, setChanges] = useState(0);
  const [deleting, setDeleting] = useState<RunInfo | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [deleted, setDeleted] = useState<readonly string[]>([]);
  const { data, error } = useQuery(`runs ${changes}`, (signal) => api.runs(signal), { everyMs: 3000, pollMs: 3000 });
  const runs = useMemo(() => (data ?? []).filter((info) => !deleted.includes(info.run_id)), [data, deleted]);
  const shown = useMemo(() => {
    const wanted = search.trim().toLowerCase();
    return runs.filter((info) =>
      [info.run_id, info.project, info.experiment_name, ...(info.tags ?? []), info.notes]
        .join(" ")
        .toLowerCase()
        .includes(wanted),
    );
  }, [runs, search]);

  const compare = (info: RunInfo) => {
    if (info.run_id === one) return (setOne(other), setOther(""));
    if (info.run_id === other) return (setOther(more[0] ?? ""), setMore(more.slice(1)));
    if (more.includes(info.run_id)) return setMore(more.filter((run_) => run_ !== info.run_id));
    if (one === "") return setOne(info.run_id, "push");
    return other === "" ? setOther(info.run_id, "push") : setMore([...more, info.run_id], "push");
  };
  const remove = async (info: RunInfo) => {
    setDeleting(null);
    try {
      await api.deleteRun(info.run_id);
      setDeleted((before) => [...before, info.run_id]);
      setProblem(null);
    } catch (failure) {
      setProblem(errorText(failure));
    }
  };
  const columns = columnsOf({
    chosen: [one, other, ...more],
    onCompare: compare,
    onOpen: (info) => setOpened(info.run_id === opened ? "" : info.run_id),
    onDelete: setDeleting,
  });
  const about = runs.find((info) => info.run_id === opened);
  const options = [
    { value: "", label: "choose a run" },
    ...runs.filter((info) => !info.problem).map((info) => ({ value: info.run_id, label: shorten(info.run_id, 60) })),
  ];
  return (
    <div className="view">
      <div className="toolbar">
        <SearchBox value={search} onChange={setSearch} label="Search runs" placeholder="Search runs" />
        <span
          className="muted"
          role="status"
        >{`${counted(shown.length, "run")}, ${formatBytes(sumOf(shown.map((info) => info.size_bytes)))}`}</span>
        <span className="spacer" />
        <Select label="Compare" value={one} options={options} onChange={(value) => setOne(value, "push")} />
        <Select label="with" value={other} options={options} onChange={(value) => setOther(value, "push")} />
        {one !== "" && other !== "" && (
          <ViewLink
            view="metrics"
            state={{ run: one, axis: "step", also: [other, ...more] }}
            title="Draw the metrics of all selected runs in the same charts"
          >
            {`Overlay ${2 + more.length} runs in Metrics`}
          </ViewLink>
        )}
        {(one !== "" || other !== "") && (
          <button
            type="button"
            onClick={() => {
              setOne("");
              setOther("");
              setMore([]);
            }}
          >
            Clear
          </button>
        )}
      </div>
      <ErrorLine text={problem ?? error} />
      <div className={one !== "" && other !== "" ? "beside is-short" : "beside"}>
        <section className="panel table-panel">
          <Table
            label="Runs"
            columns={columns}
            rows={shown}
            rowKey={(info) => info.run_id}
            sort={parseSort(order)}
            onSort={(sort) => setOrder(sortText(sort))}
            selected={run}
            height={one !== "" && other !== "" ? Math.min(200, 38 + shown.length * 28) : "100%"}
            empty={data === undefined ? <Loading /> : <EmptyState title="No matching runs" />}
          />
        </section>
        {about !== undefined && (
          <RunPanel info={about} onChanged={() => setChanges(changes + 1)} onClose={() => setOpened("")} />
        )}
      </div>
      {one !== "" && other !== "" && <Comparison key={`${one} ${other}`} one={one} other={other} />}
      {deleting !== null && (
        <ConfirmDialog
          title="Delete this run?"
          action="Delete permanently"
          onConfirm={() => void remove(deleting)}
          onCancel={() => setDeleting(null)}
        >
          <p>
            <code>{deleting.run_id}</code>
          </p>
          <p className="muted">{`Its file ${deleting.file} (${formatBytes(deleting.size_bytes)}) is removed from the server's disk. This cannot be undone.`}</p>
        </ConfirmDialog>
      )}
    </div>
  );
}

interface Actions {
  chosen: readonly string[];
  onCompare: (info: RunInfo) => void;
  onOpen: (info: RunInfo) => void;
  onDelete: (info: RunInfo) => void;
}

function columnsOf({ chosen, onCompare, onOpen, onDelete }: Actions): Column<RunInfo>[] {
  return [
    {
      key: "compare",
      title: "Compare",
      width: "72px",
      render: (info) => (
        <input
          type="checkbox"
          aria-label={`Compare ${info.run_id}`}
          checked={chosen.includes(info.run_id)}
          disabled={Boolean(info.problem)}
          onChange={() => onCompare(info)}
        />
      ),
    },
    {
      key: "run_id",
      title: "Run",
      width: "minmax(272px, 2fr)",
      value: (info) => info.run_id,
      render: (info) =>
        info.problem ? (
          <span className="bad" title={info.problem}>{`${info.run_id}: ${info.problem}`}</span>
        ) : (
          <ViewLink view="overview" state={{ run: info.run_id }} title={info.run_id}>
            {info.run_id}
          </ViewLink>
        ),
    },
    text("experiment", "Experiment", "minmax(92px, 2fr)", (info) =>
      [info.project, info.experiment_name].filter(Boolean).join(" / "),
    ),
    {
      key: "state",
      title: "State",
      width: "80px",
      value: (info) => info.state,
      render: (info) => (
        <span className={`badge ${STATE_BADGES[info.state ?? "ended"]}`} title={STATE_TITLES[info.state ?? "ended"]}>
          {info.state}
        </span>
      ),
    },
    figure("last_step", "Last step", "72px", (info) => info.last_step, formatCount),
    figure("reward", "Reward", "84px", (info) => info.reward, formatNumber, { hint: "The latest mean reward" }),
    {
      key: "tags",
      title: "Tags",
      width: "minmax(48px, 0.4fr)",
      value: (info) => (info.tags ?? []).join(", "),
      render: (info) => (
        <span title={[...(info.tags ?? []), info.notes ?? ""].join("\n")}>
          {(info.tags ?? []).map((tag) => (
            <span key={tag} className="badge">
              {tag}
            </span>
          ))}
          {(info.notes ?? "") !== "" && " ✎"}
        </span>
      ),
    },
    {
      key: "started",
      title: "Began",
      width: "156px",
      value: (info) => info.started_ns,
      render: (info) => formatDate(info.started_ns),
    },
    {
      key: "duration",
      title: "Duration",
      width: "92px",
      align: "right",
      value: durationOf,
      render: (info) => (
        <span title={`Latest data: ${formatDate(info.ended_ns)}`}>{formatDuration(durationOf(info))}</span>
      ),
    },
    figure("size", "Size", "78px", (info) => info.size_bytes, formatBytes),
    {
      key: "actions",
      title: "",
      width: "144px",
      render: (info) => (
        <>
          <button type="button" className="chip" onClick={() => onOpen(info)} aria-label={`Details of ${info.run_id}`}>
            Details
          </button>{" "}
          <button type="button" className="chip" onClick={() => onDelete(info)} aria-label={`Delete ${info.run_id}`}>
            Delete
          </button>
        </>
      ),
    },
  ];
}

function durationOf(info: RunInfo): number | null {
  return info.started_ns == null || info.ended_ns == null ? null : info.ended_ns - info.started_ns;
}

const STATE_BADGES = { running: "is-good", stalled: "is-bad", silent: "is-warning", ended: "" } as const;
const STATE_TITLES = {
  running: "Its processes are reporting",
  stalled: "Its processes are reporting, but nothing finishes: see its findings",
  silent: "Its processes stopped reporting without finishing: they were killed, or the network is down",
  ended: "All its processes finished normally",
} as const;
