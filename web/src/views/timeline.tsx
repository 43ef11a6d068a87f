import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { type Finding, type Metric, type Span, type TraceQuery, api } from "../api";
import { EmptyState } from "../components/EmptyState";
import { SearchBox } from "../components/SearchBox";
import { Choice, Select } from "../components/Select";
import { SeverityBadge } from "../components/SeverityBadge";
import { Tooltip } from "../components/Tooltip";
import { TraceButtons } from "../components/TraceButtons";
import { ViewLink } from "../components/ViewLink";
import { isTyping } from "../keys";
import { useLive } from "../live";
import { reportFacts } from "../reportFacts";
import { RangePanel } from "../timeline/RangePanel";
import { SpanPanel } from "../timeline/SpanPanel";
import { type Callbacks, type Hover, type Inputs, TimelineController } from "../timeline/controller";
import { type Window, around } from "../timeline/geometry";
import { type Density, sortLanes } from "../timeline/layout";
import { COLOURINGS, type ColourBy, type Highlight } from "../timeline/scene";
import { useStrips } from "../timeline/useStrips";
import { formatClock, formatCount, formatDuration, shorten } from "../units";
import { useUrlState } from "../url";
import { useQuery } from "../useQuery";
import { useSteps } from "../useSteps";
import type { ViewProps } from ".";

const MAX_HITS = 1000;
/** A run whose last sign of life is older is shown whole; a younger one is followed. */
const RECENT_NS = 30e9;
const FIRST_STEPS = 6;

/** What the timeline needs before it can begin: the run's time and lanes. */
export default function TimelineView({ run }: ViewProps) {
  const summary = useQuery(`summary ${run}`, (signal) => api.summary({ run }, signal), { everyMs: 2000 });
  const start = summary.data?.start_ns;
  if (summary.error !== undefined && summary.data === undefined)
    return <EmptyState title="No timeline" text={summary.error} />;
  if (summary.data === undefined) return null;
  if (start === null || start === undefined) {
    return (
      <EmptyState
        title="Nothing on the timeline yet"
        text="Spans and states show up here as soon as the run records them."
        code={'with insight.trace_state("rollout"):\n    ...'}
      />
    );
  }
  const report = reportFacts();
  return (
    <Timeline run={run} startNs={report?.startNs ?? start} endNs={report?.endNs ?? summary.data.end_ns ?? start} />
  );
}

function useOrigin(startNs: number): number {
  // Whole seconds are multiples of 2^9 ns, so the origin is exact although it is past 2^53.
  const [origin] = useState(() => Math.floor(startNs / 1e9) * 1e9);
  return origin;
}

function Timeline({ run, startNs, endNs }: { run: string; startNs: number; endNs: number }) {
  const live = useLive();
  const isReport = reportFacts() !== null;
  const origin = useOrigin(startNs);
  const canvas = useRef<HTMLCanvasElement>(null);
  const map = useRef<HTMLCanvasElement>(null);
  const controller = useRef<TimelineController | null>(null);
  const [hover, setHover] = useState<Hover | null>(null);
  const [range, setRange] = useState<Window | null>(null);
  const [window_, setWindow] = useState<Window | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [from, setFrom] = useUrlState("from", 0);
  const [to, setTo] = useUrlState("to", 0);
  const [isFollowing, setIsFollowing] = useUrlState("follow", from === 0 && !isReport);
  const [colourBy, setColourBy] = useUrlState<ColourBy>("colour", "name", COLOURINGS);
  const [density, setDensity] = useUrlState<Density>("density", "normal", ["normal", "compact"]);
  const [search, setSearch] = useUrlState("search", "");
  const [spanId, setSpanId] = useUrlState("span", "");
  const [collapsed, setCollapsed] = useUrlState("collapsed", []);
  const [stripNames, setStripNames] = useUrlState("metric", []);
  const [findingId, setFindingId] = useUrlState("finding", "");
  const [traceMessage, setTraceMessage] = useState<string | null>(null);

  const lanes = useQuery(`lanes ${run}`, (signal) => api.lanes({ run }, signal), { everyMs: 2000 });
  const steps = useSteps(run, 1000);
  const metrics = useQuery(`metrics ${run}`, (signal) => api.metrics({ run }, signal), { everyMs: 5000 });
  const hits = useHits(run, search);
  const finding = useFinding(run, findingId);
  const strips = useStrips(run, stripNames, metrics.data ?? [], window_, origin);

  const inputs: Inputs = {
    lanes: useMemo(() => sortLanes(lanes.data ?? []), [lanes.data]),
    whole: useMemo(() => ({ start: startNs - origin, end: endNs - origin }), [startNs, endNs, origin]),
    steps: useMemo(
      () => (steps ?? []).map((step) => ({ step: step.step, start: step.start_ns - origin })),
      [steps, origin],
    ),
    strips,
    colourBy,
    density,
    collapsed: useMemo(() => new Set(collapsed), [collapsed]),
    search,
    hits: hits.ids,
    selectedSpanId: spanId === "" ? null : spanId,
    range,
    highlight: useMemo(() => highlightOf(finding, origin), [finding, origin]),
    isFollowing,
    isLive: live.state === "live" && Date.now() * 1e6 - live.latestNs < RECENT_NS,
    version: live.version,
  };
  const latest = useRef({ inputs, isFollowing });
  latest.current = { inputs, isFollowing };

  const callbacks: Callbacks = {
    onHover: setHover,
    onPick: (block) => {
      setSpanId(block?.spanId ?? "", "replace");
      if (block === null) return;
      setRange(null);
      setIsFollowing(false); // what was picked should not run away
    },
    onWindow: (shown) => {
      setWindow(shown);
      if (latest.current.isFollowing) return;
      setFrom(seconds(origin, shown.start));
      setTo(seconds(origin, shown.end));
    },
    onRange: (selected) => {
      setRange(selected);
      if (selected !== null) setIsFollowing(false);
    },
    onFollow: (follows) => setIsFollowing(follows),
    onGroup: (key) => {
      const set = latest.current.inputs.collapsed;
      setCollapsed(set.has(key) ? [...set].filter((one) => one !== key) : [...set, key]);
    },
    onError: setProblem,
  };
  const latestCallbacks = useRef(callbacks);
  latestCallbacks.current = callbacks;

  const isReady = lanes.data !== undefined && steps !== undefined;
  useEffect(() => {
    if (canvas.current === null || map.current === null || !isReady) return undefined;
    const made = new TimelineController(
      canvas.current,
      map.current,
      run,
      origin,
      latest.current.inputs,
      forwarded(latestCallbacks),
    );
    controller.current = made;
    const { whole, steps: marks } = latest.current.inputs;
    const isOld = isReport || Date.now() * 1e6 - (origin + whole.end) > RECENT_NS;
    if (from > 0 && to > from)
      made.show({ start: from * 1e9 - origin, end: to * 1e9 - origin }, latest.current.isFollowing);
    else if (isOld) made.fit();
    else
      made.show(
        { start: marks.at(-FIRST_STEPS)?.start ?? Math.max(whole.start, whole.end - 30e9), end: whole.end },
        true,
      );
    (window as { rlInsightTimeline?: TimelineController }).rlInsightTimeline = made;
    return () => {
      made.destroy();
      controller.current = null;
    };
  }, [run, origin, isReady]);

  useEffect(() => controller.current?.update(inputs));

  // A finding's lanes may be anywhere: bring the first of them into view.
  const firstLane = finding?.lanes?.[0];
  useEffect(() => {
    if (isReady && firstLane !== undefined) controller.current?.scrollToLane(firstLane);
  }, [isReady, firstLane]);

  const show = useCallback(
    (span: Span) => {
      const end =
        span.duration_ns === null ? latest.current.inputs.whole.end : span.start_ns - origin + span.duration_ns;
      controller.current?.show(around(span.start_ns - origin, end, 0.6));
      controller.current?.scrollToLane(span.lane_id);
    },
    [origin],
  );
  const pick = (span: Span) => {
    setSpanId(span.span_id);
    setRange(null);
    show(span);
  };
  const go = (distance: number) => {
    const span = hits.move(distance);
    if (span !== null) pick(span);
  };
  const fit = () => {
    if (spanId === "") controller.current?.fit();
    else
      void api.span({ run, span_id: spanId }).then(
        (detail) => show(detail.span),
        () => controller.current?.fit(),
      );
  };
  // A link from elsewhere names a span and no time: show it.
  useEffect(() => {
    if (isReady && spanId !== "" && from === 0) fit();
  }, [isReady]);
  useTimelineKeys({
    controller,
    onFit: fit,
    onFollow: () => setIsFollowing(!isReport && !latest.current.isFollowing),
    onHit: go,
    onEscape: () => {
      setRange(null);
      setSpanId("");
      setFindingId("");
    },
  });
  const traced = (): TraceQuery => {
    const { start, end } = range ?? controller.current?.currentWindow() ?? latest.current.inputs.whole;
    const moment = (time: number) => BigInt(origin) + BigInt(Math.round(time));
    return { run, start_ns: moment(Math.max(start, latest.current.inputs.whole.start)), end_ns: moment(end) };
  };

  return (
    <div className="view timeline">
      <div className="toolbar">
        <SearchBox
          value={search}
          onChange={setSearch}
          placeholder="Name or attribute"
          label="Search spans"
          onEnter={(isBackwards) => go(isBackwards ? -1 : 1)}
        />
        {search !== "" && (
          <span className="toolbar" aria-live="polite">
            <span className="muted">{hits.text}</span>
            <button
              type="button"
              className="icon-button"
              onClick={() => go(-1)}
              disabled={hits.count === 0}
              title="Previous hit (P)"
              aria-label="Previous hit"
            >
              ‹
            </button>
            <button
              type="button"
              className="icon-button"
              onClick={() => go(1)}
              disabled={hits.count === 0}
              title="Next hit (N)"
              aria-label="Next hit"
            >
              ›
            </button>
          </span>
        )}
        <span className="field-label">Colour</span>
        <Choice
          label="Colour by"
          value={colourBy}
          onChange={setColourBy}
          options={[
            { value: "name", label: "Name" },
            { value: "status", label: "Status" },
            { value: "step", label: "Step" },
          ]}
        />
        <button
          type="button"
          aria-pressed={density === "compact"}
          onClick={() => setDensity(density === "compact" ? "normal" : "compact")}
          title="Low rows: more lanes in view"
        >
          Compact
        </button>
        <MetricPicker metrics={metrics.data ?? []} chosen={stripNames} onChange={setStripNames} />
        <span className="spacer" />
        {!isReport && (
          <TraceButtons
            query={traced}
            what={range === null ? "what is in view" : "the selected range"}
            title={run}
            onMessage={setTraceMessage}
          />
        )}
        <button
          type="button"
          onClick={() => controller.current?.zoom(0.5)}
          aria-label="Zoom in"
          className="icon-button"
          title="Zoom in (W)"
        >
          +
        </button>
        <button
          type="button"
          onClick={() => controller.current?.zoom(2)}
          aria-label="Zoom out"
          className="icon-button"
          title="Zoom out (S)"
        >
          −
        </button>
        <button type="button" onClick={() => controller.current?.fit()} title="Show the whole run (F)">
          Fit
        </button>
        {!isReport && (
          <button
            type="button"
            aria-pressed={isFollowing}
            onClick={() => setIsFollowing(!isFollowing)}
            title="Keep the newest data in view (L)"
          >
            Follow
          </button>
        )}
      </div>
      {problem !== null && live.state === "live" && <div className="error-line">{problem}</div>}
      {traceMessage !== null && (
        <div className="note-line" role="status">
          {traceMessage}
        </div>
      )}
      {finding !== undefined && (
        <div className="finding-line" role="status">
          <SeverityBadge severity={finding.severity} /> <strong>{shorten(finding.title, 200)}</strong>{" "}
          <ViewLink view="findings" state={{ kind: finding.kind }}>
            All findings of this kind
          </ViewLink>
          <span className="spacer" />
          <button
            type="button"
            className="icon-button"
            onClick={() => setFindingId("")}
            aria-label="Forget the finding"
            title="Take the mark away (Esc)"
          >
            ×
          </button>
        </div>
      )}
      <div className="timeline-body">
        <div className="timeline-main">
          <canvas ref={map} className="timeline-map" aria-hidden="true" />
          <canvas
            ref={canvas}
            className="timeline-canvas"
            tabIndex={0}
            role="img"
            aria-label={`Timeline of ${lanes.data?.length ?? 0} lanes. Use the search to reach single spans.`}
          />
          {lanes.data?.length === 0 && (
            <EmptyState title="No lanes yet" text="Spans and states show up here as soon as the run records them." />
          )}
        </div>
        {range !== null ? (
          <RangePanel
            run={run}
            range={range}
            origin={origin}
            lanes={inputs.lanes}
            onZoom={() => controller.current?.show(range)}
            onClose={() => setRange(null)}
          />
        ) : (
          spanId !== "" && (
            <SpanPanel run={run} spanId={spanId} onPick={pick} onShow={show} onClose={() => setSpanId("")} />
          )
        )}
      </div>
      {hover !== null && <HoverDetail hover={hover} origin={origin} />}
    </div>
  );
}

/** The finding that a link leads to. */
function useFinding(run: string, findingId: string): Finding | undefined {
  const { data } = useQuery(`findings ${run}`, (signal) => api.findings({ run }, signal), {
    enabled: findingId !== "",
    everyMs: 10_000,
  });
  return findingId === "" ? undefined : data?.find((one) => one.finding_id === findingId);
}

function highlightOf(finding: Finding | undefined, origin: number): Highlight | null {
  if (finding === undefined) return null;
  return { start: finding.start_ns - origin, end: finding.end_ns - origin, lanes: new Set(finding.lanes ?? []) };
}

function seconds(origin: number, time: number): number {
  return Math.round((origin + time) / 1e3) / 1e6;
}

/** Callbacks that always reach the latest ones, so that the controller can outlive a rendering. */
function forwarded(latest: { current: Callbacks }): Callbacks {
  return {
    onHover: (hover) => latest.current.onHover(hover),
    onPick: (block) => latest.current.onPick(block),
    onWindow: (shown) => latest.current.onWindow(shown),
    onRange: (range) => latest.current.onRange(range),
    onFollow: (follows) => latest.current.onFollow(follows),
    onGroup: (key) => latest.current.onGroup(key),
    onError: (message) => latest.current.onError(message),
  };
}

interface Hits {
  ids: ReadonlySet<string>;
  count: number;
  text: string;
  move: (distance: number) => Span | null;
}

const NO_IDS: ReadonlySet<string> = new Set();

function useHits(run: string, search: string): Hits {
  const [place, setPlace] = useState(-1);
  const { data, isLoading } = useQuery(
    `hits ${run} ${search}`,
    async (signal) => (await api.spans({ run, text: search, limit: MAX_HITS }, signal)).reverse(),
    { enabled: search !== "", live: false, keep: false },
  );
  useEffect(() => setPlace(-1), [run, search]);
  const found = search === "" ? [] : (data ?? []);
  const ids = useMemo(
    () => (search === "" || data === undefined ? NO_IDS : new Set(data.map((span) => span.span_id))),
    [data, search],
  );
  const move = (distance: number) => {
    if (found.length === 0) return null;
    // The first step forward goes to the newest, which is likely in view.
    const next = place < 0 ? found.length - 1 : (place + distance + found.length) % found.length;
    setPlace(next);
    return found[next] ?? null;
  };
  const total = found.length >= MAX_HITS ? `the newest ${formatCount(MAX_HITS)}` : formatCount(found.length);
  const text = isLoading
    ? "…"
    : found.length === 0
      ? "no hits"
      : place < 0
        ? `${total} hits`
        : `${place + 1} of ${total}`;
  return { ids, count: found.length, text, move };
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

function HoverDetail({ hover, origin }: { hover: Hover; origin: number }) {
  const { block, row } = hover;
  const isOne = block.count === 1;
  return (
    <Tooltip x={hover.clientX} y={hover.clientY}>
      <strong>{shorten(block.name, 200)}</strong>
      <div>
        {isOne
          ? formatDuration(block.end - block.start)
          : `${formatCount(block.count)} spans, ${formatDuration(block.busy)} in all`}
        {block.isOpen && <span className="warning"> still open</span>}
        {block.errors > 0 && <span className="bad"> {isOne ? "error" : `${formatCount(block.errors)} errors`}</span>}
      </div>
      <div className="muted">
        {row.lane.role} {row.lane.rank ?? ""} · {shorten(row.title, 60)} · {formatClock(origin + block.start, true)}
      </div>
    </Tooltip>
  );
}

interface Keys {
  controller: { current: TimelineController | null };
  onFit: () => void;
  onFollow: () => void;
  onHit: (distance: number) => void;
  onEscape: () => void;
}

function useTimelineKeys(keys: Keys): void {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const timeline = latest.current.controller.current;
      if (timeline === null || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      const actions: Record<string, () => void> = {
        w: () => timeline.zoom(0.7),
        s: () => timeline.zoom(1 / 0.7),
        a: () => timeline.pan(-0.2),
        d: () => timeline.pan(0.2),
        arrowleft: () => timeline.pan(-0.2),
        arrowright: () => timeline.pan(0.2),
        arrowup: () => timeline.scrollBy(-60),
        arrowdown: () => timeline.scrollBy(60),
        f: () => latest.current.onFit(),
        l: () => latest.current.onFollow(),
        n: () => latest.current.onHit(1),
        p: () => latest.current.onHit(-1),
        escape: () => latest.current.onEscape(),
      };
      const action = actions[event.key.toLowerCase()];
      if (action === undefined) return;
      event.preventDefault();
      action();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
}
