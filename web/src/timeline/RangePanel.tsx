import { type Lane, api } from "../api";
import { colourOfName } from "../colours";
import { formatCount, formatDuration, formatShare, shorten } from "../units";
import { useQuery } from "../useQuery";
import { type Window, width } from "./geometry";
import { laneTitle } from "./layout";

interface Props {
  run: string;
  range: Window;
  origin: number;
  lanes: readonly Lane[];
  onZoom: () => void;
  onClose: () => void;
}

/** What happened in a range of time: wall time by name, and how much of it each lane was idle. */
export function RangePanel({ run, range, origin, lanes, onZoom, onClose }: Props) {
  const start_ns = BigInt(origin) + BigInt(Math.round(range.start));
  const end_ns = BigInt(origin) + BigInt(Math.round(range.end));
  const key = `${run} ${start_ns} ${end_ns}`;
  const names = useQuery(`range names ${key}`, (signal) => api.hotspots({ run, start_ns, end_ns }, signal), { everyMs: 2000 });
  const busy = useQuery(`range lanes ${key}`, (signal) => api.hotspots({ run, start_ns, end_ns, group_by: "lane" }, signal), { everyMs: 2000 });
  const size = width(range);
  const busyOf = new Map((busy.data ?? []).map((row) => [row.lane_id, row.wall_ns]));
  const idle = lanes
    .map((lane) => ({ lane, share: Math.max(0, 1 - (busyOf.get(lane.lane_id) ?? 0) / size) }))
    .sort((one, other) => other.share - one.share);
  return (
    <aside className="side-panel" aria-label="Selected range">
      <header>
        <h2>{formatDuration(size)} selected</h2>
        <button type="button" onClick={onZoom}>Zoom to it</button>
        <button type="button" className="icon-button" onClick={onClose} aria-label="Close" title="Close (Esc)">×</button>
      </header>
      <div className="side-panel-body">
        {names.error !== undefined && <div className="error-line">{names.error}</div>}
        <section>
          <h3>Wall time by name</h3>
          {(names.data ?? []).slice(0, 60).map((row) => (
            <div key={row.name} className="bar-line" title={`${row.name}: ${formatCount(row.count)} spans, ${formatDuration(row.total_ns)} in all`}>
              <i className="bar" style={{ width: `${Math.min(100, (row.wall_ns / size) * 100)}%`, background: colourOfName(row.name ?? "") }} />
              <span>{shorten(row.name ?? "", 60)}</span>
              <span className="muted">{formatCount(row.count)} ×</span>
              <b>{formatDuration(row.wall_ns)}</b>
              <b>{formatShare(row.wall_ns / size)}</b>
            </div>
          ))}
        </section>
        <section>
          <h3>Idle share by lane</h3>
          {idle.slice(0, 200).map(({ lane, share }) => (
            <div key={lane.lane_id} className="bar-line">
              <i className="bar is-idle" style={{ width: `${share * 100}%` }} />
              <span>{shorten(`${lane.role}${lane.rank === null ? "" : ` ${lane.rank}`} · ${laneTitle(lane)}`, 60)}</span>
              <b>{formatShare(share)}</b>
            </div>
          ))}
        </section>
      </div>
    </aside>
  );
}
