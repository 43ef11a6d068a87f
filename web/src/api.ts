// All requests to the server, in one place. Names and types are those of the API; see /docs on the server.
import type { RunNotes, SavedViews, SqlResult, paths } from "./generated/schema";

export type * from "./generated/schema";
export type { StoredSession as Session, StoredSpan as Span } from "./generated/schema";

type Value = string | number | bigint | boolean | readonly (string | number)[] | null | undefined;
export type Parameters = Record<string, Value>;

/** A failed request; the message is the server's, if it sent one. */
export class ApiError extends Error {
  constructor(
    message: string,
    /** The HTTP status; 0 if the server could not be reached. */
    readonly status: number,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

/** The message of anything that was thrown. */
export function errorText(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Returns a query string; missing values are omitted, lists repeat their key, large numbers are written in full. */
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
  // Nanoseconds since 1970 exceed 2^53: as a BigInt they are written without an exponent.
  return typeof value === "number" && Number.isInteger(value) ? BigInt(value).toString() : String(value);
}

async function answered(path: string, init: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { headers: { Accept: "application/json" }, ...init });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("Cannot reach the server.", 0);
  }
  if (!response.ok) throw new ApiError(await sentence(response), response.status);
  return response;
}

async function ask<T>(path: string, init: RequestInit): Promise<T> {
  return (await (await answered(path, init)).json()) as T;
}

function post<T = unknown>(route: string, parameters: Parameters, body?: object): Promise<T> {
  const headers = { Accept: "application/json", "Content-Type": "application/json" };
  const init = body === undefined ? { method: "POST" } : { method: "POST", headers, body: JSON.stringify(body) };
  return ask(`/api/v1/${route}?${queryString(parameters)}`, init);
}

async function sentence(response: Response): Promise<string> {
  try {
    const body = (await response.json()) as { error?: unknown };
    if (typeof body.error === "string") return body.error;
  } catch {
    // Not JSON: perhaps from a proxy.
  }
  return `The server responded with ${response.status} ${response.statusText}.`;
}

/** The source of data: the server, or the data embedded in a report. */
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

/** Replaces the server as the source; called before the first request. */
export function answerFrom(other: DataSource): void {
  source = other;
}

type Got<Path> = Path extends { get: infer Operation } ? Operation : never;
/** The routes of the query API, without their prefix. */
export type Route = {
  [Path in keyof paths]: Path extends `/api/v1/${infer Name}`
    ? paths[Path] extends { get: object }
      ? Name
      : never
    : never;
}[keyof paths];
type OperationOf<R extends Route> = Got<paths[`/api/v1/${R}`]>;
type ParametersOf<Operation> = Operation extends { parameters: { query?: infer Query } } ? NonNullable<Query> : never;

// A time may be a BigInt, lists are read-only, and optional values are undefined, never null.
type Widened<Key, V> = V extends null
  ? never
  : V extends number
    ? Key extends `${string}_ns` | "width"
      ? number | bigint
      : number
    : V extends (infer Item)[]
      ? readonly Item[]
      : V;
type Missing<T, Key extends keyof T> = T extends Record<Key, T[Key]> ? never : undefined;
/** The parameters of a route, from the OpenAPI document. */
export type QueryOf<R extends Route> = {
  [Key in keyof ParametersOf<OperationOf<R>>]:
    Widened<Key, ParametersOf<OperationOf<R>>[Key]> | Missing<ParametersOf<OperationOf<R>>, Key>;
};
export type HotspotQuery = QueryOf<"hotspots">;
export type LogQuery = QueryOf<"logs">;
export type RangeQuery = QueryOf<"metrics/range">;
export type QuantileQuery = QueryOf<"metrics/quantiles">;
export type HeatMapQuery = QueryOf<"metrics/heatmap">;
/** The parameters that all metric queries share. */
export type MetricQuery = Omit<QuantileQuery, "share">;
export type SessionQuery = QueryOf<"sessions">;
export type SessionConditions = Omit<SessionQuery, "run" | "limit" | "offset" | "order" | "descending" | "detail">;
export type SpanQuery = QueryOf<"spans">;
export type StepsQuery = QueryOf<"steps/metrics">;
export type TimelineQuery = QueryOf<"timeline">;
export type TraceQuery = QueryOf<"trace">;
/** The response type of a route. */
export type AnswerOf<R extends Route> =
  OperationOf<R> extends { responses: { 200: { content: { "application/json": infer Answer } } } } ? Answer : never;

/** Queries a route. */
export function get<R extends Route>(route: R, query: QueryOf<R>, signal?: AbortSignal): Promise<AnswerOf<R>> {
  // A query has no index signature, but its fields are plain values.
  return source.get<AnswerOf<R>>(route, query as Parameters, signal);
}

function asking<R extends Route>(route: R): (query: QueryOf<R>, signal?: AbortSignal) => Promise<AnswerOf<R>> {
  return (query, signal) => get(route, query, signal);
}

export const api = {
  runs: asking("runs"),
  lanes: asking("lanes"),
  timeline: asking("timeline"),
  span: asking("span"),
  spans: asking("spans"),
  hotspots: asking("hotspots"),
  steps: asking("steps"),
  stepBreakdown: asking("steps/breakdown"),
  stepRanks: asking("steps/ranks"),
  stepMetrics: asking("steps/metrics"),
  metrics: asking("metrics"),
  metricRange: asking("metrics/range"),
  metricQuantiles: asking("metrics/quantiles"),
  logs: asking("logs"),
  events: asking("events"),
  sessions: asking("sessions"),
  annotate: (run: string, timeNs: bigint, text: string) => post("annotations", { run, time_ns: timeNs, text }),
  muteRule: (run: string, rule: string, muted: boolean) => post("findings/mute", { run, rule, muted }),
  askForStacks: (run: string) => post("stacks", { run }),
  transcript: asking("sessions/transcript"),
  saveView: (name: string, address: string) => post<SavedViews>("views", {}, { name, address }),
  pinMetric: (metric: string, pinned: boolean) => post<SavedViews>("views/pins", { metric, pinned }),
  changeNotes: (run: string, change: Partial<RunNotes>) => post<RunNotes>("runs/notes", { run }, change),
  /** The part of the server's state that the page shows. */
  status: (signal?: AbortSignal) => source.get<{ sql_enabled: boolean }>("status", {}, signal),
  sql: (run: string, sql: string) => post<SqlResult>("sql", { run }, { sql, max_rows: 1000 }),
  deleteRun: (run: string) => ask<{ deleted: string }>(`/api/v1/runs?${queryString({ run })}`, { method: "DELETE" }),
};

/** Loads a trace, which is too large to be parsed here. */
export async function loadTrace(query: TraceQuery): Promise<Blob> {
  return (await answered(`/api/v1/trace?${queryString(query)}`, {})).blob();
}

/** A value of a chart line as a number; in JSON, NaN and infinities are strings. */
export function lineValue(value: number | string | null | undefined): number | null {
  return value === null || value === undefined ? null : Number(value);
}
