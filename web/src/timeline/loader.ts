// Decides when to ask for blocks: few requests, the old picture until the new one is here, and never two at once.
import type { Timeline } from "../api";
import { type Blocks, arrange } from "./blocks";
import { type Window, covers, width, withMargins } from "./geometry";

export interface LoaderOptions {
  ask: (window: Window, pixels: number, signal: AbortSignal) => Promise<Timeline>;
  onBlocks: (blocks: Blocks) => void;
  onError: (message: string | null) => void;
  /** How much is asked for beside the window on each side, as a share of it. */
  margin: number;
  /** At least this long between two requests. */
  everyMs: number;
}

/** Too coarse by this much: ask again; too fine by that much: ask again, as drawing it would be slow. */
const COARSE = 1.5;
const FINE = 4;
const MAX_PIXELS = 8192;
const RETRY_MS = 1000;

export class Loader {
  blocks: Blocks | null = null;
  private askedPixelNs = 0;
  private askedVersion = -1;
  private asking: { window: Window; controller: AbortController } | null = null;
  private notBefore = 0;

  constructor(private readonly options: LoaderOptions) {}

  /** Called on each frame: says what is on show; asks if that is not here. `isGrowing`: news may change this window. */
  want(window: Window, pixels: number, version: number, isGrowing: boolean, now: number): void {
    if (now < this.notBefore) return;
    if (this.asking !== null) {
      // An answer that will not cover the window any more only costs time.
      if (covers(this.asking.window, window)) return;
      this.asking.controller.abort();
      this.asking = null;
    }
    if (this.isServed(window, pixels) && !(isGrowing && version !== this.askedVersion)) return;
    this.ask(window, pixels, version, now);
  }

  stop(): void {
    this.asking?.controller.abort();
    this.asking = null;
    this.notBefore = Infinity;
  }

  private isServed(window: Window, pixels: number): boolean {
    if (this.blocks === null || !covers(this.blocks.window, window)) return false;
    const wanted = width(window) / pixels;
    return this.askedPixelNs <= wanted * COARSE && this.askedPixelNs >= wanted / FINE;
  }

  private ask(window: Window, pixels: number, version: number, now: number): void {
    const wide = withMargins(window, this.options.margin);
    const wanted = Math.max(1, Math.min(MAX_PIXELS, Math.round(pixels * (1 + 2 * this.options.margin))));
    const controller = new AbortController();
    this.asking = { window: wide, controller };
    this.notBefore = now + this.options.everyMs;
    const askedPixelNs = width(wide) / wanted;
    this.options.ask(wide, wanted, controller.signal).then(
      (answer) => {
        if (this.asking?.controller !== controller) return;
        this.asking = null;
        this.askedPixelNs = askedPixelNs;
        this.askedVersion = version;
        const arrived = performance.now();
        // A slow answer is asked for less often.
        this.notBefore = Math.max(this.notBefore, arrived + (arrived - now));
        this.blocks = arrange(answer, arrived);
        this.options.onError(null);
        this.options.onBlocks(this.blocks);
      },
      (error: unknown) => {
        if (this.asking?.controller !== controller) return;
        this.asking = null;
        this.notBefore = performance.now() + RETRY_MS;
        this.options.onError(error instanceof Error ? error.message : String(error));
      },
    );
  }
}
