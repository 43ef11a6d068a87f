import { useMemo } from "react";
import type { Mark, SpanDetail } from "../api";
import { useLive } from "../live";
import { markText, markToken, useMarks } from "../marks";
import { token, useTheme } from "../theme";
import { flowsOf } from "./drawOver";
import { highlightOf } from "./finding";
import type { Window } from "./geometry";
import type { Inputs } from "./inputs";
import type { Flow, SceneMark } from "./scene";
import { RECENT_NS } from "./useController";
import type { Selection } from "./useSelection";
import { useStrips } from "./useStrips";
import type { TimelineAddress } from "./useTimelineAddress";
import type { TimelineData } from "./useTimelineData";

const NO_FLOWS: readonly Flow[] = [];

interface Options {
  run: string;
  origin: number;
  /** The whole run, from the origin. */
  whole: Window;
  address: TimelineAddress;
  data: TimelineData;
  selection: Selection;
}

/** The state that the drawing depends on, for the controller. */
export function useInputs({ run, origin, whole, address, data, selection }: Options): Inputs {
  const live = useLive();
  const { hits, finding, steps } = data;
  const { spanId } = address;
  const { detail } = selection;
  return {
    lanes: data.shownLanes,
    laneTotal: data.lanes.length,
    whole,
    steps: useMemo(
      () => (steps ?? []).map((step) => ({ step: step.step, start: step.start_ns - origin })),
      [steps, origin],
    ),
    strips: useStrips(run, address.stripNames, data.metrics, selection.window, origin),
    colorBy: address.colorBy,
    density: address.density,
    folding: address.lanes.folding,
    arrangement: address.lanes.arrangement,
    isSearching: hits.isSearching,
    search: hits.words,
    hits: hits.ids,
    hitLanes: hits.lanes,
    marks: useSceneMarks(origin),
    flows: useMemo(() => shownFlows(detail, spanId, origin), [detail, spanId, origin]),
    selectedSpanId: spanId === "" ? null : spanId,
    range: selection.range,
    highlight: useMemo(() => highlightOf(finding, origin), [finding, origin]),
    isFollowing: address.isFollowing,
    isLive: live.state === "live" && Date.now() * 1e6 - live.latestNs < RECENT_NS,
    version: live.version,
  };
}

function useSceneMarks(origin: number): readonly SceneMark[] {
  const marks = useMarks();
  const [theme] = useTheme();
  return useMemo(() => marks.map((mark) => sceneMark(mark, origin)), [marks, origin, theme]);
}

function sceneMark(mark: Mark, origin: number): SceneMark {
  return { time: mark.time_ns - origin, text: markText(mark), color: token(markToken(mark)) };
}

function shownFlows(detail: SpanDetail | null, spanId: string, origin: number): readonly Flow[] {
  if (detail === null || detail.span.span_id !== spanId) return NO_FLOWS;
  return flowsOf(detail.span, detail.parents[0], detail.children, origin);
}
