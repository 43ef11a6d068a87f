// Answers the page's queries from the data inside a report, in the format of the server's API.
import {
  ApiError,
  type Breakdown,
  type DataSource,
  type QueryOf,
  type HeatMapQuery,
  type HotspotQuery,
  type LogQuery,
  type Parameters,
  type QuantileQuery,
  type RangeQuery,
  type ReportDocument,
  type SessionQuery,
  type SpanQuery,
  type SpanSeries,
  type StepsQuery,
  type TimelineQuery,
} from "../api";
import { Metrics } from "./metrics";
import { searchRecords } from "./records";
import { Sessions } from "./sessions";
import { Spans } from "./spans";
import { blocksIn } from "./timeline";

const NO_BREAKDOWN: Breakdown = { role: "", roles: [], steps: [] };
const MAX_BLOCKS = 40_000;
const NOT_HERE = "Not available in a report: open the run in the live page.";

type Answer = (parameters: Parameters) => unknown;

/** Returns a source for the data inside a report. */
export function sourceOf(document: ReportDocument): DataSource {
  const answers = answersOf(document);
  return {
    get: <T>(route: string, parameters: Parameters): Promise<T> => {
      const answer = answers[route];
      if (answer === undefined) return Promise.reject(new ApiError(NOT_HERE, 404));
      return new Promise((resolve) => resolve(answer(parameters) as T));
    },
  };
}

function answersOf(document: ReportDocument): Readonly<Record<string, Answer>> {
  const spans = new Spans(document);
  const sessions = new Sessions(document.sessions);
  const metrics = new Metrics(document.metrics, document.lines);
  const ofSteps =
    <T extends { step: number }>(rows: readonly T[]) =>
    (parameters: Parameters) => {
      const { first, last } = as<StepsQuery>(parameters);
      return rows.filter((row) => row.step >= first && row.step <= last);
    };
  return {
    summary: () => document.run,
    processes: () => document.processes,
    losses: () => document.losses,
    lanes: () => document.lanes,
    timeline: (parameters) => {
      const query = as<TimelineQuery>(parameters);
      const origin = Number(query.origin_ns ?? 0);
      // The page's origin is a whole second, like the report's, but the two may differ.
      const shift = document.origin_ns - origin;
      const found = blocksIn(document.timelines, {
        start: Number(BigInt(query.start_ns) - BigInt(document.origin_ns)),
        end: Number(BigInt(query.end_ns) - BigInt(document.origin_ns)),
        pixels: query.pixels ?? 1000,
        maxBlocks: query.max_blocks ?? MAX_BLOCKS,
        lanes: query.lane === undefined ? null : new Set(query.lane),
      });
      if (shift === 0) return found;
      const moved = (times: readonly number[]) => times.map((time) => time + shift);
      return {
        ...found,
        start_ns: found.start_ns + shift,
        end_ns: found.end_ns + shift,
        block_start_ns: moved(found.block_start_ns),
        block_end_ns: moved(found.block_end_ns),
      };
    },
    span: (parameters) => spans.detail(as<QueryOf<"span">>(parameters), document.logs, document.events),
    spans: (parameters) => spans.search(as<SpanQuery>(parameters)),
    "open/work": () => document.open_work,
    hotspots: (parameters) => {
      const by = as<HotspotQuery>(parameters).group_by ?? "name";
      return by === "name" ? document.hotspots : (document.hotspots_by[by] ?? []);
    },
    "hotspots/flame": () => document.flame,
    steps: (parameters) => {
      const { limit = 200, last = Infinity } = as<QueryOf<"steps">>(parameters);
      return document.steps.filter((one) => one.step <= last).slice(-limit);
    },
    "steps/breakdown": (parameters) => {
      const { role, first, last } = as<QueryOf<"steps/breakdown">>(parameters);
      const found = document.breakdowns[role ?? ""] ?? NO_BREAKDOWN;
      return { ...found, steps: found.steps.filter((one) => one.step >= first && one.step <= last) };
    },
    "steps/idle": (parameters) => {
      const { first, last } = as<QueryOf<"steps/idle">>(parameters);
      if (first !== document.first_idle_step || last !== document.last_idle_step) throw new ApiError(NOT_HERE, 404);
      return document.idle;
    },
    "steps/pace": () => document.pace,
    "steps/metrics": ofSteps(document.step_metrics),
    metrics: () => document.metrics,
    "metrics/labels": (parameters) =>
      metrics.labelValues(String(parameters["label"]), as<{ metric?: string }>(parameters).metric),
    "metrics/range": (parameters) => metrics.range(as<RangeQuery>(parameters)),
    "metrics/quantiles": (parameters) => metrics.quantiles(as<QuantileQuery>(parameters)),
    "metrics/heatmap": (parameters) => metrics.heatMap(as<HeatMapQuery>(parameters)),
    logs: (parameters) =>
      searchRecords(document.logs, document.log_texts, (line) => line.message, as<LogQuery>(parameters)),
    events: (parameters) =>
      searchRecords(document.events, document.event_texts, (event) => event.name, as<LogQuery>(parameters)),
    marks: () => document.marks,
    "spans/series": (parameters) => seriesOf(document, as<QueryOf<"spans/series">>(parameters)),
    sessions: (parameters) => sessions.page(as<SessionQuery>(parameters)),
    "sessions/durations": (parameters) => sessions.durations(as<QueryOf<"sessions/durations">>(parameters)),
    "sessions/steps": (parameters) => sessions.steps(as<QueryOf<"sessions/steps">>(parameters)),
    // Reports have transcripts only if requested.
    "sessions/transcript": (parameters) => document.transcripts?.[String(parameters["session_id"])] ?? null,
    "sessions/in_flight": (parameters) => document.sessions_in_flight.slice(0, Number(parameters["limit"] ?? 1000)),
    "hardware/now": () => document.gpus_now,
    "hardware/by_state": () => document.usage,
    findings: () => document.findings,
  };
}

/** The queries of routes are plain objects; each route has its own type. */
// eslint-disable-next-line @typescript-eslint/no-unnecessary-type-parameters
function as<T>(parameters: Parameters): T {
  return parameters as unknown as T;
}

/** The precomputed series; none for a name with little time. */
function seriesOf({ series }: ReportDocument, { name, axis = "step" }: QueryOf<"spans/series">): SpanSeries {
  const found = series.find((one) => one.name === name && one.axis === axis);
  const nothing = { width: 1, count: 0, errors: 0, p50_ns: null, p95_ns: null, p99_ns: null, max_ns: null };
  return found ?? { name, axis, ...nothing, intervals: [], points: [] };
}
