import type { Hotspot, Lane, LaneIdle } from "../api";
import { ErrorLine } from "../components/ErrorLine";
import { Loading } from "../components/Loading";
import { ViewLink } from "../components/ViewLink";
import { colorOfName } from "../colors";
import { processTitle } from "../processTitle";
import { reportFacts } from "../reportFacts";
import { formatCount, formatDuration, formatShare, shorten } from "../units";
import { useAnswer } from "../useQuery";
import { useRested } from "../useRested";
import { type Bounds, boundsOf, parseWindow, windowText } from "../window";
import { Annotations } from "./Annotations";
import { type Window, width } from "./geometry";
import { laneTitle } from "./layout";
import { RANGE_REST_MS } from "./useRange";

const MOST_NAMES = 60;
const MOST_LANES = 200;
const RANGE_VIEWS: readonly (readonly [string, string])[] = [
  ["hotspots", "Hotspots"],
  ["sessions", "Sessions"],
  ["metrics", "Metrics"],
  ["hardware", "Hardware"],
  ["logs", "Logs"],
  ["findings", "Findings"],
];

/** Only a server can sum up a range; in a report, this view has the sums of its whole scope. */
const VIEW_OF_SUMS = "hotspots";

interface Props {
  run: string;
  range: Window;
  origin: number;
  lanes: readonly Lane[];
  onZoom: () => void;
  onClose: () => void;
}

/** What happened in a range of time: wall time by name, and how much of it each lane was idle; no sums in a report. */
export function RangePanel({ run, range, origin, lanes, onZoom, onClose }: Props) {
  const isReport = reportFacts() !== null;
  const seconds = (time: number) => origin / 1e9 + time / 1e9;
  const address = windowText({ kind: "time", from: seconds(range.start), to: seconds(range.end) });
  return (
    <aside className="side-panel" aria-label="Selected range">
      <header>
        <h2>{formatDuration(width(range))} selected</h2>
        <button type="button" onClick={onZoom}>
          Zoom to it
        </button>
        <button type="button" className="icon-button" onClick={onClose} aria-label="Close" title="Close (Esc)">
          ×
        </button>
      </header>
      <div className="side-panel-body">
        <p className="range-links">
          {RANGE_VIEWS.filter(([view]) => !isReport || view !== VIEW_OF_SUMS).map(([view, title]) => (
            <ViewLink key={view} view={view} state={{ window: address }} title={`${title} of this range`}>
              {title}
            </ViewLink>
          ))}
        </p>
        {!isReport && (
          <>
            <Annotations run={run} range={range} origin={origin} />
            <RangeTimes run={run} address={address} lanes={lanes} />
          </>
        )}
      </div>
    </aside>
  );
}

/** The sums of a range; `address` is its window as the linked views get it, so that they show the same numbers. */
function RangeTimes({ run, address, lanes }: { run: string; address: string; lanes: readonly Lane[] }) {
  const rested = useRested(address, RANGE_REST_MS);
  const bounds = boundsOf(parseWindow(rested), [], 0);
  if (bounds === null) return <p className="muted">The range is too short for sums.</p>;
  return <LoadedTimes run={run} bounds={bounds} isMoving={rested !== address} lanes={lanes} />;
}

interface LoadedProps {
  run: string;
  bounds: Bounds;
  /** True while the range still changes: the sums are of an earlier one. */
  isMoving: boolean;
  lanes: readonly Lane[];
}

function LoadedTimes({ run, bounds, isMoving, lanes }: LoadedProps) {
  const query = { run, start_ns: Math.round(bounds.start_ns), end_ns: Math.round(bounds.end_ns) };
  const size = query.end_ns - query.start_ns;
  const names = useAnswer("hotspots", { ...query, limit: MOST_NAMES }, { everyMs: 2000 });
  const idle = useAnswer("lanes/idle", query, { everyMs: 4000 });
  return (
    <>
      <ErrorLine text={names.error ?? idle.error} />
      <section aria-busy={isMoving || names.isLoading}>
        <h3>Wall time by name</h3>
        {names.data === undefined ? <Loading /> : <NameTimes spots={names.data} size={size} />}
      </section>
      <section aria-busy={isMoving || idle.isLoading}>
        <h3>Idle share by lane</h3>
        {idle.data === undefined ? <Loading /> : <IdleLanes rows={idle.data} lanes={lanes} />}
      </section>
    </>
  );
}

function NameTimes({ spots, size }: { spots: readonly Hotspot[]; size: number }) {
  return spots.map((spot) => (
    <div
      key={spot.name}
      className="bar-line"
      title={`${shorten(spot.name ?? "", 300)}: ${formatCount(spot.count)} spans, ${formatCount(spot.errors)} errors, ${formatCount(spot.open)} open`}
    >
      <i
        className="bar"
        style={{ width: `${(spot.wall_ns / size) * 100}%`, background: colorOfName(spot.name ?? "") }}
      />
      <span>{shorten(spot.name ?? "", 60)}</span>
      <span className="muted">{formatCount(spot.count)} ×</span>
      <b>{formatDuration(spot.wall_ns)}</b>
      <b>{formatShare(spot.wall_ns / size)}</b>
    </div>
  ));
}

/** The idlest of the lanes that the timeline shows. */
function IdleLanes({ rows, lanes }: { rows: readonly LaneIdle[]; lanes: readonly Lane[] }) {
  const shown = new Map(lanes.map((lane) => [lane.lane_id, lane]));
  return rows
    .filter((row) => shown.has(row.lane_id))
    .slice(0, MOST_LANES)
    .map(({ lane_id, share }) => {
      const lane = shown.get(lane_id)!;
      return (
        <div key={lane_id} className="bar-line">
          <i className="bar is-idle" style={{ width: `${share * 100}%` }} />
          <span>{shorten(`${processTitle(lane)} · ${laneTitle(lane)}`, 60)}</span>
          <b>{formatShare(share)}</b>
        </div>
      );
    });
}
