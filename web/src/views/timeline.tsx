import { useMemo, useRef, useState } from "react";
import { EmptyState } from "../components/EmptyState";
import { Loading } from "../components/Loading";
import { TraceButtons } from "../components/TraceButtons";
import { useLive } from "../live";
import { reportFacts } from "../reportFacts";
import { HoverDetail, MarkDetail } from "../timeline/HoverDetail";
import { SidePanel } from "../timeline/SidePanel";
import { TimelineCanvas } from "../timeline/TimelineCanvas";
import { Toolbar } from "../timeline/Toolbar";
import { FindingLine } from "../timeline/finding";
import { type Window, around } from "../timeline/geometry";
import { useController } from "../timeline/useController";
import { useInputs } from "../timeline/useInputs";
import { useNavigation } from "../timeline/useNavigation";
import { useRange } from "../timeline/useRange";
import { callbacksOf, useSelection } from "../timeline/useSelection";
import { type TimelineAddress, useTimelineAddress } from "../timeline/useTimelineAddress";
import { useTimelineData } from "../timeline/useTimelineData";
import { useTimelineKeys } from "../timeline/useTimelineKeys";
import { useAnswer } from "../useQuery";
import type { Bounds } from "../window";
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

interface TimelineProps {
  run: string;
  startNs: number;
  endNs: number;
}

function Timeline({ run, startNs, endNs }: TimelineProps) {
  const timeline = useTimeline({ run, startNs, endNs });
  const { origin, address, data, selection, change, canvases, navigation } = timeline;
  const { controller } = canvases;
  const { range, hover, markHover } = selection;
  return (
    <div className="view timeline">
      <TimelineHead run={run} timeline={timeline} />
      <div className="timeline-body">
        <TimelineCanvas canvases={canvases} data={data} />
        <SidePanel
          run={run}
          origin={origin}
          range={range}
          lanes={data.shownLanes}
          address={address}
          navigation={navigation}
          change={change}
          onZoom={(wanted) => controller.current?.show(wanted)}
        />
      </div>
      {hover !== null && <HoverDetail hover={hover} origin={origin} />}
      {markHover !== null && <MarkDetail hover={markHover} origin={origin} />}
    </div>
  );
}

type TimelineParts = ReturnType<typeof useTimeline>;

/** The parts of the timeline: its state in the address, its data, the selection, and the controller that draws it. */
function useTimeline({ run, startNs, endNs }: TimelineProps) {
  const isReport = reportFacts() !== null;
  const origin = useOrigin(startNs);
  const address = useTimelineAddress(isReport);
  const data = useTimelineData(run, address);
  const [selection, change] = useSelection();
  const whole = useMemo(() => ({ start: startNs - origin, end: endNs - origin }), [startNs, endNs, origin]);
  const inputs = useInputs({ run, origin, whole, address, data, selection });
  const latest = useRef(inputs);
  latest.current = inputs;
  const shared = useRange(run, origin, selection.range, (range) => change({ range }));
  const isReady = data.hasLanes && data.steps !== undefined && !shared.isPending;
  const canvases = useController({
    ...{ run, origin, isReady, inputs },
    callbacks: callbacksOf(address, origin, latest, change),
    wanted: wantedWindow(address, shared.bounds, origin),
  });
  const { controller } = canvases;
  const navigation = useNavigation({ run, origin, address, data, change, controller, latest, isReady });
  useTimelineKeys({
    controller,
    onFit: navigation.fit,
    onFollow: () => address.setIsFollowing(!isReport && !latest.current.isFollowing),
    onHit: navigation.goToHit,
    onEscape: () => {
      change({ range: null });
      address.setSpanId("");
      address.setFindingId("");
    },
  });
  return { isReport, origin, address, data, selection, change, canvases, navigation };
}

/** The window to start with: that of the link, or else the one that all views share; null for none. */
function wantedWindow({ from, to }: TimelineAddress, bounds: Bounds | null, origin: number): Window | null {
  if (to > from && from > 0) return { start: from * 1e9 - origin, end: to * 1e9 - origin };
  return bounds === null ? null : around(bounds.start_ns - origin, bounds.end_ns - origin);
}

/** The toolbar, and what is to be said above the canvas. */
function TimelineHead({ run, timeline }: { run: string; timeline: TimelineParts }) {
  const live = useLive();
  const [traceMessage, setTraceMessage] = useState<string | null>(null);
  const { isReport, address, data, selection, canvases, navigation } = timeline;
  const { controller } = canvases;
  return (
    <>
      <Toolbar
        address={address}
        hits={data.hits}
        metrics={data.metrics}
        isReport={isReport}
        laneCount={data.shownLanes.length}
        laneTotal={data.lanes.length}
        onHit={navigation.goToHit}
        onZoom={(factor) => controller.current?.zoom(factor)}
        onFit={() => controller.current?.fit()}
      >
        {!isReport && (
          <TraceButtons
            query={navigation.traced}
            what={selection.range === null ? "the visible part" : "the selected range"}
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
      {data.finding !== undefined && <FindingLine finding={data.finding} onForget={() => address.setFindingId("")} />}
    </>
  );
}
