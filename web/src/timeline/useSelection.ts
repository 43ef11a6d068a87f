import { useCallback, useState } from "react";
import type { SpanDetail } from "../api";
import type { Window } from "./geometry";
import type { Callbacks, Hover, Inputs, MarkHover } from "./inputs";
import type { TimelineAddress } from "./useTimelineAddress";

export interface Selection {
  hover: Hover | null;
  markHover: MarkHover | null;
  range: Window | null;
  window: Window | null;
  /** Why the spans could not be loaded. */
  problem: string | null;
  /** The relatives of the span in the address, once they are loaded; they may still be those of an earlier one. */
  detail: SpanDetail | null;
}

const NOTHING: Selection = { hover: null, markHover: null, range: null, window: null, problem: null, detail: null };

export type ChangeSelection = (part: Partial<Selection>) => void;

/** What is under the pointer, selected and visible. */
export function useSelection(): [Selection, ChangeSelection] {
  const [selection, setSelection] = useState(NOTHING);
  const change = useCallback((part: Partial<Selection>) => setSelection((old) => ({ ...old, ...part })), []);
  return [selection, change];
}

/** The state that the controller reports to the page. */
export function callbacksOf(
  address: TimelineAddress,
  origin: number,
  latest: { current: Inputs },
  change: ChangeSelection,
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
