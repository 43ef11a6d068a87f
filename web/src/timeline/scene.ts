// Everything that a frame of the timeline depends on.
import type { Blocks } from "./blocks";
import type { Window } from "./geometry";
import type { Layout } from "./layout";

export type ColorBy = "name" | "status" | "step";
export const COLORINGS: readonly ColorBy[] = ["name", "status", "step"];

export interface StepMark {
  step: number;
  start: number;
}

/** The time range and the lanes of a finding; no lanes means all. */
export interface Highlight extends Window {
  lanes: ReadonlySet<number>;
}

/** A mark at a point in time. */
export interface SceneMark {
  time: number;
  text: string;
  color: string;
}

/** From where a span was started to where it ran. */
export interface Flow {
  fromLane: number;
  fromTime: number;
  toLane: number;
  toTime: number;
}

/** A metric on the same time axis. */
export interface Strip {
  title: string;
  format: (value: number | null | undefined) => string;
  lines: readonly { label: string; color: string; x: Float64Array; y: Float64Array }[];
  low: number;
  high: number;
}

export interface Colors {
  background: string;
  surface: string;
  sunken: string;
  border: string;
  grid: string;
  text: string;
  muted: string;
  accent: string;
  bad: string;
  font: string;
}

/** Display settings that the page controls. */
export interface Shown {
  colorBy: ColorBy;
  steps: readonly StepMark[];
  strips: readonly Strip[];
  isSearching: boolean;
  /** The text to match in names; lower case, empty for none. */
  search: string;
  hits: ReadonlySet<string>;
  /** Lanes that match the search. */
  hitLanes: ReadonlySet<number>;
  marks: readonly SceneMark[];
  flows: readonly Flow[];
  selectedSpanId: string | null;
  range: Window | null;
  highlight: Highlight | null;
}

export interface Scene extends Shown {
  width: number;
  height: number;
  window: Window;
  scrollTop: number;
  layout: Layout;
  /** The entire run in a few blocks: drawn until the exact ones are loaded, and in the minimap. */
  coarse: Blocks | null;
  fine: Blocks | null;
  /** How far open blocks have grown since each response, in nanoseconds. */
  coarseGrowth: number;
  fineGrowth: number;
  hoveredSpanId: string | null;
  /** Where the pointer is, in pixels from the left of the lanes. */
  pointerX: number | null;
  /** Where the newest data ends. */
  horizon: number;
  /** The wall-clock time of the origin, in nanoseconds. */
  origin: number;
  colors: Colors;
}

export const GUTTER = 148;
export const AXIS_HEIGHT = 38;
export const STRIP_HEIGHT = 46;

/** Where the lanes begin. */
export function lanesTop(strips: number): number {
  return AXIS_HEIGHT + strips * STRIP_HEIGHT;
}
