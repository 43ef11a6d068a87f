// Decides when to request blocks: few requests, never two at once, and the old blocks stay until the new ones arrive.
import { type Timeline, errorText } from "../api";
import { type Blocks, arrange } from "./blocks";
import { type Window, covers, overlaps, width, withMargins } from "./geometry";
import { mergeBlocks } from "./mergeBlocks";

export interface LoaderOptions {
  ask: (window: Window, pixels: number, lanes: ReadonlySet<number> | null, signal: AbortSignal) => Promise<Timeline>;
  onBlocks: (blocks: Blocks) => void;
  onError: (message: string | null) => void;
  /** The margin to load on each side of the window, as a share of it. */
  margin: number;
  /** At least this long between two requests. */
  everyMs: number;
}

/** The lanes to request, if a run has too many to request all. */
export interface LaneChoice {
  /** Lanes that must be loaded. */
  inView: readonly number[];
  /** The lanes to request: the visible ones and their neighbors. */
  near: () => readonly number[];
}

/** Request again if the blocks are too coarse by this factor, or too fine by that one, as drawing would be slow. */
const COARSE = 1.5;
const FINE = 4;
const MAX_PIXELS = 8192;
const RETRY_MS = 1000;
/** New data is requested for this much of the newest time; a periodic full request finds what arrived later. */
const TAIL_NS = 3e9;
const FULL_EVERY_MS = 15_000;

export class Loader {
  blocks: Blocks | null = null;
  private askedPixelNs = 0;
  private askedVersion = -1;
  private asking: { window: Window; controller: AbortController } | null = null;
  private notBefore = 0;
  private lastFull = -Infinity;

  constructor(private readonly options: LoaderOptions) {}

  /** Called on each frame with the visible window; loads missing data. `isGrowing`: new data may change this window. */
  want(
    window: Window,
    pixels: number,
    version: number,
    isGrowing: boolean,
    now: number,
    lanes: LaneChoice | null = null,
  ): void {
    if (now < this.notBefore) return;
    if (this.asking !== null) {
      // A response that no longer covers the window only costs time.
      if (overlaps(this.asking.window, window)) return;
      this.asking.controller.abort();
      this.asking = null;
    }
    const isFineEnough = this.hasResolution(window, pixels) && this.hasLanes(lanes);
    const isNew = isGrowing && version !== this.askedVersion;
    if (isFineEnough && !isNew && this.isCovered(window)) return;
    if (isFineEnough && isGrowing && this.canExtend(window, now)) this.askTail(window, version, now);
    else this.askAll(window, pixels, version, now, lanes);
  }

  /** Requests everything again soon, because more detail is needed; the loaded blocks stay visible until then. */
  forget(): void {
    this.asking?.controller.abort();
    this.asking = null;
    this.askedPixelNs = 0;
    this.notBefore = 0;
  }

  stop(): void {
    this.asking?.controller.abort();
    this.asking = null;
    this.notBefore = Infinity;
  }

  private isCovered(window: Window): boolean {
    return this.blocks !== null && covers(this.blocks.window, window);
  }

  private hasResolution(window: Window, pixels: number): boolean {
    const wanted = width(window) / pixels;
    return this.askedPixelNs <= wanted * COARSE && this.askedPixelNs >= wanted / FINE;
  }

  private hasLanes(lanes: LaneChoice | null): boolean {
    const here = this.blocks?.onlyLanes ?? null;
    if (lanes === null || here === null) return lanes === null && here === null;
    return lanes.inView.every((lane) => here.has(lane));
  }

  /** Whether only the newest time is missing: everything before it is loaded, and was requested recently. */
  private canExtend(window: Window, now: number): boolean {
    const { blocks } = this;
    if (blocks === null || this.options.margin === 0 || now - this.lastFull > FULL_EVERY_MS) return false;
    return (
      blocks.window.start <= window.start &&
      blocks.window.end >= blocks.latest &&
      blocks.latest - TAIL_NS > window.start
    );
  }

  private askAll(window: Window, pixels: number, version: number, now: number, lanes: LaneChoice | null): void {
    const wide = withMargins(window, this.options.margin);
    const wanted = Math.max(1, Math.min(MAX_PIXELS, Math.round(pixels * (1 + 2 * this.options.margin))));
    this.lastFull = now;
    this.ask(wide, wanted, version, now, lanes === null ? null : new Set(lanes.near()), (blocks) => {
      this.askedPixelNs = width(wide) / wanted;
      return blocks;
    });
  }

  private askTail(window: Window, version: number, now: number): void {
    const old = this.blocks!;
    const wide = withMargins(window, this.options.margin);
    const tail = { start: Math.floor(old.latest - TAIL_NS), end: wide.end };
    const wanted = Math.max(1, Math.min(MAX_PIXELS, Math.round(width(tail) / this.askedPixelNs)));
    this.ask(
      tail,
      wanted,
      version,
      now,
      old.onlyLanes,
      (news) => mergeBlocks(old, news, { start: Math.max(old.window.start, wide.start), end: tail.end }),
      window,
    );
  }

  private ask(
    part: Window,
    pixels: number,
    version: number,
    now: number,
    lanes: ReadonlySet<number> | null,
    made: (blocks: Blocks) => Blocks,
    serves: Window = part,
  ): void {
    const controller = new AbortController();
    this.asking = { window: serves, controller };
    this.notBefore = now + this.options.everyMs;
    this.options.ask(part, pixels, lanes, controller.signal).then(
      (answer) => {
        if (this.asking?.controller !== controller) return;
        this.asking = null;
        this.askedVersion = version;
        const arrived = performance.now();
        // Slow responses are requested less often.
        this.notBefore = Math.max(this.notBefore, arrived + (arrived - now));
        this.blocks = made(arrange(answer, arrived, lanes));
        this.options.onError(null);
        this.options.onBlocks(this.blocks);
      },
      (error: unknown) => {
        if (this.asking?.controller !== controller) return;
        this.asking = null;
        this.notBefore = performance.now() + RETRY_MS;
        this.options.onError(errorText(error));
      },
    );
  }
}
