// A small report for tests: three spans on two lanes, one of them open.
import type { ReportDocument } from "./document";

export const ORIGIN = 1_800_000_000e9;

const lane = (lane_id: number, role: string) => ({
  lane_id, lane: null, process_id: role, role, rank: 0, host: "node", spans: 1, open_spans: 0, first_ns: ORIGIN, last_ns: ORIGIN,
});

/** Returns a report; what is given replaces its parts. */
export function sampleReport(parts: Partial<ReportDocument> = {}): ReportDocument {
  return {
    version: 2, generated_s: 1_800_000_100, generator: "rl-insight", scope: "step 3", step: 3,
    origin_ns: ORIGIN, start_ns: ORIGIN, end_ns: ORIGIN + 10e9,
    run: {
      run_id: "run", project: "p", experiment_name: "e", start_ns: ORIGIN, end_ns: ORIGIN + 10e9, first_step: 3, last_step: 3, processes: 2,
      lanes: 2, spans: 2, open_spans: 1, events: 0, logs: 0, series: 0, samples: 0, histograms: 0, sessions: 0, findings: 0, lost: 0,
    },
    processes: [], losses: [], lanes: [lane(1, "trainer"), lane(2, "rollout")], steps: [], step_times: [], step_metrics: [],
    hotspots: [], hotspots_by: {}, flame: { spans: 0, left_out: 0, roots: [] }, timeline: null, open_work: [], sessions_in_flight: [],
    spans: {
      total: 3, names: ["step", "update", "generate"], segments: ["duration"], statuses: ["ok", "error", "open"], sessions: ["s1"],
      texts: ['{"Model":"Large"}', "no object"], texts_left_out: 0, name: [0, 1, 2], segment: [0, 0, 0], status: [0, 1, 2], session: [-1, -1, 0], text: [-1, 0, 1],
      lane_id: [1, 1, 2], depth: [0, 1, 0], start_ns: [0, 2e9, 4e9], duration_ns: [8e9, 1e9, -1], step: [3, 3, null],
      span_id: ["0000000000000001", "0000000000000002", "0000000000000003"], parent: [-1, 0, 0], errors: { 1: "ValueError" },
    },
    sessions: { total: 0, sessions: [], steps: [] },
    metrics: [], lines: [], usage: { states: [], steps: [] }, logs: [], events: [], findings: [],
    ...parts,
  };
}
