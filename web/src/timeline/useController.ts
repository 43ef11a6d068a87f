import { type RefObject, useEffect, useRef } from "react";
import { reportFacts } from "../reportFacts";
import { TimelineController } from "./controller";
import type { Callbacks, Inputs } from "./inputs";
import type { Window } from "./geometry";

/** A run with an older last record is shown entirely; a newer one is followed. */
export const RECENT_NS = 30e9;
const FIRST_STEPS = 6;

interface Options {
  run: string;
  origin: number;
  /** Drawing starts once the lanes and steps are known. */
  isReady: boolean;
  inputs: Inputs;
  callbacks: Callbacks;
  /** The window in the address; null for none. */
  wanted: Window | null;
}

export interface Canvases {
  canvas: RefObject<HTMLCanvasElement | null>;
  map: RefObject<HTMLCanvasElement | null>;
  controller: RefObject<TimelineController | null>;
}

/** Creates the controller, which outlives renders, and passes it the React state. */
export function useController({ run, origin, isReady, inputs, callbacks, wanted }: Options): Canvases {
  const canvas = useRef<HTMLCanvasElement>(null);
  const map = useRef<HTMLCanvasElement>(null);
  const controller = useRef<TimelineController | null>(null);
  const latest = useRef({ inputs, callbacks });
  latest.current = { inputs, callbacks };
  useEffect(() => {
    if (canvas.current === null || map.current === null || !isReady) return undefined;
    const stable = forwarded(() => latest.current.callbacks);
    const made = new TimelineController(canvas.current, map.current, run, origin, latest.current.inputs, stable);
    controller.current = made;
    begin(made, latest.current.inputs, origin, wanted);
    (window as { rlInsightTimeline?: TimelineController }).rlInsightTimeline = made;
    return () => {
      made.destroy();
      controller.current = null;
    };
  }, [run, origin, isReady]);
  useEffect(() => controller.current?.update(inputs));
  return { canvas, map, controller };
}

function begin(controller: TimelineController, inputs: Inputs, origin: number, wanted: Window | null): void {
  const { whole, steps, isFollowing } = inputs;
  const isOld = reportFacts() !== null || Date.now() * 1e6 - (origin + whole.end) > RECENT_NS;
  if (wanted !== null) controller.show(wanted, isFollowing);
  else if (isOld) controller.fit();
  else {
    const start = steps.at(-FIRST_STEPS)?.start ?? Math.max(whole.start, whole.end - 30e9);
    controller.show({ start, end: whole.end }, true);
  }
}

/** Callbacks that always call the latest ones, so that the controller can outlive a render. */
function forwarded(latest: () => Callbacks): Callbacks {
  return {
    onHover: (hover) => latest().onHover(hover),
    onMark: (hover) => latest().onMark(hover),
    onPin: (laneId) => latest().onPin(laneId),
    onPick: (block) => latest().onPick(block),
    onWindow: (shown) => latest().onWindow(shown),
    onRange: (range) => latest().onRange(range),
    onFollow: (follows) => latest().onFollow(follows),
    onGroup: (key) => latest().onGroup(key),
    onError: (message) => latest().onError(message),
  };
}
