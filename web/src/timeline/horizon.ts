// Where the newest data ends: open spans grow and the view follows it between responses.

/** Without new data for this long, the view's clock stops. */
export const GROWTH_LIMIT_NS = 4e9;

export class Horizon {
  constructor(
    /** The time of the newest reported data. */
    public time: number,
    private at: number,
  ) {}

  /** The view's clock never runs backward: of all reports, the one that is furthest along by now counts. */
  hear(latest: number, at: number, isLive: boolean): void {
    const reached = this.now(at, isLive);
    if (Number.isFinite(latest) && latest > reached) [this.time, this.at] = [latest, at];
    else if (latest > this.time) [this.time, this.at] = [reached, at];
  }

  now(at: number, isLive: boolean): number {
    return isLive ? this.time + growth(this.at, at) : this.time;
  }
}

/** How much may have happened between two times of the page's clock, in nanoseconds. */
export function growth(since: number, now: number): number {
  return Math.min(GROWTH_LIMIT_NS, Math.max(0, (now - since) * 1e6));
}
