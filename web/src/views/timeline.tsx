import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { type Lane, type Mark, type Span, type SpanDetail, type TraceQuery, api } from "../api";
import { EmptyState } from "../components/EmptyState";
import { Loading } from "../components/Loading";
import { TraceButtons } from "../components/TraceButtons";
import { useLive } from "../live";
import { reportFacts } from "../reportFacts";
import { markText, markToken, useMarks } from "../marks";
import { token, useTheme } from "../theme";
import { HoverDetail, MarkDetail } from "../timeline/HoverDetail";
import { RangePanel } from "../timeline/RangePanel";
import { SpanPanel } from "../timeline/SpanPanel";
import { Toolbar } from "../timeline/Toolbar";
import { flowsOf } from "../timeline/drawOver";
import type { Callbacks, Hover, Inputs, MarkHover } from "../timeline/inputs";
import type { Flow, SceneMark } from "../timeline/scene";
import { filterLanes } from "../timeline/search";
import { FindingLine, highlightOf, useFinding } from "../timeline/finding";
import { type Window, around } from "../timeline/geometry";
import { sortLanes } from "../timeline/layout";
import { RECENT_NS, useController } from "../timeline/useController";
import { useHits } from "../timeline/useHits";
import { useRange } from "../timeline/useRange";
import { useStrips } from "../timeline/useStrips";
import { type TimelineAddress, useTimelineAddress } from "../timeline/useTimelineAddress";
import { useTimelineKeys } from "../timeline/useTimelineKeys";
import { useAnswer } from "../useQuery";
import { useSteps } from "../useSteps";
import type { ViewProps } from ".";

/** Loads the run's time range and lanes, which the timeline needs first. */
export default function TimelineView({ run }: ViewProps) {
  const summary = useAnswer("summary", { run }, { everyMs: 2000 });
  const start = summary.data?.start_ns;
  if (summary.error !== undefined && summary.data === undefined)
    return <EmptyState title="No timeline" text={summary.error} />;
  if (summary.data === undefined) return <Loading />;
  if (start === null || start === undefined) {
    return (
      <EmptyState
        title="Nothing on the timeline yet"
        text="Spans and states appear here as soon as the run records them."
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
  // Whole seconds are multiples of 2^9 ns, so the origin is exact although it exceeds 2^53.
  const [origin] = useState(() => Math.floor(startNs / 1e9) * 1e9);
  return origin;
}

interface Selection {
  hover: Hover | null;
  markHover: MarkHover | null;
  range: Window | null;
  window: Window | null;
  problem: string | null;
}

const NO_FLOWS: readonly Flow[] = [];

function sceneMark(mark: Mark, origin: number): SceneMark {
  return { time: mark.time_ns - origin, text: markText(mark), color: token(markToken(mark)) };
}

const NOTHING: Selection = { hover: null, markHover: null, range: null, window: null, problem: null };
const NO_LANES: readonly Lane[] = [];

interface TimelineProps {
  run: string;
  startNs: number;
  endNs: number;
}

function Timeline({ run, startNs, endNs }: TimelineProps) {
  const live = useLive();
  const isReport = reportFacts() !== null;
  const origin = useOrigin(startNs);
  const address = useTimelineAddress(isReport);
  const { spanId, setSpanId, laneId } = address;
  const [selection, setSelection] = useState<Selection>(NOTHING);
  const change = useCallback((part: Partial<Selection>) => setSelection((old) => ({ ...old, ...part })), []);
  const [traceMessage, setTraceMessage] = useState<string | null>(null);
  const { range } = selection;

  const [laneCount, setLaneCount] = useState(0);
  // A long list changes little in a few seconds.
  const everyMs = Math.max(2000, laneCount * 2);
  const lanes = useAnswer("lanes", { run }, { everyMs });
  useEffect(() => setLaneCount(lanes.data?.length ?? 0), [lanes.data]);
  const steps = useSteps(run, 1000);
  const metrics = useAnswer("metrics", { run }, { everyMs: 5000 });
  const laneRows = lanes.data ?? NO_LANES;
  const hits = useHits(run, address.search, laneRows);
  const marks = useMarks();
  const [theme] = useTheme();
  const [detail, setDetail] = useState<SpanDetail | null>(null);
  const { filter, arrangement, folding } = address.lanes;
  const shownLanes = useMemo(() => filterLanes(laneRows, filter), [laneRows, filter]);
  const finding = useFinding(run, address.findingId);
  const strips = useStrips(run, address.stripNames, metrics.data ?? [], selection.window, origin);

  const inputs: Inputs = {
    lanes: useMemo(() => sortLanes(shownLanes, arrangement), [shownLanes, arrangement]),
    laneTotal: laneRows.length,
    whole: useMemo(() => ({ start: startNs - origin, end: endNs - origin }), [startNs, endNs, origin]),
    steps: useMemo(
      () => (steps ?? []).map((step) => ({ step: step.step, start: step.start_ns - origin })),
      [steps, origin],
    ),
    strips,
    colorBy: address.colorBy,
    density: address.density,
    folding,
    arrangement,
    isSearching: hits.isSearching,
    search: hits.words,
    hits: hits.ids,
    hitLanes: hits.lanes,
    marks: useMemo(() => marks.map((mark) => sceneMark(mark, origin)), [marks, origin, theme]),
    flows: useMemo(
      () =>
        detail === null || detail.span.span_id !== spanId
          ? NO_FLOWS
          : flowsOf(detail.span, detail.parents[0], detail.children, origin),
      [detail, spanId, origin],
    ),
    selectedSpanId: spanId === "" ? null : spanId,
    range,
    highlight: useMemo(() => highlightOf(finding, origin), [finding, origin]),
    isFollowing: address.isFollowing,
    isLive: live.state === "live" && Date.now() * 1e6 - live.latestNs < RECENT_NS,
    version: live.version,
  };
  const latest = useRef(inputs);
  latest.current = inputs;
  const setRange = useCallback((next: Window | null) => change({ range: next }), [change]);
  const shared = useRange(run, origin, range, setRange);
  const isReady = lanes.data !== undefined && steps !== undefined && !shared.isPending;
  const { canvas, map, controller } = useController({
    run,
    origin,
    isReady,
    inputs,
    callbacks: callbacksOf(address, origin, latest, change),
    wanted:
      address.to > address.from && address.from > 0
        ? { start: address.from * 1e9 - origin, end: address.to * 1e9 - origin }
        : shared.bounds === null
          ? null
          : around(shared.bounds.start_ns - origin, shared.bounds.end_ns - origin),
  });

  // The target of a link may be on any lane: scroll to it.
  const firstLane = finding?.lanes?.[0] ?? (laneId < 0 ? undefined : laneId);
  useEffect(() => {
    if (isReady && firstLane !== undefined) controller.current?.scrollToLane(firstLane);
  }, [isReady, firstLane]);

  // A search that matches lanes scrolls to the first of them.
  const [firstHit] = hits.lanes;
  useEffect(() => {
    if (isReady && firstHit !== undefined) controller.current?.scrollToLane(firstHit);
  }, [isReady, firstHit]);

  const show = useCallback(
    (span: Span) => {
      const end = span.duration_ns === null ? latest.current.whole.end : span.start_ns - origin + span.duration_ns;
      controller.current?.show(around(span.start_ns - origin, end, 0.6));
      controller.current?.scrollToLane(span.lane_id);
    },
    [origin],
  );
  const pick = (span: Span) => {
    setSpanId(span.span_id);
    change({ range: null });
    show(span);
  };
  const go = (distance: number) => {
    const hit = hits.move(distance);
    if (hit === null) return;
    if ("span" in hit) pick(hit.span);
    else controller.current?.scrollToLane(hit.lane.lane_id);
  };
  const load = () => api.span({ run, span_id: spanId });
  const fit = () => {
    if (spanId === "") controller.current?.fit();
    else
      void load().then(
        (found) => show(found.span),
        () => controller.current?.fit(),
      );
  };
  // A link may contain a span: without a time, show it; without a lane, find its lane.
  useEffect(() => {
    if (!isReady || spanId === "") return;
    if (address.from === 0) fit();
    else if (laneId < 0) void load().then((found) => controller.current?.scrollToLane(found.span.lane_id), noSpan);
  }, [isReady]);
  useTimelineKeys({
    controller,
    onFit: fit,
    onFollow: () => address.setIsFollowing(!isReport && !latest.current.isFollowing),
    onHit: go,
    onEscape: () => {
      change({ range: null });
      setSpanId("");
      address.setFindingId("");
    },
  });
  const traced = (): TraceQuery => {
    const { start, end } = range ?? controller.current?.currentWindow() ?? latest.current.whole;
    const absolute = (time: number) => BigInt(origin) + BigInt(Math.round(time));
    return { run, start_ns: absolute(Math.max(start, latest.current.whole.start)), end_ns: absolute(end) };
  };

  return (
    <div className="view timeline">
      <Toolbar
        address={address}
        hits={hits}
        metrics={metrics.data ?? []}
        isReport={isReport}
        laneCount={shownLanes.length}
        laneTotal={laneRows.length}
        onHit={go}
        onZoom={(factor) => controller.current?.zoom(factor)}
        onFit={() => controller.current?.fit()}
      >
        {!isReport && (
          <TraceButtons
            query={traced}
            what={range === null ? "the visible part" : "the selected range"}
            title={run}
            onMessage={setTraceMessage}
          />
        )}
      </Toolbar>
      {selection.problem !== null && live.state === "live" && <div className="error-line">{selection.problem}</div>}
      {traceMessage !== null && (
        <div className="note-line" role="status">
          {traceMessage}
        </div>
      )}
      {finding !== undefined && <FindingLine finding={finding} onForget={() => address.setFindingId("")} />}
      <div className="timeline-body">
        <div className="timeline-main">
          <canvas ref={map} className="timeline-map" aria-hidden="true" />
          <canvas
            ref={canvas}
            className="timeline-canvas"
            tabIndex={0}
            role="img"
            aria-label={`Timeline of ${lanes.data?.length ?? 0} lanes. Use the search to find individual spans.`}
          />
          {lanes.data === undefined && (
            <div className="loading timeline-loading" role="status">
              Loading…
            </div>
          )}
          {laneRows.length > 0 && shownLanes.length === 0 && (
            <EmptyState title="No matching lanes" text="Filter by words, role:, rank:, node: or lane:." />
          )}
          {lanes.data?.length === 0 && (
            <EmptyState title="No lanes yet" text="Spans and states appear here as soon as the run records them." />
          )}
        </div>
        {range !== null ? (
          <RangePanel
            run={run}
            range={range}
            origin={origin}
            lanes={inputs.lanes}
            onZoom={() => controller.current?.show(range)}
            onClose={() => change({ range: null })}
          />
        ) : (
          spanId !== "" && (
            <SpanPanel
              run={run}
              spanId={spanId}
              onPick={pick}
              onShow={show}
              onClose={() => setSpanId("")}
              onDetail={setDetail}
            />
          )
        )}
      </div>
      {selection.hover !== null && <HoverDetail hover={selection.hover} origin={origin} />}
      {selection.markHover !== null && <MarkDetail hover={selection.markHover} origin={origin} />}
    </div>
  );
}

/** The panel next to the canvas shows that there is no such span. */
function noSpan(): void {
  return undefined;
}

/** The state that the controller reports to the page. */
function callbacksOf(
  address: TimelineAddress,
  origin: number,
  latest: { current: Inputs },
  change: (part: Partial<Selection>) => void,
): Callbacks {
  const seconds = (time: number) => Math.round((origin + time) / 1e3) / 1e6;
  return {
    onHover: (hover) => change({ hover }),
    onMark: (markHover) => change({ markHover }),
    onPin: (laneId) => address.lanes.togglePin(laneId),
    onPick: (block) => {
      address.setSpanId(block?.spanId ?? "", "replace");
      if (block === null) return;
      change({ range: null });
      address.setIsFollowing(false); // keep the selected item in place
    },
    onWindow: (shown) => {
      change({ window: shown });
      if (latest.current.isFollowing) return;
      address.setFrom(seconds(shown.start));
      address.setTo(seconds(shown.end));
    },
    onRange: (range) => {
      change({ range });
      if (range !== null) address.setIsFollowing(false);
    },
    onFollow: (follows) => address.setIsFollowing(follows),
    onGroup: (key) => address.lanes.toggleGroup(key),
    onError: (problem) => change({ problem }),
  };
}
