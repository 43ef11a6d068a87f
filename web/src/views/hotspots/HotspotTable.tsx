import { useMemo } from "react";
import type { Hotspot, Lane } from "../../api";
import { EmptyState } from "../../components/EmptyState";
import { Loading } from "../../components/Loading";
import { MeterCell } from "../../components/MeterCell";
import { figure, text } from "../../components/columns";
import { type Column, type Sort, Table } from "../../components/Table";
import { ViewLink } from "../../components/ViewLink";
import { colorOfName } from "../../colors";
import { processTitle } from "../../processTitle";
import { formatCount, formatDuration } from "../../units";
import { timelineWindow } from "../links";

interface Props {
  spots: readonly Hotspot[];
  lanes: ReadonlyMap<number, Lane>;
  sort: Sort;
  onSort: (sort: Sort) => void;
  /** Nanoseconds; if known, links into the timeline show it. */
  window: readonly [number, number] | null;
  isLoading: boolean;
}

type Figure = "count" | "average_ns" | "p50_ns" | "p95_ns" | "p99_ns" | "max_ns" | "total_ns" | "wall_ns";
const FIGURES: readonly (readonly [key: Figure, title: string, hint: string])[] = [
  ["wall_ns", "Wall", "Time in which at least one such span ran: concurrent spans are not added up"],
  ["total_ns", "Total", "All durations added up"],
  ["count", "Count", "Finished spans"],
  ["average_ns", "Average", ""],
  ["p50_ns", "p50", "Half of the spans are shorter"],
  ["p95_ns", "p95", "95 % of the spans are shorter"],
  ["p99_ns", "p99", "99 % of the spans are shorter"],
  ["max_ns", "Max", "The longest"],
];

/** Where the time goes, as a table. */
export function HotspotTable({ spots, lanes, sort, onSort, window, isLoading }: Props) {
  const columns = useMemo(() => columnsOf(spots, lanes, window), [spots, lanes, window]);
  return (
    <Table
      label="Hotspots"
      columns={columns}
      rows={spots}
      rowKey={(spot) => JSON.stringify([spot.name, spot.role, spot.lane_id])}
      sort={sort}
      onSort={onSort}
      empty={
        isLoading ? (
          <Loading />
        ) : (
          <EmptyState title="No data in this scope" text="Choose a wider scope, or clear the search." />
        )
      }
    />
  );
}

function columnsOf(
  spots: readonly Hotspot[],
  lanes: ReadonlyMap<number, Lane>,
  window: Props["window"],
): Column<Hotspot>[] {
  const first = spots[0];
  const place = (spot: Hotspot) => placeText(spot, lanes);
  const columns: Column<Hotspot>[] = [];
  if (first?.name !== null) {
    columns.push({
      key: "name",
      title: "Name",
      width: "minmax(150px, 2fr)",
      value: (spot) => spot.name,
      render: (spot) => (
        <ViewLink
          view="timeline"
          state={{ search: spot.name, ...(window === null ? {} : timelineWindow(window[0], window[1])) }}
          title={`${spot.name ?? ""}: find in the timeline`}
        >
          <i className="swatch" style={{ background: colorOfName(spot.name ?? "") }} /> {spot.name}
        </ViewLink>
      ),
    });
  }
  if (first !== undefined && (first.role !== null || first.lane_id !== null)) {
    columns.push(text("place", first.role !== null ? "Role" : "Lane", "minmax(130px, 1.4fr)", place));
  }
  for (const [key, title, hint] of FIGURES) {
    const largest = Math.max(1, ...spots.map((spot) => spot[key]));
    const width = key === "total_ns" || key === "wall_ns" ? "minmax(104px, 1fr)" : "minmax(84px, 1fr)";
    const format = key === "count" ? formatCount : formatDuration;
    const metered = (value: number | null | undefined) => (
      <MeterCell share={(value ?? 0) / largest}>{format(value)}</MeterCell>
    );
    columns.push(figure(key, title, width, (spot) => spot[key], metered, { hint }));
  }
  const counted = (className: string) => (count: number | null | undefined) => (
    <span className={(count ?? 0) > 0 ? className : "muted"}>{formatCount(count)}</span>
  );
  columns.push(figure("errors", "Errors", "72px", (spot) => spot.errors, counted("bad")));
  columns.push(figure("open", "Open", "66px", (spot) => spot.open, counted("warning")));
  if (first?.name !== null) {
    columns.push({
      key: "series",
      title: "",
      width: "92px",
      render: (spot) => (
        <ViewLink
          view="hotspots"
          state={{ shape: "latency", name: spot.name }}
          title={`${spot.name ?? ""}: p50, p95, count and errors over all steps`}
        >
          over time
        </ViewLink>
      ),
    });
  }
  return columns;
}

/** The display name of a lane or a role. */
export function placeText(spot: Hotspot, lanes: ReadonlyMap<number, Lane>): string {
  if (spot.role !== null) return spot.role || "no role";
  const lane = spot.lane_id === null ? undefined : lanes.get(spot.lane_id);
  if (lane === undefined) return "";
  return `${processTitle(lane)} · ${lane.lane ?? "process"}`;
}
