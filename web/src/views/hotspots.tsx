import { type ReactNode, useMemo } from "react";
import type { HotspotQuery } from "../api";
import { NumberField } from "../components/NumberField";
import { SearchBox } from "../components/SearchBox";
import { Choice, LogButton, Select, labeled } from "../components/Select";
import { parseSort, sortText } from "../components/Table";
import { reportFacts } from "../reportFacts";
import { formatClock, shorten } from "../units";
import { useUrlState } from "../url";
import { useAnswer } from "../useQuery";
import { useWindow, windowTitle } from "../window";
import type { ViewProps } from ".";
import { Flame } from "./hotspots/Flame";
import { SpanLatency } from "./hotspots/SpanLatency";
import { HotspotTable, placeText } from "./hotspots/HotspotTable";
import { SCOPES, type Scope, type ScopeKind, hotspotConditions, scopeWindow, seriesConditions } from "./hotspots/scope";
import "./views.css";
import { ErrorLine } from "../components/ErrorLine";

type Grouping = NonNullable<HotspotQuery["group_by"]>;
const GROUPINGS: readonly { value: Grouping; label: string }[] = labeled({
  name: "name",
  role: "role",
  lane: "lane",
  name_role: "name and role",
  name_lane: "name and lane",
});
const SEGMENTS = labeled({
  "": "everything",
  state_interval: "states",
  duration: "operations",
  phase: "phases of sessions",
  session: "sessions",
});

/** Where the time goes: as a table, and as a flame graph. */
export default function Hotspots({ run }: ViewProps) {
  const [shape, setShape] = useUrlState("shape", "table", ["table", "flame", "latency"]);
  const [grouping, setGrouping] = useUrlState<Grouping>(
    "group",
    "name",
    GROUPINGS.map((one) => one.value),
  );
  const [segment, setSegment] = useUrlState("segment", "");
  const [search, setSearch] = useUrlState("search", "");
  const [order, setOrder] = useUrlState("sort", "-wall_ns");
  const [zoom, setZoom] = useUrlState("zoom", "");
  const [wantedName, setName] = useUrlState("name", "");
  const [isLogarithmic, setIsLogarithmic] = useUrlState("log", false);
  const [axis, setAxis] = useUrlState<"step" | "time">("axis", "step", ["step", "time"]);
  const [scope, controls] = useScope(run);
  const steps = useAnswer("steps", { run, limit: 1000 }, { everyMs: 3000 });
  const lanes = useAnswer("lanes", { run }, { everyMs: 5000 });
  const isByName = shape === "latency";
  const query: HotspotQuery = {
    run,
    // Include names that do not occur in the latest steps.
    ...(isByName && scope.kind !== "window" && scope.kind !== "step" ? {} : hotspotConditions(scope)),
    group_by: isByName ? "name" : grouping,
    segment: segment === "" || isByName ? undefined : segment,
    limit: 2000,
  };
  const { data, error, isLoading } = useAnswer("hotspots", query, { everyMs: 2000, enabled: shape !== "flame" });
  const byId = useMemo(() => new Map((lanes.data ?? []).map((lane) => [lane.lane_id, lane])), [lanes.data]);
  const spots = useMemo(() => {
    const wanted = search.trim().toLowerCase();
    return (data ?? []).filter((spot) => `${spot.name ?? ""} ${placeText(spot, byId)}`.toLowerCase().includes(wanted));
  }, [data, byId, search]);

  const names = useMemo(
    () => (isByName ? (data ?? []).flatMap((spot) => (spot.name === null || spot.count === 0 ? [] : [spot.name])) : []),
    [data, isByName],
  );
  const name = names.includes(wantedName) ? wantedName : (names[0] ?? "");

  return (
    <div className="view">
      <div className="toolbar">
        <Choice
          label="Shape"
          value={shape}
          options={labeled({ table: "Table", flame: "Flame", latency: "Over time" })}
          onChange={setShape}
        />
        {controls}
        {isByName && (
          <Select
            label="Name"
            value={name}
            options={names.map((one) => ({ value: one, label: shorten(one, 50) }))}
            onChange={setName}
          />
        )}
        {isByName && (
          <Choice label="Axis" value={axis} options={labeled({ step: "Step", time: "Time" })} onChange={setAxis} />
        )}
        {isByName && <LogButton isOn={isLogarithmic} onChange={setIsLogarithmic} />}
        {shape === "table" && (
          <>
            <Select label="by" value={grouping} options={GROUPINGS} onChange={setGrouping} />
            {reportFacts() === null && <Select label="of" value={segment} options={SEGMENTS} onChange={setSegment} />}
            <span className="spacer" />
            <SearchBox value={search} onChange={setSearch} label="Search hotspots" placeholder="Search names" />
          </>
        )}
      </div>
      <ErrorLine text={error} />
      <section className="panel grows">
        {shape === "table" ? (
          <HotspotTable
            spots={spots}
            lanes={byId}
            sort={parseSort(order)}
            onSort={(sort) => setOrder(sortText(sort))}
            window={scopeWindow(scope, steps.data ?? [])}
            isLoading={isLoading}
          />
        ) : (
          <div className="panel-body">
            {isByName ? (
              <SpanLatency
                run={run}
                conditions={scope.kind === "latest" || scope.kind === "last" ? {} : seriesConditions(scope)}
                axis={axis}
                name={name}
                isLogarithmic={isLogarithmic}
              />
            ) : (
              <Flame run={run} conditions={hotspotConditions(scope)} zoom={zoom} onZoom={setZoom} />
            )}
          </div>
        )}
      </section>
    </div>
  );
}

const SCOPE_LABELS: Readonly<Record<ScopeKind, string>> = {
  latest: "latest step",
  last: "last steps",
  step: "one step",
  all: "entire run",
  window: "a time window",
};

function useScope(run: string): [Scope, ReactNode] {
  const { window, bounds } = useWindow(run);
  const [wanted, setKind] = useUrlState<ScopeKind | "">("scope", "", ["", ...SCOPES]);
  const [count, setCount] = useUrlState("steps", 10);
  const [step, setStep] = useUrlState("step", 0);
  const [linkFrom] = useUrlState("from", 0);
  const [linkTo] = useUrlState("to", 0);
  // A link may contain a time range; otherwise it is the one that all views share.
  const hasLink = linkTo > linkFrom;
  const from = hasLink ? linkFrom : (bounds?.start_ns ?? 0) / 1e9;
  const to = hasLink ? linkTo : (bounds?.end_ns ?? 0) / 1e9;
  const usual: ScopeKind = window !== null ? "window" : "last";
  const kind = wanted === "" ? usual : wanted;
  const report = reportFacts();
  if (report !== null)
    return [
      { kind: report.step === null ? "all" : "step", count, step: report.step ?? 0, from, to },
      <span key="scope" className="muted">{`Of ${report.scope}`}</span>,
    ];
  const offered = SCOPES.filter((one) => one !== "window" || to > from);
  const controls = (
    <>
      <Select
        label="Scope"
        value={kind}
        options={offered.map((value) => ({
          value,
          label: value === "window" && window !== null && !hasLink ? windowTitle(window) : SCOPE_LABELS[value],
        }))}
        onChange={setKind}
      />
      {kind === "last" && <NumberField label="How many steps" value={count} least={1} onChange={setCount} />}
      {kind === "step" && <NumberField label="Step" value={step} onChange={setStep} />}
      {kind === "window" && hasLink && (
        <span className="muted">{`${formatClock(from * 1e9)} to ${formatClock(to * 1e9)}`}</span>
      )}
    </>
  );
  return [{ kind, count, step, from, to }, controls];
}
