import type { ReactNode } from "react";
import type { Metric } from "../api";
import { SearchBox } from "../components/SearchBox";
import { Choice, Select, labeled } from "../components/Select";
import { naturally } from "../natural";
import { shorten } from "../units";
import type { Grouping, LaneOrder } from "./layout";
import type { LanesAddress, TimelineAddress } from "./useTimelineAddress";
import type { Hits } from "./useHits";

interface Props {
  address: TimelineAddress;
  hits: Hits;
  metrics: readonly Metric[];
  isReport: boolean;
  /** The number of lanes that match the filter, and of all lanes. */
  laneCount: number;
  laneTotal: number;
  /** Goes to another match of the search. */
  onHit: (distance: number) => void;
  onZoom: (factor: number) => void;
  onFit: () => void;
  /** The trace export buttons. */
  children: ReactNode;
}

/** Search, display options and navigation. */
export function Toolbar({
  address,
  hits,
  metrics,
  isReport,
  laneCount,
  laneTotal,
  onHit,
  onZoom,
  onFit,
  children,
}: Props) {
  const { search, colorBy, density, stripNames, isFollowing } = address;
  return (
    <div className="toolbar">
      <SearchBox
        value={search}
        onChange={address.setSearch}
        placeholder="Search spans"
        hint="Name, rollout 17, node-6, status:error longer:20s tool=search"
        label="Search spans"
        onEnter={(isBackwards) => onHit(isBackwards ? -1 : 1)}
      />
      {search !== "" && <HitButtons hits={hits} onHit={onHit} />}
      <span className="field-label">Color</span>
      <Choice
        label="Color by"
        value={colorBy}
        onChange={address.setColorBy}
        options={labeled({ name: "Name", status: "Status", step: "Step" })}
      />
      <button
        type="button"
        aria-pressed={density === "compact"}
        onClick={() => address.setDensity(density === "compact" ? "normal" : "compact")}
        title="Compact rows: show more lanes"
      >
        Compact
      </button>
      <LaneControls lanes={address.lanes} shown={laneCount} total={laneTotal} />
      <MetricPicker metrics={metrics} chosen={stripNames} onChange={address.setStripNames} />
      <span className="spacer" />
      {children}
      <button
        type="button"
        onClick={() => onZoom(0.5)}
        aria-label="Zoom in"
        className="icon-button"
        title="Zoom in (W)"
      >
        +
      </button>
      <button
        type="button"
        onClick={() => onZoom(2)}
        aria-label="Zoom out"
        className="icon-button"
        title="Zoom out (S)"
      >
        −
      </button>
      <button type="button" onClick={onFit} title="Show the entire run (F)">
        Fit
      </button>
      {!isReport && (
        <button
          type="button"
          aria-pressed={isFollowing}
          onClick={() => address.setIsFollowing(!isFollowing)}
          title="Keep the newest data in view (L)"
        >
          Follow
        </button>
      )}
    </div>
  );
}

const GROUP_LABELS: readonly { value: Grouping; label: string }[] = labeled({
  process: "by process",
  role: "by role",
  node: "by node",
  none: "ungrouped",
});
const ORDER_LABELS: readonly { value: LaneOrder; label: string }[] = labeled({
  usual: "default order",
  rank: "by rank",
  node: "by node",
  name: "by name",
});

/** Which lanes are visible, and their arrangement. */
function LaneControls({ lanes, shown, total }: { lanes: LanesAddress; shown: number; total: number }) {
  return (
    <span className="toolbar lane-controls">
      <SearchBox
        value={lanes.filter}
        onChange={lanes.setFilter}
        placeholder="Filter lanes: rank:0-7"
        hint="role:rollout rank:0-7 node-6"
        label="Filter lanes"
        hasKey={false}
      />
      {lanes.filter !== "" && <span className="muted">{`${shown} of ${total} lanes`}</span>}
      <Select
        label="Group lanes"
        isLabelHidden
        value={lanes.grouping}
        options={GROUP_LABELS}
        onChange={lanes.setGrouping}
      />
      <Select label="Sort lanes" isLabelHidden value={lanes.order} options={ORDER_LABELS} onChange={lanes.setOrder} />
      <button
        type="button"
        aria-pressed={lanes.isAllFolded}
        onClick={() => lanes.foldAll(!lanes.isAllFolded)}
        title="Collapse every group to a thin line; click a group to expand it. Click the name of a lane to pin it."
      >
        Fold
      </button>
    </span>
  );
}

function HitButtons({ hits, onHit }: { hits: Hits; onHit: (distance: number) => void }) {
  return (
    <span className="toolbar" aria-live="polite">
      <span className="muted">{hits.text}</span>
      <button
        type="button"
        className="icon-button"
        onClick={() => onHit(-1)}
        disabled={hits.count === 0}
        title="Previous match (P)"
        aria-label="Previous match"
      >
        ‹
      </button>
      <button
        type="button"
        className="icon-button"
        onClick={() => onHit(1)}
        disabled={hits.count === 0}
        title="Next match (N)"
        aria-label="Next match"
      >
        ›
      </button>
    </span>
  );
}

interface PickerProps {
  metrics: readonly Metric[];
  chosen: readonly string[];
  onChange: (names: readonly string[]) => void;
}

function MetricPicker({ metrics, chosen, onChange }: PickerProps) {
  const options = [
    { value: "", label: "Add a metric" },
    ...metrics
      .filter((metric) => !chosen.includes(metric.name))
      .sort((one, other) => naturally(one.name, other.name))
      .map((metric) => ({ value: metric.name, label: shorten(metric.name, 50) })),
  ];
  return (
    <span className="toolbar">
      <Select
        label="Metric strips"
        isLabelHidden
        value=""
        options={options}
        onChange={(name) => name !== "" && onChange([...chosen, name])}
      />
      {chosen.map((name) => (
        <button
          key={name}
          type="button"
          className="chip"
          onClick={() => onChange(chosen.filter((one) => one !== name))}
          title={`Remove ${name}`}
        >
          {shorten(name, 26)} ×
        </button>
      ))}
    </span>
  );
}
