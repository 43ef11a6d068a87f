import { expect, test } from "vitest";
import { type Parameters, type Session, type SessionPage, type Span, type SpanDetail, answerFrom, api } from "../api";
import { readDocument } from "./document";
import { ORIGIN, sampleReport, textColumn } from "./sample";
import { sourceOf } from "./source";

function ask<T>(report: ReturnType<typeof sampleReport>, route: string, parameters: object = {}): Promise<T> {
  return sourceOf(report).get<T>(route, parameters as Parameters, undefined);
}

test("compressed data is read back, whatever is in it", async () => {
  const report = sampleReport({ scope: "</script> 🙂" });
  const stream = new Blob([JSON.stringify(report)]).stream().pipeThrough(new CompressionStream("gzip"));
  const packed = new Uint8Array(await new Response(stream).arrayBuffer());
  expect(await readDocument(btoa(String.fromCharCode(...packed)))).toEqual(report);
});

test.each([
  [{ text: "UPD" }, ["2"]],
  [{ text: "large" }, ["2"]],
  [{ name: "step" }, ["1"]],
  [{ name_contains: "E" }, ["3", "2", "1"]],
  [{ status: "open" }, ["3"]],
  [{ session_id: "s1" }, ["3"]],
  [{ step: 3, order: "oldest" }, ["1", "2"]],
  [{ order: "longest", limit: 2 }, ["1", "2"]],
  [{ longer_than_ns: 2e9 }, ["1"]],
  [{ role: "rollout" }, ["3"]],
  [{ lane: [1] }, ["2", "1"]],
  [{ start_ns: ORIGIN + 3e9 }, ["3"]],
  [{ end_ns: ORIGIN + 1e9 }, ["1"]],
  [{ trace_id: "A".repeat(32), status: "ok" }, ["1"]],
  [{ trace_id: "b".repeat(32) }, []],
  [{ attribute: "Model=Large" }, ["2"]],
  [{ attribute: "Other=undefined" }, []],
])("spans are searched by %j", async (query, ids) => {
  const found = await ask<Span[]>(sampleReport(), "spans", query);
  expect(found.map((span) => span.span_id.replace(/^0+/, ""))).toEqual(ids);
});

test("a span includes its relatives, events and logs", async () => {
  const event = {
    time_ns: ORIGIN,
    name: "e",
    span_id: "0000000000000002",
    step: null,
    session_id: null,
    attributes: {},
    process_id: "trainer",
    role: "trainer",
    rank: 0,
    lane: null,
    lane_id: 0,
  };
  const found = await ask<SpanDetail>(sampleReport({ events: [event, { ...event, span_id: null }] }), "span", {
    span_id: "0000000000000002",
  });
  expect(found.span).toMatchObject({
    name: "update",
    status: "error",
    error: "ValueError",
    attributes: { Model: "Large" },
    role: "trainer",
    start_ns: ORIGIN + 2e9,
  });
  expect(found.parents.map((span) => span.name)).toEqual(["step"]);
  expect(found.events).toEqual([event]);
  const parent = await ask<SpanDetail>(sampleReport(), "span", { span_id: "0000000000000001" });
  expect(parent.children.map((span) => [span.name, span.duration_ns, span.attributes])).toEqual([
    ["update", 1e9, { Model: "Large" }],
    ["generate", null, { unreadable: "no object" }],
  ]);
});

test("data that a report lacks is an error message", async () => {
  await expect(ask(sampleReport(), "span", { span_id: "9" })).rejects.toThrow("There is no span 9 in this report");
  await expect(ask(sampleReport(), "sql")).rejects.toThrow("open the run in the live page");
  expect(await ask(sampleReport(), "steps/idle", { first: 0, last: 1 })).toEqual([]);
  const others = ask(sampleReport(), "steps/idle", { first: 1, last: 1 });
  await expect(others).rejects.toThrow("open the run in the live page");
});

const SESSIONS: Session[] = [
  {
    session_id: "a",
    task_id: "Sum",
    status: "accepted",
    step: 1,
    total_s: 2,
    turns: 4,
    group_id: "g",
    phases: { generate: [] },
  },
  { session_id: "b", status: "failed", reason: "Timeout", step: 2, total_s: 5 },
  { session_id: "c" },
];

test.each([
  [{ order: "total_s" }, ["b", "a", "c"]],
  [{ order: "total_s", descending: false }, ["a", "b", "c"]],
  [{ status: ["failed"] }, ["b"]],
  [{ status: ["pending"] }, ["c"]],
  [{ first_step: 2, order: "session_id", descending: false }, ["b", "c"]],
  [{ last_step: 1 }, ["a"]],
  [{ longer_than_s: 3 }, ["b"]],
  [{ phase: "generate" }, ["a"]],
  [{ task_id: "Sum" }, ["a"]],
  [{ text: "timeout" }, ["b"]],
  [{ session_id: "c" }, ["c"]],
  [{ least_turns: 3 }, ["a"]],
  [{ group_id: "g" }, ["a"]],
  [{ order: "total_s", offset: 1, limit: 1 }, ["a"]],
])("sessions are found by %j", async (query, ids) => {
  const found = await ask<SessionPage>(
    sampleReport({ sessions: { total: 3, sessions: SESSIONS, durations: [], steps: [], counted_steps: { c: 2 } } }),
    "sessions",
    query,
  );
  expect(found.sessions.map((session) => session.session_id)).toEqual(ids);
});

test("durations by step are those of all sessions, or computed from a complete list", async () => {
  const steps = [
    { step: 1, p50_s: 1, p95_s: 2, max_s: 3 },
    { step: 2, p50_s: 4, p95_s: 5, max_s: 6 },
  ];
  const sessions = { total: 3, sessions: SESSIONS, durations: [], steps, counted_steps: {} };
  const report = sampleReport({ sessions });
  expect(await ask(report, "sessions/steps", { run: "run" })).toEqual(steps);
  expect(await ask(report, "sessions/steps", { last_step: 1 })).toEqual(steps.slice(0, 1));
  const failed = { status: ["failed"] };
  expect(await ask(report, "sessions/steps", failed)).toEqual([{ step: 2, p50_s: 5, p95_s: 5, max_s: 5 }]);
  const sampled = sampleReport({ sessions: { ...sessions, total: 9 } });
  expect(await ask(sampled, "sessions/steps", { first_step: 2 })).toEqual(steps.slice(1));
  await expect(ask(sampled, "sessions/steps", failed)).rejects.toThrow("only the durations of all");
  expect(await ask(sampled, "sessions/durations", { run: "run" })).toBe(sampled.sessions.durations);
  await expect(ask(sampled, "sessions/durations", failed)).rejects.toThrow("only the durations of all");
});

test("logs keep to level, text and order", async () => {
  const line = (time_ns: number, level: number, message: string) => ({
    time_ns,
    level,
    logger: null,
    message,
    span_id: null,
    step: 1,
    session_id: null,
    attributes: {},
    process_id: "p",
    role: "r",
    rank: null,
    lane: null,
    lane_id: 0,
  });
  const report = sampleReport({
    logs: [
      line(3, 20, "Fine"),
      { ...line(2, 40, "bad news"), role: "trainer", rank: 3, lane_id: 7 },
      { ...line(1, 40, "worse"), rank: 3, lane_id: 8 },
    ],
    log_texts: textColumn(["{}", '{"node":"n1"}', null]),
  });
  const messages = async (query: object) =>
    (await ask<{ message: string }[]>(report, "logs", query)).map((one) => one.message);
  expect(await messages({ level: 30 })).toEqual(["bad news", "worse"]);
  expect(await messages({ newest_first: false, limit: 1 })).toEqual(["worse"]);
  expect(await messages({ text: "FINE" })).toEqual(["Fine"]);
  expect(await messages({ text: "N1" })).toEqual(["bad news"]);
  expect(await messages({ rank: 3 })).toEqual(["bad news", "worse"]);
  expect(await messages({ role: "trainer" })).toEqual(["bad news"]);
  expect(await messages({ lane: [8] })).toEqual(["worse"]);
});

/** What only a server can do. */
const SERVER_ONLY = new Set([
  ...["runs", "deleteRun", "status", "sql", "annotate", "muteRule", "askForStacks", "stacks", "mutedRules"],
  ...["stepComparison", "stepRanks", "criticalPath"],
  ...["compareRuns", "config", "changeNotes", "sessionGroups", "groupSteps", "staleness", "stepChanges"],
  ...["savedViews", "saveView", "pinMetric"],
]);

test("every query of the views has a response in a report", async () => {
  const asked: string[] = [];
  answerFrom({
    get: (route) => {
      asked.push(route);
      return new Promise(() => undefined);
    },
  });
  const calls = Object.entries(api).filter(([name]) => !SERVER_ONLY.has(name)) as [
    string,
    (query: object) => unknown,
  ][];
  for (const [, call] of calls) call({});
  expect(asked.length).toBe(calls.length);
  const query = {
    span_id: "1",
    metric: "m",
    label: "l",
    first: 0,
    last: 1,
    start_ns: 0,
    end_ns: 1,
    width: 1,
    pixels: 1,
  };
  for (const route of asked) await expect(ask(sampleReport(), route, query), route).resolves.toBeDefined();
});
