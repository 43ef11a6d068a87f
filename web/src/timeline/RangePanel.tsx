import { type Lane, api } from "../api";
import { ViewLink } from "../components/ViewLink";
import { colorOfName } from "../colors";
import { processTitle } from "../processTitle";
import { reportFacts } from "../reportFacts";
import { formatCount, formatDuration, formatShare, shorten } from "../units";
import { useQuery } from "../useQuery";
import { windowText } from "../window";
import { type Window, width } from "./geometry";
import { arrange } from "./blocks";
import { laneTitle } from "./layout";
import { rangeStatistics } from "./statistics";
import { Annotations } from "./Annotations";
import { ErrorLine } from "../components/ErrorLine";

const PIXELS = 4000;
const RANGE_VIEWS: readonly (readonly [string, string])[] = [
  ["hotspots", "Hotspots"],
  ["sessions", "Sessions"],
  ["metrics", "Metrics"],
  ["hardware", "Hardware"],
  ["logs", "Logs"],
  ["findings", "Findings"],
];

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
  const { data: statistics, error } = useQuery(
    `range ${run} ${range.start} ${range.end}`,
    async (signal) =>
      rangeStatistics(
        arrange(
          await api.timeline(
            {
              run,
              pixels: PIXELS,
              origin_ns: origin,
              start_ns: BigInt(origin) + BigInt(Math.floor(range.start)),
              end_ns: BigInt(origin) + BigInt(Math.ceil(range.end)),
            },
            signal,
          ),
          performance.now(),
        ),
        range,
      ),
    { everyMs: 2000 },
  );
  const size = width(range);
  const seconds = (time: number) => origin / 1e9 + time / 1e9;
  const address = windowText({ kind: "time", from: seconds(range.start), to: seconds(range.end) });
  const idle = lanes
    .map((lane) => ({ lane, share: Math.max(0, 1 - (statistics?.busy.get(lane.lane_id) ?? 0) / size) }))
    .sort((one, other) => other.share - one.share);
  return (
    <aside className="side-panel" aria-label="Selected range">
      <header>
        <h2>{formatDuration(size)} selected</h2>
        <button type="button" onClick={onZoom}>
          Zoom to it
        </button>
        <button type="button" className="icon-button" onClick={onClose} aria-label="Close" title="Close (Esc)">
          ×
        </button>
      </header>
      <div className="side-panel-body">
        <p className="range-links">
          {RANGE_VIEWS.map(([view, title]) => (
            <ViewLink key={view} view={view} state={{ window: address }} title={`${title} of this range`}>
              {title}
            </ViewLink>
          ))}
        </p>
        {reportFacts() === null && <Annotations run={run} range={range} origin={origin} />}
        <ErrorLine text={error} />
        <section>
          <h3>Wall time by name</h3>
          {(statistics?.names ?? []).slice(0, 60).map((row) => (
            <div
              key={row.name}
              className="bar-line"
              title={`${shorten(row.name, 300)}: ${formatCount(row.count)} spans, ${formatCount(row.errors)} errors, ${formatCount(row.open)} open`}
            >
              <i className="bar" style={{ width: `${(row.wall / size) * 100}%`, background: colorOfName(row.name) }} />
              <span>{shorten(row.name, 60)}</span>
              <span className="muted">{formatCount(row.count)} ×</span>
              <b>{formatDuration(row.wall)}</b>
              <b>{formatShare(row.wall / size)}</b>
            </div>
          ))}
        </section>
        <section>
          <h3>Idle share by lane</h3>
          {statistics !== undefined &&
            idle.slice(0, 200).map(({ lane, share }) => (
              <div key={lane.lane_id} className="bar-line">
                <i className="bar is-idle" style={{ width: `${share * 100}%` }} />
                <span>{shorten(`${processTitle(lane)} · ${laneTitle(lane)}`, 60)}</span>
                <b>{formatShare(share)}</b>
              </div>
            ))}
        </section>
      </div>
    </aside>
  );
}
