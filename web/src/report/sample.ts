// A small report for tests: three spans on two lanes, one of them open.
import type { ReportDocument, StringColumn } from "../api";

export const ORIGIN = 1_800_000_000e9;

const lane = (lane_id: number, role: string) => ({
  lane_id,
  lane: null,
  process_id: role,
  role,
  rank: 0,
  host: "node",
  spans: 1,
  open_spans: 0,
  first_ns: ORIGIN,
  last_ns: ORIGIN,
});

/** Returns strings as a column; equal ones are stored once. */
export function textColumn(texts: readonly (string | null)[]): StringColumn {
  const values = [...new Set(texts.filter((text) => text !== null))];
  return { values, rows: texts.map((text) => (text === null ? -1 : values.indexOf(text))) };
}

/** Returns a report, with the given parts replaced. */
export function sampleReport(parts: Partial<ReportDocument> = {}): ReportDocument {
  return {
    version: 4,
    generated_s: 1_800_000_100,
    generator: "rl-insight",
    scope: "step 3",
    step: 3,
    origin_ns: ORIGIN,
    start_ns: ORIGIN,
    end_ns: ORIGIN + 10e9,
    run: {
      run_id: "run",
      project: "p",
      experiment_name: "e",
      start_ns: ORIGIN,
      end_ns: ORIGIN + 10e9,
      first_step: 3,
      last_step: 3,
      processes: 2,
      lanes: 2,
      spans: 2,
      open_spans: 1,
      events: 0,
      logs: 0,
      series: 0,
      samples: 0,
      histograms: 0,
      sessions: 0,
      findings: 0,
      lost: 0,
    },
    processes: [],
    losses: [],
    lanes: [lane(1, "trainer"), lane(2, "rollout")],
    steps: [],
    breakdowns: {},
    idle: [],
    first_idle_step: 0,
    last_idle_step: 1,
    marks: [],
    series: [],
    step_metrics: [],
    hotspots: [],
    hotspots_by: {},
    flame: { spans: 0, left_out: 0, roots: [] },
    timelines: [],
    open_work: [],
    pace: {
      last_ns: null,
      usual_ns: null,
      change: null,
      severity: null,
      running: null,
      slow: [],
      errors: { spans: 0, errors: 0, share: null, severity: null },
    },
    sessions_in_flight: [],
    spans: {
      total: 3,
      texts_left_out: 0,
      span_id: ["0000000000000001", "0000000000000002", "0000000000000003"],
      trace_id: textColumn(["a".repeat(32), "a".repeat(32), "a".repeat(32)]),
      parent_id: textColumn([null, "0000000000000001", "0000000000000001"]),
      name: textColumn(["step", "update", "generate"]),
      start_ns: [0, 2e9, 4e9],
      duration_ns: [8e9, 1e9, -1],
      segment: textColumn(["duration", "duration", "duration"]),
      status: textColumn(["ok", "error", "open"]),
      error: textColumn([null, "ValueError", null]),
      step: [3, 3, null],
      session_id: textColumn([null, null, "s1"]),
      attributes: textColumn([null, '{"Model":"Large"}', "no object"]),
      unreadable: [1],
      lane_id: [1, 1, 2],
      depth: [0, 1, 0],
    },
    sessions: { total: 0, sessions: [], durations: [], steps: [], counted_steps: {} },
    metrics: [],
    lines: [],
    usage: { states: [], steps: [] },
    gpus_now: { time_ns: 0, max_age_s: 30, gpus: 0, stale: 0, quantities: [], metric: null, factor: 1, devices: [] },
    logs: [],
    log_texts: textColumn([]),
    events: [],
    event_texts: textColumn([]),
    findings: [],
    ...parts,
  };
}
