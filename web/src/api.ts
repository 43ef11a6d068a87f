// Everything the page asks the server, in one place. Names and types are those of the API; see /docs on the server.
import type {
  Event,
  Finding,
  Flame,
  HeatMap,
  Hotspot,
  JsonLine,
  Lane,
  LogLine,
  LossCount,
  Metric,
  OpenWork,
  ProcessHealth,
  RunInfo,
  RunSummary,
  SessionInFlight,
  SessionPage,
  Span,
  SpanDetail,
  SqlResult,
  Step,
  StepMetric,
  StepTime,
  Timeline,
  UsageByState,
} from "./generated/api";

export type * from "./generated/api";

type Value = string | number | bigint | boolean | readonly (string | number)[] | null | undefined;
export type Parameters = Record<string, Value>;

/** An answer that is not the one hoped for; the message is the server's own sentence where there is one. */
export class ApiError extends Error {
  constructor(
    message: string,
    /** The HTTP status; 0 when the server was not reached. */
    readonly status: number,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

/** Returns a query string; missing values are left out, lists repeat their key, large numbers are written in full. */
export function queryString(parameters: Parameters): string {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value === null || value === undefined) continue;
    for (const one of Array.isArray(value) ? (value as readonly (string | number)[]) : [value]) {
      query.append(key, text(one as string | number | bigint | boolean));
    }
  }
  return query.toString();
}

function text(value: string | number | bigint | boolean): string {
  // Nanoseconds since 1970 are past 2^53: as a BigInt they are written without an exponent.
  return typeof value === "number" && Number.isInteger(value) ? BigInt(value).toString() : String(value);
}

async function answered(path: string, init: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers: { Accept: "application/json", ...init.headers } });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", 0);
  }
  if (!response.ok) throw new ApiError(await sentence(response), response.status);
  return response;
}

async function ask<T>(path: string, init: RequestInit): Promise<T> {
  return (await (await answered(path, init)).json()) as T;
}

async function sentence(response: Response): Promise<string> {
  try {
    const body = (await response.json()) as { error?: unknown };
    if (typeof body.error === "string") return body.error;
  } catch {
    // Not JSON: a proxy in between, perhaps.
  }
  return `The server answered ${response.status} ${response.statusText}.`;
}

/** Where answers come from: the server, or the data that stands inside a report. */
export interface DataSource {
  get<T>(route: string, parameters: Parameters, signal: AbortSignal | undefined): Promise<T>;
}

const server: DataSource = {
  get: (route, parameters, signal) => {
    const query = queryString(parameters);
    return ask(`/api/v1/${route}${query === "" ? "" : `?${query}`}`, signal ? { signal } : {});
  },
};

let source = server;

/** Has everything answered by another source than the server; called before the first question. */
export function answerFrom(other: DataSource): void {
  source = other;
}

function get<T>(route: string, parameters: Parameters, signal?: AbortSignal): Promise<T> {
  return source.get<T>(route, parameters, signal);
}

/** The run that a request is about; without one, the latest. */
export interface OfRun {
  run?: string | undefined;
}
export interface Window {
  start_ns?: number | bigint | undefined;
  end_ns?: number | bigint | undefined;
}
export interface HotspotQuery extends OfRun, Window {
  step?: number | undefined;
  last_steps?: number | undefined;
  lane?: readonly number[] | undefined;
  segment?: string | undefined;
  group_by?: "name" | "role" | "lane" | "name_role" | "name_lane" | undefined;
  limit?: number | undefined;
}
export interface SpanQuery extends OfRun, Window {
  name?: string | undefined;
  name_contains?: string | undefined;
  text?: string | undefined;
  lane?: readonly number[] | undefined;
  role?: string | undefined;
  status?: "ok" | "error" | "cancelled" | "open" | undefined;
  step?: number | undefined;
  session_id?: string | undefined;
  trace_id?: string | undefined;
  longer_than_ns?: number | undefined;
  order?: "newest" | "oldest" | "longest" | undefined;
  limit?: number | undefined;
}
/** A part of a run for Perfetto; conditions add up. */
export interface TraceQuery extends OfRun, Window {
  step?: number | undefined;
  session_id?: string | undefined;
  /** The name of a lane. */
  lane?: string | undefined;
}
export interface LogQuery extends OfRun, Window {
  level?: number | undefined;
  text?: string | undefined;
  span_id?: string | undefined;
  process_id?: string | undefined;
  session_id?: string | undefined;
  step?: number | undefined;
  lane?: readonly number[] | undefined;
  newest_first?: boolean | undefined;
  limit?: number | undefined;
}
export interface SessionQuery extends OfRun {
  session_id?: string | undefined;
  task_id?: string | undefined;
  status?: readonly string[] | undefined;
  role?: string | undefined;
  rank?: number | undefined;
  first_step?: number | undefined;
  last_step?: number | undefined;
  longer_than_s?: number | undefined;
  /** Only sessions that have this phase. */
  phase?: string | undefined;
  text?: string | undefined;
  /** `phases`: without payloads, counters and rollout statistics; `brief`: without the phases too, but for their seconds. */
  detail?: "full" | "phases" | "brief" | undefined;
  order?: string | undefined;
  descending?: boolean | undefined;
  limit?: number | undefined;
  offset?: number | undefined;
}
export interface MetricQuery extends OfRun {
  metric: string;
  /** Nanoseconds, or steps on that axis. */
  start_ns: number | bigint;
  end_ns: number | bigint;
  width: number | bigint;
  match?: readonly string[] | undefined;
  group_by?: readonly string[] | undefined;
  axis?: "time" | "step" | undefined;
}
export interface RangeQuery extends MetricQuery {
  aggregation?: "avg" | "sum" | "min" | "max" | "last" | "count" | "rate" | "increase" | undefined;
}
export interface QuantileQuery extends MetricQuery {
  share?: readonly number[] | undefined;
}
export interface HeatMapQuery extends MetricQuery {
  rows?: number | undefined;
}
export interface TimelineQuery extends OfRun {
  start_ns: number | bigint;
  end_ns: number | bigint;
  pixels: number;
  lane?: readonly number[] | undefined;
  max_blocks?: number | undefined;
  /** Times in the answer count from here. */
  origin_ns?: number | bigint | undefined;
  /** Whether to say each block's training step, too. */
  steps?: boolean | undefined;
}
export interface StepsQuery extends OfRun {
  first: number;
  last: number;
}

/** Interfaces have no index signature; their fields are plain values all the same. */
function plain(query: object): Parameters {
  return query as Parameters;
}

export const api = {
  runs: (signal?: AbortSignal) => get<RunInfo[]>("runs", {}, signal),
  summary: (query: OfRun, signal?: AbortSignal) => get<RunSummary>("summary", plain(query), signal),
  processes: (query: OfRun, signal?: AbortSignal) => get<ProcessHealth[]>("processes", plain(query), signal),
  losses: (query: OfRun, signal?: AbortSignal) => get<LossCount[]>("losses", plain(query), signal),
  lanes: (query: OfRun, signal?: AbortSignal) => get<Lane[]>("lanes", plain(query), signal),
  timeline: (query: TimelineQuery, signal?: AbortSignal) => get<Timeline>("timeline", plain(query), signal),
  span: (query: OfRun & { span_id: string; process_id?: string | undefined }, signal?: AbortSignal) =>
    get<SpanDetail>("span", plain(query), signal),
  spans: (query: SpanQuery, signal?: AbortSignal) => get<Span[]>("spans", plain(query), signal),
  openWork: (query: OfRun, signal?: AbortSignal) => get<OpenWork[]>("open/work", plain(query), signal),
  openSpans: (query: OfRun & { limit?: number }, signal?: AbortSignal) =>
    get<Span[]>("open/spans", plain(query), signal),
  hotspots: (query: HotspotQuery, signal?: AbortSignal) => get<Hotspot[]>("hotspots", plain(query), signal),
  flame: (query: Omit<HotspotQuery, "group_by" | "limit">, signal?: AbortSignal) => get<Flame>("hotspots/flame", plain(query), signal),
  steps: (query: OfRun & { limit?: number }, signal?: AbortSignal) => get<Step[]>("steps", plain(query), signal),
  stepTimes: (query: StepsQuery & { states_only?: boolean }, signal?: AbortSignal) =>
    get<StepTime[]>("steps/times", plain(query), signal),
  stepMetrics: (query: StepsQuery, signal?: AbortSignal) => get<StepMetric[]>("steps/metrics", plain(query), signal),
  metrics: (query: OfRun, signal?: AbortSignal) => get<Metric[]>("metrics", plain(query), signal),
  labelValues: (query: OfRun & { label: string; metric?: string | undefined }, signal?: AbortSignal) =>
    get<string[]>("metrics/labels", plain(query), signal),
  metricRange: (query: RangeQuery, signal?: AbortSignal) => get<JsonLine[]>("metrics/range", plain(query), signal),
  metricQuantiles: (query: QuantileQuery, signal?: AbortSignal) =>
    get<JsonLine[]>("metrics/quantiles", plain(query), signal),
  metricHeatMap: (query: HeatMapQuery, signal?: AbortSignal) => get<HeatMap>("metrics/heatmap", plain(query), signal),
  logs: (query: LogQuery, signal?: AbortSignal) => get<LogLine[]>("logs", plain(query), signal),
  events: (query: Omit<LogQuery, "level">, signal?: AbortSignal) => get<Event[]>("events", plain(query), signal),
  sessions: (query: SessionQuery, signal?: AbortSignal) => get<SessionPage>("sessions", plain(query), signal),
  sessionsInFlight: (query: OfRun & { limit?: number }, signal?: AbortSignal) =>
    get<SessionInFlight[]>("sessions/in_flight", plain(query), signal),
  usageByState: (query: OfRun & Window, signal?: AbortSignal) => get<UsageByState>("hardware/by_state", plain(query), signal),
  findings: (query: OfRun, signal?: AbortSignal) => get<Finding[]>("findings", plain(query), signal),
  deleteRun: (run: string) => ask<{ deleted: string }>(`/api/v1/runs?${queryString({ run })}`, { method: "DELETE" }),
  sql: (query: OfRun & { sql: string; max_rows?: number }, signal?: AbortSignal) => {
    const { run, ...body } = query;
    const init: RequestInit = { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
    return ask<SqlResult>(`/api/v1/sql?${queryString({ run })}`, signal ? { ...init, signal } : init);
  },
};

/** Loads a trace, which is too large to be taken apart here. */
export async function loadTrace(query: TraceQuery): Promise<Blob> {
  return (await answered(`/api/v1/trace?${queryString(plain(query))}`, {})).blob();
}

/** A value of a chart line as a number; JSON carries NaN and infinities as text. */
export function lineValue(value: number | string | null | undefined): number | null {
  return value === null || value === undefined ? null : Number(value);
}
