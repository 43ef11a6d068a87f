import { type RefObject, useCallback, useEffect } from "react";
import { type Span, type SpanDetail, type TraceQuery, api } from "../api";
import type { TimelineController } from "./controller";
import { around } from "./geometry";
import type { Inputs } from "./inputs";
import type { ChangeSelection } from "./useSelection";
import type { TimelineAddress } from "./useTimelineAddress";
import type { TimelineData } from "./useTimelineData";

interface Options {
  run: string;
  origin: number;
  address: TimelineAddress;
  data: TimelineData;
  change: ChangeSelection;
  controller: RefObject<TimelineController | null>;
  latest: RefObject<Inputs>;
  isReady: boolean;
}

export interface Navigation {
  /** Brings a span into view. */
  show: (span: Span) => void;
  /** Selects a span and brings it into view. */
  pick: (span: Span) => void;
  /** Goes to another match of the search. */
  goToHit: (distance: number) => void;
  /** Shows the selected span; without one, the entire run. */
  fit: () => void;
  /** The selected range, or else the visible part of the run. */
  traced: () => TraceQuery;
}

/** Moves the timeline to spans, lanes and matches, also to those of a link. */
export function useNavigation({
  run,
  origin,
  address,
  data,
  change,
  controller,
  latest,
  isReady,
}: Options): Navigation {
  const { spanId, laneId } = address;
  useFirstLanes(controller, isReady, data, laneId);
  const show = useCallback(
    (span: Span) => {
      const end = span.duration_ns === null ? latest.current.whole.end : span.start_ns - origin + span.duration_ns;
      controller.current?.show(around(span.start_ns - origin, end, 0.6));
      controller.current?.scrollToLane(span.lane_id);
    },
    [origin],
  );
  const pick = (span: Span) => {
    address.setSpanId(span.span_id);
    change({ range: null });
    show(span);
  };
  const goToHit = (distance: number) => {
    const hit = data.hits.move(distance);
    if (hit === null) return;
    if ("span" in hit) pick(hit.span);
    else controller.current?.scrollToLane(hit.lane.lane_id);
  };
  const load = (): Promise<SpanDetail> => api.span({ run, span_id: spanId });
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
  const traced = (): TraceQuery => {
    const { range, whole } = latest.current;
    const { start, end } = range ?? controller.current?.currentWindow() ?? whole;
    const absolute = (time: number) => BigInt(origin) + BigInt(Math.round(time));
    return { run, start_ns: absolute(Math.max(start, whole.start)), end_ns: absolute(end) };
  };
  return { show, pick, goToHit, fit, traced };
}

/** Scrolls to the target of a link, which may be on any lane, and to the first lane that a search matches. */
function useFirstLanes(
  controller: RefObject<TimelineController | null>,
  isReady: boolean,
  { finding, hits }: TimelineData,
  laneId: number,
): void {
  const linked = finding?.lanes?.[0] ?? (laneId < 0 ? undefined : laneId);
  useEffect(() => {
    if (isReady && linked !== undefined) controller.current?.scrollToLane(linked);
  }, [isReady, linked]);
  const [found] = hits.lanes;
  useEffect(() => {
    if (isReady && found !== undefined) controller.current?.scrollToLane(found);
  }, [isReady, found]);
}

/** The panel next to the canvas shows that there is no such span. */
function noSpan(): void {
  return undefined;
}
