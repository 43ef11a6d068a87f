import { useEffect, useRef } from "react";
import { isTyping } from "../keys";
import type { TimelineController } from "./controller";

interface Keys {
  controller: { current: TimelineController | null };
  onFit: () => void;
  onFollow: () => void;
  onHit: (distance: number) => void;
  onEscape: () => void;
}

/** The keys of the timeline. */
export function useTimelineKeys(keys: Keys): void {
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
