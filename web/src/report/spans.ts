// The individual spans of a report: search, and details of one span.
import {
  ApiError,
  type Event,
  type Lane,
  type LogLine,
  type QueryOf,
  type ReportDocument,
  type Span,
  type SpanDetail,
  type SpanQuery,
} from "../api";
import { type Condition, containing, equalTo, sameId, textAt } from "./columns";

const MAX_CHILDREN = 1000;
const MAX_PARENTS = 64;
const MAX_RECORDS = 1000;

export class Spans {
  private readonly lanes: ReadonlyMap<number, Lane>;
  private readonly rows = new Map<string, number[]>();
  private readonly children = new Map<string, number[]>();
  private readonly unreadable: ReadonlySet<number>;

  constructor(private readonly document: ReportDocument) {
    const { spans, lanes } = document;
    this.lanes = new Map(lanes.map((lane) => [lane.lane_id, lane]));
    this.unreadable = new Set(spans.unreadable);
    spans.span_id.forEach((id, row) => {
      append(this.rows, id, row);
      const parent = textAt(spans.parent_id, row);
      if (parent !== null) append(this.children, parent, row);
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
    // An open span has the duration -1.
    const duration = (row: number) => spans.duration_ns[row]!;
    if (query.order === "longest")
      rows.sort((one, other) => duration(other) - duration(one) || start(one) - start(other));
    else if (query.order === "oldest") rows.sort((one, other) => start(one) - start(other));
    else rows.sort((one, other) => start(other) - start(one));
    return rows.slice(0, query.limit ?? 100).map((row) => this.at(row));
  }

  /** A span with its parents, children, events and logs. */
  detail(query: QueryOf<"span">, logs: readonly LogLine[], events: readonly Event[]): SpanDetail {
    const { spans } = this.document;
    const row = (this.rows.get(sameId(query.span_id)) ?? []).find(
      (one) => query.process_id === undefined || this.at(one).process_id === query.process_id,
    );
    if (row === undefined)
      throw new ApiError(
        `There is no span ${query.span_id} in this report: it is outside the scope, or one of many short spans.`,
        404,
      );
    const span = this.at(row);
    const parents: Span[] = [];
    const seen = new Set([span.span_id]);
    for (let above = span.parent_id; above !== null && !seen.has(above) && parents.length < MAX_PARENTS;) {
      seen.add(above);
      const parent = this.rows.get(above)?.[0];
      if (parent === undefined) break;
      parents.push(this.at(parent));
      above = parents.at(-1)!.parent_id;
    }
    const children = (this.children.get(span.span_id) ?? [])
      .filter((child) => textAt(spans.trace_id, child) === span.trace_id)
      .map((child) => this.at(child))
      .sort((one, other) => one.start_ns - other.start_ns)
      .slice(0, MAX_CHILDREN);
    const ofSpan = <T extends { span_id: string | null; process_id: string; time_ns: number }>(records: readonly T[]) =>
      records
        .filter((one) => one.span_id === span.span_id && one.process_id === span.process_id)
        .sort((one, other) => one.time_ns - other.time_ns)
        .slice(0, MAX_RECORDS);
    // Of the oldest open span of each name; a report does not judge the others.
    const severity = this.document.open_work.find((work) => work.oldest_span_id === span.span_id)?.severity ?? null;
    return { span, parents, children, events: ofSpan(events), logs: ofSpan(logs), severity };
  }

  private conditions(query: SpanQuery): Condition[] {
    const { spans, origin_ns } = this.document;
    const { name, name_contains, text, error, attribute, lane, role, status, step, session_id, trace_id } = query;
    const { longer_than_ns, start_ns, end_ns } = query;
    const found: Condition[] = [];
    if (name !== undefined) found.push(equalTo(spans.name, name));
    if (name_contains !== undefined) found.push(containing(spans.name, name_contains));
    if (error !== undefined) found.push(containing(spans.error, error));
    if (attribute !== undefined) found.push(this.withAttribute(attribute));
    if (text !== undefined) {
      const places = [spans.name, spans.attributes, spans.error, spans.session_id].map((one) => containing(one, text));
      found.push((row) => places.some((condition) => condition(row)));
    }
    if (status !== undefined) found.push(equalTo(spans.status, status));
    if (session_id !== undefined) found.push(equalTo(spans.session_id, session_id));
    if (trace_id !== undefined) found.push(equalTo(spans.trace_id, trace_id.toLowerCase()));
    if (step !== undefined) found.push((row) => spans.step[row] === step);
    if (lane !== undefined) found.push((row) => lane.includes(spans.lane_id[row]!));
    if (role !== undefined) found.push((row) => this.lanes.get(spans.lane_id[row]!)?.role === role);
    if (longer_than_ns !== undefined) found.push((row) => spans.duration_ns[row]! >= longer_than_ns);
    if (start_ns !== undefined) found.push((row) => spans.start_ns[row]! >= Number(start_ns) - origin_ns);
    if (end_ns !== undefined) found.push((row) => spans.start_ns[row]! < Number(end_ns) - origin_ns);
    return found;
  }

  /** A condition `key=value`; a number must be spelled as it was recorded. */
  private withAttribute(condition: string): Condition {
    const { rows, values } = this.document.spans.attributes;
    const place = condition.indexOf("=");
    if (place < 0) throw new ApiError(`cannot parse attribute ${condition}: write key=value.`, 400);
    const [key, wanted] = [condition.slice(0, place).trim(), condition.slice(place + 1).trim()];
    const fits = values.map((text, at) => {
      if (!text.includes(wanted)) return false;
      const value = this.attributesAt(at)[key];
      if (value === null || value === undefined || this.unreadable.has(at)) return false;
      if (typeof value === "string") return value === wanted;
      if (typeof value !== "number") return JSON.stringify(value) === wanted;
      const spelled = `${JSON.stringify(key)}:${wanted}`;
      const packed = text.replace(/\s/g, "");
      return value === Number(wanted) && [",", "}"].some((end) => packed.includes(`${spelled}${end}`));
    });
    return (row) => fits[rows[row]!] === true;
  }

  private attributesAt(place: number): Record<string, unknown> {
    const text = this.document.spans.attributes.values[place];
    if (text === undefined) return {};
    return this.unreadable.has(place) ? { unreadable: text } : (JSON.parse(text) as Record<string, unknown>);
  }

  /** Until when an open span lasts, as the server defines it. */
  private openUntil(row: number): number {
    const { spans, origin_ns } = this.document;
    return origin_ns + Math.max(spans.start_ns[row]!, spans.until_ns[spans.lane_id[row]!] ?? 0);
  }

  private at(row: number): Span {
    const { spans, origin_ns } = this.document;
    const lane = this.lanes.get(spans.lane_id[row]!);
    const duration = spans.duration_ns[row]!;
    return {
      span_id: spans.span_id[row]!,
      trace_id: textAt(spans.trace_id, row) ?? "",
      parent_id: textAt(spans.parent_id, row),
      name: textAt(spans.name, row) ?? "",
      start_ns: origin_ns + spans.start_ns[row]!,
      duration_ns: duration < 0 ? null : duration,
      until_ns: duration < 0 ? this.openUntil(row) : null,
      segment: textAt(spans.segment, row) ?? "",
      status: textAt(spans.status, row) ?? "",
      error: textAt(spans.error, row),
      step: spans.step[row] ?? null,
      session_id: textAt(spans.session_id, row),
      attributes: this.attributesAt(spans.attributes.rows[row]!),
      lane_id: spans.lane_id[row]!,
      lane: lane?.lane ?? null,
      depth: spans.depth[row]!,
      process_id: lane?.process_id ?? "",
      role: lane?.role ?? "",
      rank: lane?.rank ?? null,
    };
  }
}

function append(rows: Map<string, number[]>, key: string, row: number): void {
  const known = rows.get(key);
  if (known === undefined) rows.set(key, [row]);
  else known.push(row);
}
