import { EmptyState } from "../components/EmptyState";
import type { Canvases } from "./useController";
import type { TimelineData } from "./useTimelineData";

/** The canvases that the controller draws on, and what is said while they are empty. */
export function TimelineCanvas({ canvases: { canvas, map }, data }: { canvases: Canvases; data: TimelineData }) {
  const { lanes, hasLanes, shownLanes } = data;
  return (
    <div className="timeline-main">
      <canvas ref={map} className="timeline-map" aria-hidden="true" />
      <canvas
        ref={canvas}
        className="timeline-canvas"
        tabIndex={0}
        role="img"
        aria-label={`Timeline of ${lanes.length} lanes. Use the search to find individual spans.`}
      />
      {!hasLanes && (
        <div className="loading timeline-loading" role="status">
          Loading…
        </div>
      )}
      {lanes.length > 0 && shownLanes.length === 0 && (
        <EmptyState title="No matching lanes" text="Filter by words, role:, rank:, node: or lane:." />
      )}
      {hasLanes && lanes.length === 0 && (
        <EmptyState title="No lanes yet" text="Spans and states appear here as soon as the run records them." />
      )}
    </div>
  );
}
