import { describe, expect, test } from "vitest";
import { LiveConnection, REFRESH_MS, type Stream, type Surroundings } from "./live";

type Listener = (event: { data?: string; lastEventId?: string }) => void;

class FakeStream implements Stream {
  readonly listeners = new Map<string, Listener>();
  isClosed = false;
  constructor(readonly address: string) {}
  addEventListener(type: string, listener: Listener): void {
    this.listeners.set(type, listener);
  }
  close(): void {
    this.isClosed = true;
  }
  send(type: string, event: { data?: string; lastEventId?: string } = {}): void {
    this.listeners.get(type)?.(event);
  }
}

/** An environment whose clock only the test advances. */
class World implements Surroundings {
  time = 0;
  readonly streams: FakeStream[] = [];
  private timers: { at: number; callback: () => void; id: number }[] = [];
  private nextId = 1;
  open(address: string): Stream {
    const stream = new FakeStream(address);
    this.streams.push(stream);
    return stream;
  }
  now(): number {
    return this.time;
  }
  later(callback: () => void, ms: number): number {
    this.timers.push({ at: this.time + ms, callback, id: this.nextId });
    return this.nextId++;
  }
  cancel(id: number): void {
    this.timers = this.timers.filter((timer) => timer.id !== id);
  }
  pass(ms: number): void {
    const until = this.time + ms;
    for (;;) {
      const due = this.timers.filter((timer) => timer.at <= until).sort((one, other) => one.at - other.at)[0];
      if (due === undefined) break;
      this.timers = this.timers.filter((timer) => timer !== due);
      this.time = Math.max(this.time, due.at);
      due.callback();
    }
    this.time = until;
  }
  /** The machine sleeps: time passes, nothing runs until it wakes. */
  sleep(ms: number): void {
    this.time += ms;
    this.pass(0);
  }
  get stream(): FakeStream {
    return this.streams.at(-1)!;
  }
}

function started(run: string | null = null): { world: World; connection: LiveConnection } {
  const world = new World();
  const connection = new LiveConnection(run, world);
  connection.start();
  return { world, connection };
}

test("a connection is live once the server has said hello", () => {
  const { world, connection } = started("a run");
  expect(connection.getSnapshot().state).toBe("disconnected");
  expect(world.stream.address).toBe("/api/v1/live?run=a+run");
  world.stream.send("hello", { lastEventId: "7" });
  expect(connection.getSnapshot().state).toBe("live");
});

test("many changes increment the version at most once per second, and none is lost", () => {
  const { world, connection } = started();
  world.stream.send("hello", { lastEventId: "0" });
  world.pass(0);
  const before = connection.getSnapshot().version;
  for (let change = 0; change < 50; change += 1) {
    world.stream.send("change", { data: JSON.stringify({ version: change + 1, step: change, latest_ns: change }) });
    world.pass(10);
  }
  expect(connection.getSnapshot().version - before).toBeLessThanOrEqual(1);
  world.pass(REFRESH_MS);
  expect(connection.getSnapshot().version).toBe(before + 1);
  expect(connection.getSnapshot()).toMatchObject({ step: 49, latestNs: 49 });
});

test("a lost connection is reopened with growing pauses, and resumes where it left off", () => {
  const { world, connection } = started();
  world.stream.send("hello", { lastEventId: "3" });
  world.stream.send("change", { data: '{"version": 9}' });
  const gaps: number[] = [];
  for (let attempt = 0; attempt < 6; attempt += 1) {
    const failed = world.stream;
    const failedAt = world.time;
    failed.send("error");
    expect(failed.isClosed).toBe(true);
    expect(connection.getSnapshot().state).toBe("disconnected");
    while (world.stream === failed) world.pass(100);
    gaps.push(world.time - failedAt);
  }
  expect(gaps).toEqual([...gaps].sort((one, other) => one - other));
  expect(Math.max(...gaps)).toBeLessThanOrEqual(8000);
  expect(world.stream.address).toContain("after=9");
  const before = connection.getSnapshot().version;
  world.stream.send("hello", { lastEventId: "9" });
  world.pass(REFRESH_MS);
  expect(connection.getSnapshot().state).toBe("live");
  expect(connection.getSnapshot().version).toBe(before + 1);
});

test("a restarted server counts from zero, and is followed from there", () => {
  const { world } = started();
  world.stream.send("hello", { lastEventId: "500" });
  world.stream.send("error");
  world.pass(1000);
  world.stream.send("hello", { lastEventId: "2" });
  world.stream.send("error");
  world.pass(1000);
  expect(world.stream.address).toContain("after=2");
});

test("paused means no connection, until it is resumed", () => {
  const { world, connection } = started();
  world.stream.send("hello");
  connection.pause();
  expect(world.stream.isClosed).toBe(true);
  connection.reconnect();
  world.pass(60_000);
  expect(world.streams).toHaveLength(1);
  expect(connection.getSnapshot().state).toBe("paused");
  connection.resume();
  expect(world.streams).toHaveLength(2);
});

test("a connection that starts paused opens nothing until it is resumed", () => {
  const world = new World();
  const connection = new LiveConnection("r1", world);
  connection.start(true);
  expect(world.streams).toHaveLength(0);
  expect(connection.getSnapshot().state).toBe("paused");
  connection.resume();
  expect(world.streams).toHaveLength(1);
});

test("after the machine slept, the connection is reopened", () => {
  const { world } = started();
  world.stream.send("hello");
  world.pass(30_000);
  expect(world.streams).toHaveLength(1);
  world.sleep(3_600_000);
  expect(world.streams).toHaveLength(2);
  expect(world.streams[0]!.isClosed).toBe(true);
});

describe("invalid messages are ignored", () => {
  test.each(["", "no json", "null", "[]", '{"version": "x"}'])("%j", (data) => {
    const { world, connection } = started();
    world.stream.send("hello");
    expect(() => world.stream.send("change", { data })).not.toThrow();
    expect(connection.getSnapshot().state).toBe("live");
  });
});

test("messages of a replaced stream are ignored", () => {
  const { world, connection } = started();
  const old = world.stream;
  old.send("hello");
  connection.reconnect();
  world.stream.send("hello");
  old.send("error");
  expect(connection.getSnapshot().state).toBe("live");
});

test("a stopped connection leaves nothing running", () => {
  const { world, connection } = started();
  world.stream.send("hello");
  connection.stop();
  world.pass(600_000);
  expect(world.streams).toHaveLength(1);
  expect(world.stream.isClosed).toBe(true);
});
