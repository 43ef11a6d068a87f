// The individual spans of a report: search, and details of one span.
import { ApiError, type Event, type Lane, type LogLine, type Span, type SpanDetail, type SpanQuery } from "../api";
import type { ReportDocument } from "./document";

const MAX_CHILDREN = 1000;
const MAX_PARENTS = 64;

export class Spans {
  private readonly lanes: ReadonlyMap<number, Lane>;
  private readonly rows: ReadonlyMap<string, number>;
  private readonly children = new Map<number, number[]>();
  private readonly lowerTexts: readonly string[];

  constructor(private readonly document: ReportDocument) {
    const { spans, lanes } = document;
    this.lanes = new Map(lanes.map((lane) => [lane.lane_id, lane]));
    this.rows = new Map(spans.span_id.map((id, row) => [id, row]));
    this.lowerTexts = spans.texts.map((text) => text.toLowerCase());
    spans.parent.forEach((parent, row) => {
      if (parent < 0) return;
      const known = this.children.get(parent);
      if (known === undefined) this.children.set(parent, [row]);
      else known.push(row);
    });
  }

  /** The spans that match every condition. */
  search(query: SpanQuery): Span[] {
    const { spans } = this.document;
    const fits = this.conditions(query);
    const rows: number[] = [];
    for (let row = 0; row < spans.span_id.length; row += 1)
      if (fits.every((condition) => condition(row))) rows.push(row);
    const start = (row: number) => spans.start_ns[row]!;
    if (query.order === "longest")
      rows.sort((one, other) => this.length(other) - this.length(one) || start(one) - start(other));
    else if (query.order === "oldest") rows.sort((one, other) => start(one) - start(other));
    else rows.sort((one, other) => start(other) - start(one));
    return rows.slice(0, query.limit ?? 100).map((row) => this.at(row));
  }

  /** A span with its parents, children, events and logs. */
  detail(spanId: string, logs: readonly LogLine[], events: readonly Event[]): SpanDetail {
    const row = this.rows.get(spanId.padStart(16, "0").toLowerCase());
    if (row === undefined)
      throw new ApiError(
        `There is no span ${spanId} in this report: it is outside the scope, or one of many short spans.`,
        404,
      );
    const parents: Span[] = [];
    for (
      let above = this.document.spans.parent[row]!;
      above >= 0 && parents.length < MAX_PARENTS;
      above = this.document.spans.parent[above]!
    )
      parents.push(this.at(above));
    const children = (this.children.get(row) ?? [])
      .map((child) => this.at(child))
      .sort((one, other) => one.start_ns - other.start_ns)
      .slice(0, MAX_CHILDREN);
    const isOfSpan = (one: { span_id: string | null }) => one.span_id === this.document.spans.span_id[row];
    const inOrder = (one: { time_ns: number }, other: { time_ns: number }) => one.time_ns - other.time_ns;
    return {
      span: this.at(row),
      parents,
      children,
      events: events.filter(isOfSpan).sort(inOrder),
      logs: logs.filter(isOfSpan).sort(inOrder),
    };
  }

  private length(row: number): number {
    const duration = this.document.spans.duration_ns[row]!;
    return duration < 0 ? -1 : duration;
  }

  private conditions(query: SpanQuery): ((row: number) => boolean)[] {
    const { spans, origin_ns } = this.document;
    const found: ((row: number) => boolean)[] = [];
    const {
      name,
      name_contains,
      text,
      error,
      attribute,
      lane,
      role,
      status,
      step,
      session_id,
      longer_than_ns,
      start_ns,
      end_ns,
    } = query;
    if (name !== undefined)
      found.push(
        memberOf(
          spans.name,
          spans.names.map((one) => one === name),
        ),
      );
    if (name_contains !== undefined) found.push(memberOf(spans.name, containing(spans.names, name_contains)));
    const ofSession = (part: string) => memberOf(spans.session, containing(spans.sessions, part));
    const ofError = (part: string) => (row: number) =>
      (spans.errors[row] ?? "").toLowerCase().includes(part.toLowerCase());
    if (error !== undefined) found.push(ofError(error));
    if (attribute !== undefined) {
      const [key, ...value] = attribute.split("=");
      const fits = spans.texts.map((one) => String(attributesOf(one)[key!.trim()]) === value.join("=").trim());
      found.push(memberOf(spans.text, fits));
    }
    if (text !== undefined) {
      const inName = memberOf(spans.name, containing(spans.names, text));
      const [inSession, inError] = [ofSession(text), ofError(text)];
      const inText = memberOf(
        spans.text,
        this.lowerTexts.map((one) => one.includes(text.toLowerCase())),
      );
      found.push((row) => inName(row) || inText(row) || inSession(row) || inError(row));
    }
    if (status !== undefined)
      found.push(
        memberOf(
          spans.status,
          spans.statuses.map((one) => one === status),
        ),
      );
    if (session_id !== undefined)
      found.push(
        memberOf(
          spans.session,
          spans.sessions.map((one) => one === session_id),
        ),
      );
    if (step !== undefined) found.push((row) => spans.step[row] === step);
    if (lane !== undefined) found.push((row) => lane.includes(spans.lane_id[row]!));
    if (role !== undefined) found.push((row) => this.lanes.get(spans.lane_id[row]!)?.role === role);
    if (longer_than_ns !== undefined) found.push((row) => spans.duration_ns[row]! >= longer_than_ns);
    if (start_ns !== undefined) found.push((row) => spans.start_ns[row]! >= Number(start_ns) - origin_ns);
    if (end_ns !== undefined) found.push((row) => spans.start_ns[row]! < Number(end_ns) - origin_ns);
    return found;
  }

  private at(row: number): Span {
    const { spans, origin_ns } = this.document;
    const lane = this.lanes.get(spans.lane_id[row]!);
    const duration = spans.duration_ns[row]!;
    const parent = spans.parent[row]!;
    return {
      span_id: spans.span_id[row]!,
      trace_id: "",
      parent_id: parent < 0 ? null : spans.span_id[parent]!,
      name: spans.names[spans.name[row]!] ?? "",
      start_ns: origin_ns + spans.start_ns[row]!,
      duration_ns: duration < 0 ? null : duration,
      segment: spans.segments[spans.segment[row]!] ?? "",
      status: spans.statuses[spans.status[row]!] ?? "",
      error: spans.errors[row] ?? null,
      step: spans.step[row] ?? null,
      session_id: spans.sessions[spans.session[row]!] ?? null,
      attributes: attributesOf(spans.texts[spans.text[row]!]),
      lane_id: spans.lane_id[row]!,
      lane: lane?.lane ?? null,
      depth: spans.depth[row]!,
      process_id: lane?.process_id ?? "",
      role: lane?.role ?? "",
      rank: lane?.rank ?? null,
    };
  }
}

function memberOf(column: readonly number[], wanted: readonly boolean[]): (row: number) => boolean {
  return (row) => wanted[column[row]!] === true;
}

function containing(texts: readonly string[], part: string): boolean[] {
  const wanted = part.toLowerCase();
  return texts.map((text) => text.toLowerCase().includes(wanted));
}

/** Attributes as an object; any other text is kept under `_text`, as on the server. */
function attributesOf(text: string | undefined): Record<string, unknown> {
  if (text === undefined) return {};
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch {
    // Kept as text below.
  }
  return { _text: text };
}
