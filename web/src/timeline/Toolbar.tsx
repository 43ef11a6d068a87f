import type { ReactNode } from "react";
import type { Metric } from "../api";
import { SearchBox } from "../components/SearchBox";
import { Choice, Select } from "../components/Select";
import { shorten } from "../units";
import type { TimelineAddress } from "./useTimelineAddress";
import type { Hits } from "./useHits";

interface Props {
  address: TimelineAddress;
  hits: Hits;
  metrics: readonly Metric[];
  isReport: boolean;
  /** Goes to another hit of the search. */
  onHit: (distance: number) => void;
  onZoom: (factor: number) => void;
  onFit: () => void;
  /** The buttons that take a trace away. */
  children: ReactNode;
}

/** Search, how to draw, and how to move. */
export function Toolbar({ address, hits, metrics, isReport, onHit, onZoom, onFit, children }: Props) {
  const { search, colourBy, density, stripNames, isFollowing } = address;
  return (
    <div className="toolbar">
      <SearchBox
        value={search}
        onChange={address.setSearch}
        placeholder="Name or attribute"
        label="Search spans"
        onEnter={(isBackwards) => onHit(isBackwards ? -1 : 1)}
      />
      {search !== "" && <HitButtons hits={hits} onHit={onHit} />}
      <span className="field-label">Color</span>
      <Choice
        label="Color by"
        value={colourBy}
        onChange={address.setColourBy}
        options={[
          { value: "name", label: "Name" },
          { value: "status", label: "Status" },
          { value: "step", label: "Step" },
        ]}
      />
      <button
        type="button"
        aria-pressed={density === "compact"}
        onClick={() => address.setDensity(density === "compact" ? "normal" : "compact")}
        title="Low rows: more lanes in view"
      >
        Compact
      </button>
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
      <button type="button" onClick={onFit} title="Show the whole run (F)">
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

function HitButtons({ hits, onHit }: { hits: Hits; onHit: (distance: number) => void }) {
  return (
    <span className="toolbar" aria-live="polite">
      <span className="muted">{hits.text}</span>
      <button
        type="button"
        className="icon-button"
        onClick={() => onHit(-1)}
        disabled={hits.count === 0}
        title="Previous hit (P)"
        aria-label="Previous hit"
      >
        ‹
      </button>
      <button
        type="button"
        className="icon-button"
        onClick={() => onHit(1)}
        disabled={hits.count === 0}
        title="Next hit (N)"
        aria-label="Next hit"
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
