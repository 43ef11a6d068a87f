import { type OpenWork, api } from "../api";
import { colourOfName } from "../colours";
import { formatCount, formatSeconds } from "../units";
import { useQuery } from "../useQuery";
import { timelineSpan } from "../views/links";
import { type Column, Table } from "./Table";
import { ViewLink } from "./ViewLink";

/** Work that began and has not ended, by name: how much of it, and since when. */
export function OpenWorkTable({ run, height }: { run: string; height?: number }) {
  const { data } = useQuery(`open ${run}`, (signal) => api.openWork({ run }, signal), { everyMs: 2000 });
  return (
    <Table
      label="Suspect open work"
      columns={COLUMNS}
      rows={data ?? []}
      rowKey={(work) => `${work.name} ${work.oldest_span_id}`}
      sort={{ key: "age", descending: true }}
      {...(height === undefined ? {} : { height })}
      empty={data === undefined ? null : <p className="muted">Nothing is open.</p>}
    />
  );
}

const COLUMNS: readonly Column<OpenWork>[] = [
  {
    key: "name", title: "Name", width: "minmax(110px, 2fr)", value: (work) => work.name,
    render: (work) => (
      <ViewLink view="timeline" state={timelineSpan(work.oldest_span_id, work.oldest_ns, work.oldest_ns + work.oldest_age_s * 1e9)} title="Show the oldest in the timeline">
        <i className="swatch" style={{ background: colourOfName(work.name) }} /> {work.name}
      </ViewLink>
    ),
  },
  { key: "count", title: "Open", align: "right", width: "54px", value: (work) => work.count, render: (work) => formatCount(work.count) },
  { key: "age", title: "Oldest", align: "right", width: "92px", value: (work) => work.oldest_age_s, render: (work) => formatSeconds(work.oldest_age_s) },
  {
    key: "where", title: "Where", width: "minmax(90px, 1fr)",
    render: (work) =>
      work.oldest_session_id === null
        ? <span title={work.process_id}>{work.rank === null ? work.role || work.process_id : `${work.role} ${work.rank}`}</span>
        : <ViewLink view="sessions" state={{ session: work.oldest_session_id }} title="Show the session"><span className="mono">{work.oldest_session_id}</span></ViewLink>,
  },
];
