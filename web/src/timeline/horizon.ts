// Where the newest data ends: open spans grow and the picture follows it between two answers.

/** Without news for this long, the clock of the picture stops. */
export const GROWTH_LIMIT_NS = 4e9;

export class Horizon {
  constructor(
    /** When the newest data heard of was. */
    public time: number,
    private at: number,
  ) {}

  /** The picture's clock never runs backwards: of all that was heard, what is furthest by now counts. */
  hear(latest: number, at: number, isLive: boolean): void {
    const reached = this.now(at, isLive);
    if (Number.isFinite(latest) && latest > reached) [this.time, this.at] = [latest, at];
    else if (latest > this.time) [this.time, this.at] = [reached, at];
  }

  now(at: number, isLive: boolean): number {
    return isLive ? this.time + growth(this.at, at) : this.time;
  }
}

/** How much may have happened between two moments of the page's clock, in nanoseconds. */
export function growth(since: number, now: number): number {
  return Math.min(GROWTH_LIMIT_NS, Math.max(0, (now - since) * 1e6));
}
