// The data inside a report: compressed JSON in Base64, which no name can break out of.
import type {
  Breakdown,
  Event,
  Finding,
  Flame,
  GpusNow,
  HeatMap,
  Hotspot,
  Line,
  Lane,
  LogLine,
  LossCount,
  Mark,
  Metric,
  OpenWork,
  ProcessHealth,
  RoleIdle,
  RunSummary,
  Session,
  SessionInFlight,
  SpanSeries,
  Step,
  StepMetric,
  Timeline,
  Transcript,
  UsageByState,
} from "../api";
import type { StepDuration } from "../reportFacts";

/** Spans in columns, by lane, depth and start; repeated values are stored once. Fields as in the Python model. */
export interface SpanColumns {
  total: number;
  names: string[];
  segments: string[];
  statuses: string[];
  sessions: string[];
  texts: string[];
  texts_left_out: number;
  name: number[];
  segment: number[];
  status: number[];
  session: number[];
  text: number[];
  lane_id: number[];
  depth: number[];
  start_ns: number[];
  duration_ns: number[];
  step: (number | null)[];
  span_id: string[];
  parent: number[];
  errors: Record<string, string>;
}

export interface MetricLines {
  name: string;
  width_ns: number;
  step_width: number;
  time: Line[];
  steps: Line[];
  time_spread: HeatMap | null;
  step_spread: HeatMap | null;
}

export interface ReportDocument {
  version: number;
  generated_s: number;
  generator: string;
  scope: string;
  step: number | null;
  origin_ns: number;
  start_ns: number;
  end_ns: number;
  run: RunSummary;
  processes: ProcessHealth[];
  losses: LossCount[];
  lanes: Lane[];
  steps: Step[];
  /** By role; "" is the one that leads the steps. */
  breakdowns: Record<string, Breakdown>;
  idle: RoleIdle[];
  step_metrics: StepMetric[];
  hotspots: Hotspot[];
  hotspots_by: Record<string, Hotspot[]>;
  flame: Flame;
  spans: SpanColumns;
  /** The coarsest first. */
  timelines: Timeline[];
  open_work: OpenWork[];
  sessions_in_flight: SessionInFlight[];
  sessions: { total: number; sessions: Session[]; steps: StepDuration[] };
  metrics: Metric[];
  lines: MetricLines[];
  usage: UsageByState;
  gpus_now: GpusNow;
  logs: LogLine[];
  events: Event[];
  marks: Mark[];
  series: SpanSeries[];
  findings: Finding[];
  /** By session; absent unless requested. */
  transcripts?: Record<string, Transcript>;
}

/** Reads the data of a report. */
export async function readDocument(text: string): Promise<ReportDocument> {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(stream).json()) as ReportDocument;
}
