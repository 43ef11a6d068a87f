// Holds the visible window and the item under the pointer, and draws when something has changed.
// Lives outside React: sixty frames per second must not re-render components.
import { api } from "../api";
import { type Block, type Blocks, blockAt, knowsLane, lastLines } from "./blocks";
import { prepared, readColors } from "./canvas";
import { drawMap, drawTimeline } from "./draw";
import { markAt } from "./drawOver";
import { type Window, around, clamp, covers, panBy, width, xToTime, zoomAt } from "./geometry";
import { Gestures, type Movable, type Pointer } from "./gestures";
import { Horizon, growth } from "./horizon";
import { type Layout, type LaneRow, arrangeLanes, evenLanes, lanesBetween, lineAt, rowAt, sameRowAt } from "./layout";
import type { Callbacks, Hover, Inputs } from "./inputs";
import { type LaneChoice, Loader } from "./loader";
import { spansShown } from "./measure";
import { AXIS_HEIGHT, GUTTER, type Highlight, type Scene, lanesTop } from "./scene";

/** Following leaves some room on the right, so that the newest data is not at the edge. */
const AHEAD = 0.03;
const FOLLOW_FRAME_MS = 33;
/** How often to update the item under the pointer while the view moves. */
const LOOK_MS = 150;
/** With more lanes than this, only those near the viewport are loaded: a response with all would be too coarse. */
const MANY_LANES = 400;
/** The most lanes in the minimap. */
const MAP_LANES = 200;

export class TimelineController implements Movable {
  private inputs: Inputs;
  private window: Window = { start: 0, end: 1e9 };
  private scrollTop = 0;
  private wantedLane: number | null = null;
  private layout: Layout = { rows: [], height: 0 };
  private mapLanes: readonly number[] = [];
  private readonly lastLines = new Map<number, number>();
  private readonly fine: Loader;
  private readonly coarse: Loader;
  private readonly horizon: Horizon;
  private readonly gestures: Gestures;
  private pointer: Pointer | null = null;
  private hovered: Block | null = null;
  private isDirty = true;
  private frame = 0;
  private lastDrawn = 0;
  private windowTimer = 0;
  private lastLookedUp = 0;
  /** How long the last frames took, in ms; the end-to-end tests and benchmarks read it. */
  readonly frames: number[] = [];

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly map: HTMLCanvasElement,
    private readonly run: string,
    private readonly origin: number,
    inputs: Inputs,
    private readonly callbacks: Callbacks,
  ) {
    this.inputs = inputs;
    this.horizon = new Horizon(inputs.whole.end, performance.now());
    this.fine = this.loader(0.5, 250);
    // The overview of a long run hardly changes in a few seconds.
    this.coarse = this.loader(0, Math.min(60_000, Math.max(5000, width(inputs.whole) / 1e6 / 100)));
    this.relayout();
    this.gestures = new Gestures(canvas, map, this);
    const tick = () => {
      this.frame = requestAnimationFrame(tick);
      this.onFrame();
    };
    this.frame = requestAnimationFrame(tick);
  }

  destroy(): void {
    cancelAnimationFrame(this.frame);
    window.clearTimeout(this.windowTimer);
    this.fine.stop();
    this.coarse.stop();
    this.gestures.destroy();
  }

  update(change: Partial<Inputs>): void {
    const old = this.inputs;
    this.inputs = { ...old, ...change };
    const { lanes, folding, density, arrangement, colorBy } = this.inputs;
    if (colorBy === "step" && old.colorBy !== "step") for (const loader of [this.fine, this.coarse]) loader.forget();
    const isSame = lanes === old.lanes && folding === old.folding && arrangement === old.arrangement;
    if (!isSame || density !== old.density) this.relayout();
    if (this.inputs.whole.end > this.horizon.time) this.noteLatest(this.inputs.whole.end, performance.now());
    this.isDirty = true;
  }

  /** Shows a window chosen by the user, so following ends. */
  show(window: Window, keepsFollowing = false): void {
    if (!keepsFollowing && this.inputs.isFollowing) this.callbacks.onFollow(false);
    this.window = clamp(window, this.whole());
    this.tellWindow();
    this.isDirty = true;
  }

  fit(): void {
    this.show(around(this.whole().start, this.whole().end, 0.02));
  }

  zoom(factor: number): void {
    const pixels = this.lanePixels();
    // Following keeps the newest data in place.
    const x = this.inputs.isFollowing ? pixels * (1 - AHEAD) : (this.pointerX() ?? pixels / 2);
    this.zoomAround(xToTime(x, this.window, pixels), factor);
  }

  zoomAround(time: number, factor: number): void {
    this.show(zoomAt(this.window, time, factor, this.whole()), true);
  }

  pan(share: number): void {
    this.show(panBy(this.window, width(this.window) * share));
  }

  scrollBy(pixels: number): void {
    this.scrollTo(this.scrollTop + pixels);
  }

  scrollTo(top: number): void {
    this.wantedLane = null;
    this.scrollTop = this.clampedScroll(top);
    this.isDirty = true;
  }

  /** Scrolls a lane into view and keeps it there while lanes above it grow, until the user scrolls. */
  scrollToLane(laneId: number): void {
    this.wantedLane = laneId;
    this.keepWantedLane();
  }

  private keepWantedLane(): void {
    const laneId = this.wantedLane;
    if (laneId === null) return;
    const row = this.layout.rows.find((one) => one.kind === "lane" && one.lane.lane_id === laneId);
    if (row === undefined) return;
    const room = this.canvas.clientHeight - lanesTop(this.inputs.strips.length);
    if (row.y < this.scrollTop || row.y + row.height > this.scrollTop + room) {
      this.scrollTop = this.clampedScroll(row.y - room / 3);
      this.isDirty = true;
    }
  }

  currentWindow(): Window {
    return this.window;
  }

  /** The number of spans in the view; for measurements. */
  spansInView(): number {
    return spansShown(this.scene(performance.now()));
  }

  /** The area that a finding marks; for measurements. */
  highlight(): Highlight | null {
    return this.inputs.highlight;
  }

  currentScroll(): number {
    return this.scrollTop;
  }

  /** Draws a frame with the current state; for measurements. */
  draw(): void {
    const started = performance.now();
    const context = prepared(this.canvas);
    const scene = this.scene(started);
    if (context !== null) drawTimeline(context, scene);
    const mapContext = prepared(this.map);
    if (mapContext !== null)
      drawMap(mapContext, { ...scene, width: this.map.clientWidth }, this.mapWindow(), this.map.clientHeight);
    this.frames.push(performance.now() - started);
    if (this.frames.length > 240) this.frames.shift();
  }

  private loader(margin: number, everyMs: number): Loader {
    return new Loader({
      margin,
      everyMs,
      ask: (part, pixels, lanes, signal) =>
        api.timeline(
          {
            run: this.run,
            start_ns: this.absolute(part.start),
            end_ns: this.absolute(part.end),
            pixels,
            lane: lanes === null ? undefined : [...lanes],
            origin_ns: this.origin,
            max_blocks: margin === 0 ? 4000 : 40_000,
            steps: this.inputs.colorBy === "step" ? true : undefined,
          },
          signal,
        ),
      onBlocks: (blocks) => this.onBlocks(blocks),
      onError: (message) => this.callbacks.onError(message),
    });
  }

  private absolute(time: number): bigint {
    const absolute = BigInt(this.origin) + BigInt(Math.round(time));
    return absolute < 0n ? 0n : absolute;
  }

  private onBlocks(blocks: Blocks): void {
    this.noteLatest(blocks.latest, blocks.fetchedAt);
    let isHigher = false;
    for (const [lane, line] of lastLines(blocks)) {
      if (line > (this.lastLines.get(lane) ?? -1)) {
        this.lastLines.set(lane, line);
        isHigher = true;
      }
    }
    if (isHigher) this.relayout();
    this.isDirty = true;
  }

  private noteLatest(latest: number, at: number): void {
    this.horizon.hear(latest, at, this.inputs.isLive);
  }

  private horizonAt(now: number): number {
    return this.horizon.now(now, this.inputs.isLive);
  }

  private whole(): Window {
    return { start: this.inputs.whole.start, end: Math.max(this.inputs.whole.end, this.horizon.time) };
  }

  mapWindow(): Window {
    return around(this.whole().start, this.horizonAt(performance.now()), 0.005);
  }

  private relayout(): void {
    const { lanes, folding, density, arrangement } = this.inputs;
    const old = this.layout;
    this.layout = arrangeLanes(lanes, this.lastLines, folding, density, arrangement);
    // Lanes above the viewport grow when their spans arrive: the visible part stays in place.
    this.scrollTop = this.clampedScroll(sameRowAt(old, this.layout, this.scrollTop));
    this.keepWantedLane();
    const before = this.mapLanes;
    this.mapLanes = evenLanes(this.layout, MAP_LANES);
    const isSame =
      before.length === this.mapLanes.length && before.every((lane, place) => lane === this.mapLanes[place]);
    if (!isSame && this.hasManyLanes()) this.coarse.forget();
  }

  private hasManyLanes(): boolean {
    return this.inputs.laneTotal > MANY_LANES;
  }

  /** The lanes on and near the screen. */
  private lanesInView(): LaneChoice | null {
    if (!this.hasManyLanes()) return null;
    const room = this.canvas.clientHeight - lanesTop(this.inputs.strips.length);
    const [top, bottom] = [this.scrollTop, this.scrollTop + room];
    return {
      inView: lanesBetween(this.layout, top, bottom),
      near: () => lanesBetween(this.layout, top - room, bottom + room),
    };
  }

  private lanesOfMap(): LaneChoice | null {
    return this.hasManyLanes() ? { inView: this.mapLanes, near: () => this.mapLanes } : null;
  }

  private clampedScroll(scrollTop: number): number {
    const room = this.canvas.clientHeight - lanesTop(this.inputs.strips.length);
    return Math.max(0, Math.min(scrollTop, this.layout.height - room + 8));
  }

  lanePixels(): number {
    return Math.max(1, this.canvas.clientWidth - GUTTER);
  }

  private onFrame(): void {
    const now = performance.now();
    const { isFollowing, isLive, version } = this.inputs;
    if (document.hidden) return;
    if (isFollowing && !this.gestures.isDragging()) {
      const end = this.horizonAt(now) + width(this.window) * AHEAD;
      if (end !== this.window.end) {
        this.window = panBy(this.window, end - this.window.end);
        if (now - this.lastDrawn >= FOLLOW_FRAME_MS) this.isDirty = true;
        this.tellWindow();
      }
    } else if (isLive && this.window.end > this.horizon.time && now - this.lastDrawn > 200) {
      this.isDirty = true; // open spans grow
    }
    const isGrowing = this.window.end >= this.horizon.time - 10e9;
    this.fine.want(this.window, this.lanePixels(), version, isGrowing, now, this.lanesInView());
    this.coarse.want(this.whole(), 500, version, true, now, this.lanesOfMap());
    if (!this.isDirty) return;
    this.isDirty = false;
    this.lastDrawn = now;
    this.draw();
    if (!this.gestures.isDragging() && now - this.lastLookedUp > LOOK_MS) this.lookUnderPointer();
  }

  private scene(now: number): Scene {
    const grown = (blocks: Blocks | null) =>
      blocks === null || !this.inputs.isLive ? 0 : growth(blocks.fetchedAt, now);
    const { colorBy, steps, strips, isSearching, search, hits, hitLanes, marks, flows } = this.inputs;
    return {
      ...{ colorBy, steps, strips, isSearching, search, hits, hitLanes, marks, flows },
      width: this.canvas.clientWidth,
      height: this.canvas.clientHeight,
      window: this.window,
      scrollTop: this.scrollTop,
      layout: this.layout,
      coarse: this.coarse.blocks,
      fine: this.fine.blocks,
      coarseGrowth: grown(this.coarse.blocks),
      fineGrowth: grown(this.fine.blocks),
      selectedSpanId: this.inputs.selectedSpanId,
      hoveredSpanId: this.hovered?.spanId ?? null,
      range: this.inputs.range,
      highlight: this.inputs.highlight,
      pointerX: this.pointerX(),
      horizon: this.horizonAt(now),
      origin: this.origin,
      colors: readColors(),
    };
  }

  private tellWindow(): void {
    if (this.windowTimer !== 0) return;
    this.windowTimer = window.setTimeout(() => {
      this.windowTimer = 0;
      this.callbacks.onWindow(this.window);
    }, 300);
  }

  // Callbacks of gestures

  onPointer(pointer: Pointer | null): void {
    this.pointer = pointer;
    this.isDirty = true;
    if (pointer !== null) return this.lookUnderPointer();
    this.setHover(null);
    this.callbacks.onMark(null);
  }

  onMoved(): void {
    this.setHover(null);
  }

  onSelect(range: Window): void {
    this.callbacks.onRange(range);
  }

  onClick(x: number, y: number): void {
    const row = this.rowUnder(y);
    if (row?.kind === "group") return this.callbacks.onGroup(row.key);
    if (row?.kind === "lane" && x < GUTTER) return this.callbacks.onPin(row.lane.lane_id);
    if (y < AXIS_HEIGHT && x > GUTTER) return this.showStepAt(xToTime(x - GUTTER, this.window, this.lanePixels()));
    this.callbacks.onPick(this.blockUnder(x, y)?.block ?? null);
  }

  onDoubleClick(x: number, y: number): void {
    const found = this.blockUnder(x, y);
    if (found !== null) this.show(around(found.block.start, found.block.end));
  }

  onResize(): void {
    this.scrollTop = this.clampedScroll(this.scrollTop);
    this.keepWantedLane();
    this.isDirty = true;
  }

  private showStepAt(time: number): void {
    const { steps } = this.inputs;
    const next = steps.findIndex((mark) => mark.start > time);
    const mark = steps[(next === -1 ? steps.length : next) - 1];
    if (mark !== undefined) this.show(around(mark.start, steps[next]?.start ?? this.horizon.time, 0.05));
  }

  /** Updates the item under the pointer: the pointer moved, or the content did. */
  private lookUnderPointer(): void {
    const { pointer } = this;
    if (pointer === null) return;
    this.lastLookedUp = performance.now();
    const found = this.blockUnder(pointer.x, pointer.y);
    const row = this.rowUnder(pointer.y);
    const isButton = row?.kind === "group" || (row?.kind === "lane" && pointer.x < GUTTER);
    this.canvas.style.cursor = found !== null || isButton ? "pointer" : "default";
    const mark = pointer.y < AXIS_HEIGHT ? markAt(this.scene(this.lastLookedUp), pointer.x) : null;
    this.callbacks.onMark(mark === null ? null : { mark, clientX: pointer.clientX, clientY: pointer.clientY });
    this.setHover(found === null ? null : { ...found, clientX: pointer.clientX, clientY: pointer.clientY });
  }

  private pointerX(): number | null {
    return this.pointer === null || this.pointer.x < GUTTER ? null : this.pointer.x - GUTTER;
  }

  private setHover(hover: Hover | null): void {
    if (hover === null && this.hovered === null) return;
    if (hover?.block.spanId !== this.hovered?.spanId) this.isDirty = true;
    this.hovered = hover?.block ?? null;
    this.callbacks.onHover(hover);
  }

  private rowUnder(offsetY: number) {
    const y = offsetY - lanesTop(this.inputs.strips.length);
    return y < 0 ? null : rowAt(this.layout, y + this.scrollTop);
  }

  private blockUnder(x: number, y: number): { block: Block; row: LaneRow } | null {
    const row = this.rowUnder(y);
    if (row?.kind !== "lane" || x < GUTTER) return null;
    const time = xToTime(x - GUTTER, this.window, this.lanePixels());
    const line = lineAt(row, y - lanesTop(this.inputs.strips.length) + this.scrollTop);
    const blocks =
      this.fine.blocks !== null &&
      knowsLane(this.fine.blocks, row.lane.lane_id) &&
      covers(this.fine.blocks.window, { start: time, end: time })
        ? this.fine.blocks
        : this.coarse.blocks;
    if (blocks === null) return null;
    const tolerance = (width(this.window) / this.lanePixels()) * 2;
    const grown = this.inputs.isLive ? growth(blocks.fetchedAt, performance.now()) : 0;
    const block = blockAt(blocks, row.lane.lane_id, line, time, tolerance, grown);
    return block === null ? null : { block, row };
  }
}
