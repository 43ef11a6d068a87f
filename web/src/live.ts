// The live stream: notifies the page of changes, without the data.
// The connection is a plain class, so that reconnects can be tested without a browser; `useLive` connects it to React.
import { createContext, useContext } from "react";

export type LiveState = "live" | "paused" | "disconnected";

/** The part of `EventSource` used here. */
export interface Stream {
  addEventListener(type: string, listener: (event: { data?: string; lastEventId?: string }) => void): void;
  close(): void;
}

/** The environment, so that a test can control its clock. */
export interface Surroundings {
  open(address: string): Stream;
  now(): number;
  later(callback: () => void, ms: number): number;
  cancel(timer: number): void;
}

export interface LiveSnapshot {
  state: LiveState;
  /** Incremented when there is new data, at most once per second. */
  version: number;
  /** The newest reported training step. */
  step: number | null;
  /** When the newest data was sent, by the sender's clock, in nanoseconds; 0 before the first report. */
  latestNs: number;
}

export const REFRESH_MS = 1000;
const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 8000;
const HEARTBEAT_MS = 5000;
/** A heartbeat this late means that the machine slept: the connection is probably dead without an error. */
const ASLEEP_MS = 20_000;

interface Change {
  version?: number;
  step?: number | null;
  latest_ns?: number;
}

function parsed(data: string): Change | null {
  try {
    const found: unknown = JSON.parse(data);
    return typeof found === "object" ? found : null;
  } catch {
    return null;
  }
}

const browser: Surroundings = {
  open: (address) => new EventSource(address),
  now: () => Date.now(),
  later: (callback, ms) => window.setTimeout(callback, ms),
  cancel: (timer) => window.clearTimeout(timer),
};

/** Keeps a stream open, reopens it after the server or the network was down, and resumes where it left off. */
export class LiveConnection {
  private snapshot: LiveSnapshot = { state: "disconnected", version: 0, step: null, latestNs: 0 };
  private readonly listeners = new Set<() => void>();
  private stream: Stream | null = null;
  private seen: number | null = null;
  private retryMs = FIRST_RETRY_MS;
  private retryTimer: number | null = null;
  private refreshTimer: number | null = null;
  private heartbeatTimer: number | null = null;
  private lastHeartbeat = 0;
  private lastRefresh = -Infinity;

  constructor(
    private readonly run: string | null,
    private readonly world: Surroundings = browser,
  ) {}

  start(isPaused = false): void {
    if (isPaused) this.update({ state: "paused" });
    else this.connect();
    this.beat();
  }

  /** Ends everything; the connection cannot be used again. */
  stop(): void {
    this.disconnect();
    if (this.refreshTimer !== null) this.world.cancel(this.refreshTimer);
    if (this.heartbeatTimer !== null) this.world.cancel(this.heartbeatTimer);
    this.refreshTimer = this.heartbeatTimer = null;
    this.listeners.clear();
  }

  pause(): void {
    this.disconnect();
    this.update({ state: "paused" });
  }

  resume(): void {
    if (this.snapshot.state !== "paused") return;
    this.update({ state: "disconnected" });
    this.connect();
  }

  /** Closes the stream while the page is hidden: browsers allow only a few connections to one server, for all tabs together. */
  rest(): void {
    if (this.snapshot.state !== "paused") this.disconnect();
  }

  /** Reopens at once: the page was hidden or the network came back. */
  reconnect(): void {
    if (this.snapshot.state === "paused") return;
    this.disconnect();
    this.retryMs = FIRST_RETRY_MS;
    this.connect();
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly getSnapshot = (): LiveSnapshot => this.snapshot;

  private connect(): void {
    const query = new URLSearchParams();
    if (this.run !== null) query.set("run", this.run);
    if (this.seen !== null) query.set("after", String(this.seen));
    const stream = this.world.open(`/api/v1/live?${query.toString()}`);
    this.stream = stream;
    const ifCurrent =
      (action: (event: { data?: string; lastEventId?: string }) => void) =>
      (event: { data?: string; lastEventId?: string }) => {
        if (this.stream === stream) action(event);
      };
    stream.addEventListener(
      "hello",
      ifCurrent((event) => this.onHello(event.lastEventId)),
    );
    stream.addEventListener(
      "change",
      ifCurrent((event) => this.onChange(event.data ?? "{}")),
    );
    stream.addEventListener(
      "error",
      ifCurrent(() => this.onError()),
    );
  }

  private onHello(id: string | undefined): void {
    this.retryMs = FIRST_RETRY_MS;
    if (id) this.seen = Number(id);
    this.update({ state: "live" });
    // Query again to see what happened in the meantime.
    this.refreshSoon();
  }

  private onChange(data: string): void {
    const change = parsed(data);
    if (change === null) return;
    if (typeof change.version === "number") this.seen = change.version;
    if (typeof change.step === "number" && change.step > (this.snapshot.step ?? -Infinity)) {
      this.snapshot = { ...this.snapshot, step: change.step };
    }
    if (typeof change.latest_ns === "number" && change.latest_ns > this.snapshot.latestNs) {
      this.snapshot = { ...this.snapshot, latestNs: change.latest_ns };
    }
    this.refreshSoon();
  }

  private onError(): void {
    // Browsers retry automatically only after some failures; closing and reopening handles all of them the same way.
    this.disconnect();
    this.update({ state: "disconnected" });
    this.retryTimer = this.world.later(() => {
      this.retryTimer = null;
      this.connect();
    }, this.retryMs);
    this.retryMs = Math.min(LONGEST_RETRY_MS, this.retryMs * 2);
  }

  private disconnect(): void {
    this.stream?.close();
    this.stream = null;
    if (this.retryTimer !== null) this.world.cancel(this.retryTimer);
    this.retryTimer = null;
  }

  private refreshSoon(): void {
    if (this.refreshTimer !== null) return;
    const wait = Math.max(0, this.lastRefresh + REFRESH_MS - this.world.now());
    this.refreshTimer = this.world.later(() => {
      this.refreshTimer = null;
      this.lastRefresh = this.world.now();
      this.update({ version: this.snapshot.version + 1 });
    }, wait);
  }

  private beat(): void {
    this.lastHeartbeat = this.world.now();
    this.heartbeatTimer = this.world.later(() => {
      const isAwake = this.world.now() - this.lastHeartbeat < ASLEEP_MS;
      if (!isAwake && this.stream !== null) this.reconnect();
      this.beat();
    }, HEARTBEAT_MS);
  }

  private update(change: Partial<LiveSnapshot>): void {
    this.snapshot = { ...this.snapshot, ...change };
    for (const listener of this.listeners) listener();
  }
}

export interface Live extends LiveSnapshot {
  pause: () => void;
  resume: () => void;
}

export const LiveContext = createContext<Live>({
  state: "disconnected",
  version: 0,
  step: null,
  latestNs: 0,
  pause: () => undefined,
  resume: () => undefined,
});

/** The live state of the visible run; `version` is incremented at most once per second when there is new data. */
export function useLive(): Live {
  return useContext(LiveContext);
}
