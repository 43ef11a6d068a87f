// What the page tells the controller of the timeline, and hears from it.
import type { Lane } from "../api";
import type { Block } from "./blocks";
import type { Window } from "./geometry";
import type { Arrangement, Density, Folding, LaneRow } from "./layout";
import type { SceneMark, Shown } from "./scene";

/** What React knows and the pictures depend on. */
export interface Inputs extends Shown {
  lanes: readonly Lane[];
  /** How many lanes the run has, those that the filter hides included. */
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
