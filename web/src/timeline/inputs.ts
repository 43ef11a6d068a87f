// The interface between the page and the timeline's controller.
import type { Lane } from "../api";
import type { Block } from "./blocks";
import type { Window } from "./geometry";
import type { Arrangement, Density, Folding, LaneRow } from "./layout";
import type { SceneMark, Shown } from "./scene";

/** React state that the drawing depends on. */
export interface Inputs extends Shown {
  lanes: readonly Lane[];
  /** The number of lanes in the run, including hidden ones. */
  laneTotal: number;
  whole: Window;
  density: Density;
  folding: Folding;
  arrangement: Arrangement;
  isFollowing: boolean;
  isLive: boolean;
  version: number;
}

export interface Hover {
  block: Block;
  row: LaneRow;
  clientX: number;
  clientY: number;
}

/** A mark under the pointer. */
export interface MarkHover {
  mark: SceneMark;
  clientX: number;
  clientY: number;
}

export interface Callbacks {
  onHover: (hover: Hover | null) => void;
  onMark: (hover: MarkHover | null) => void;
  onPin: (laneId: number) => void;
  onPick: (block: Block | null) => void;
  onWindow: (window: Window) => void;
  onRange: (range: Window | null) => void;
  onFollow: (isFollowing: boolean) => void;
  onGroup: (key: string) => void;
  onError: (message: string | null) => void;
}
