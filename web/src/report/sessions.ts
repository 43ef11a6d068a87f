// The sessions of a report: the conditions and orders of the server's route, over the embedded sessions.
import {
  ApiError,
  type PartDurations,
  type QueryOf,
  type Session,
  type SessionConditions,
  type SessionPage,
  type SessionQuery,
  type SessionReport,
  type SessionStep,
} from "../api";
import { binsOf, spreadOf, sumOf } from "../statistics";

/** As in the server's answer. */
const BINS = 32;
const MOST_PHASES = 8;

export class Sessions {
  private readonly sorted = new Map<string, readonly Session[]>();

  constructor(private readonly report: SessionReport) {}

  /** How long sessions and their parts took: stored for all of them, computed for a part. */
  durations({ run: _run, ...conditions }: QueryOf<"sessions/durations">): PartDurations[] {
    if (Object.values(conditions).every((value) => value === undefined)) return this.report.durations;
    const sessions = this.finished(conditions);
    const phases = new Map<string, number[]>();
    for (const session of sessions) {
      for (const [name, seconds] of Object.entries(session.phase_seconds ?? {})) {
        const known = phases.get(name);
        if (known === undefined) phases.set(name, [seconds]);
        else known.push(seconds);
      }
    }
    const largest = [...phases]
      .map(([name, seconds]) => ({ name, seconds, sum: sumOf(seconds) }))
      .sort((one, other) => other.sum - one.sum || (one.name < other.name ? -1 : 1))
      .slice(0, MOST_PHASES);
    return [
      ...partOf(
        "total",
        false,
        sessions.map((session) => session.total_s),
      ),
      ...partOf(
        "queue wait",
        false,
        sessions.map((session) => session.queue_wait_s),
      ),
      ...partOf(
        "runner wait",
        false,
        sessions.map((session) => session.runner_wait_s),
      ),
      ...largest.flatMap(({ name, seconds }) => partOf(name, true, seconds)),
      ...partOf(
        "post wait",
        false,
        sessions.map((session) => session.post_wait_s),
      ),
    ];
  }

  /** The finished sessions that match; an error if the report does not contain all of them. */
  private finished(conditions: SessionConditions): (Session & { total_s: number })[] {
    if (this.report.total > this.report.sessions.length)
      throw new ApiError("A report with a sample of sessions has only the durations of all: remove conditions.", 400);
    return this.report.sessions.filter(
      (session): session is Session & { total_s: number } => session.total_s != null && this.fits(session, conditions),
    );
  }

  /** How long the sessions of each step took: stored for all of them, computed for a part. */
  steps({ run: _run, ...conditions }: QueryOf<"sessions/steps">): SessionStep[] {
    const { first_step = -Infinity, last_step = Infinity, ...others } = conditions;
    if (Object.values(others).every((value) => value === undefined))
      return this.report.steps.filter(({ step }) => step >= first_step && step <= last_step);
    const found = new Map<number, number[]>();
    for (const session of this.finished(conditions)) {
      if (session.step == null) continue;
      const known = found.get(session.step);
      if (known === undefined) found.set(session.step, [session.total_s]);
      else known.push(session.total_s);
    }
    return [...found]
      .sort(([one], [other]) => one - other)
      .map(([step, seconds]) => {
        const { p50, p95, max } = spreadOf(seconds);
        return { step, p50_s: p50!, p95_s: p95!, max_s: max! };
      });
  }

  page({
    limit = 100,
    offset = 0,
    order = "submit_ts",
    descending = true,
    run: _run,
    detail: _detail,
    ...conditions
  }: SessionQuery): SessionPage {
    const key = JSON.stringify([order, descending, conditions]);
    let found = this.sorted.get(key);
    if (found === undefined) {
      // Scrolling repeats one order; searches change.
      if (this.sorted.size > 8) this.sorted.clear();
      found = this.report.sessions
        .filter((session) => this.fits(session, conditions))
        .sort((one, other) => compare(one, other, order as keyof Session, descending));
      this.sorted.set(key, found);
    }
    return { total: found.length, sessions: found.slice(offset, offset + limit) };
  }

  private fits(session: Session, query: SessionConditions): boolean {
    const { session_id, task_id, status, role, rank, first_step, last_step, longer_than_s, phase, text } = query;
    if (session_id !== undefined && session.session_id !== session_id) return false;
    if (task_id !== undefined && session.task_id !== task_id) return false;
    if (status !== undefined && status.length > 0 && !status.includes(session.status ?? "pending")) return false;
    if (role !== undefined && session.role !== role) return false;
    if (rank !== undefined && session.rank !== rank) return false;
    if (!isBetween(session.step ?? this.report.counted_steps[session.session_id], first_step, last_step)) return false;
    if (longer_than_s !== undefined && !((session.total_s ?? -Infinity) >= longer_than_s)) return false;
    if (!isBetween(session.reward, query.least_reward, query.most_reward)) return false;
    if (!isBetween(session.tokens, query.least_tokens, query.most_tokens)) return false;
    if (!isBetween(session.turns, query.least_turns, query.most_turns)) return false;
    if (query.group_id !== undefined && session.group_id !== query.group_id) return false;
    if (query.model_version !== undefined && session.model_version !== query.model_version) return false;
    if (query.reason !== undefined && !session.reason?.toLowerCase().includes(query.reason.toLowerCase())) return false;
    if (phase !== undefined && !Object.hasOwn(session.phases ?? {}, phase)) return false;
    if (text === undefined) return true;
    const wanted = text.toLowerCase();
    return [session.session_id, session.task_id, session.reason].some(
      (one) => one?.toLowerCase().includes(wanted) === true,
    );
  }
}

function partOf(name: string, is_phase: boolean, seconds: Iterable<number | null | undefined>): PartDurations[] {
  const { count, p50, p95, p99, max, sorted } = spreadOf(seconds);
  if (p50 === null || p95 === null || p99 === null || max === null) return [];
  return [{ name, is_phase, count, p50_s: p50, p95_s: p95, p99_s: p99, max_s: max, bins: binsOf(sorted, BINS) }];
}

function isBetween(value: number | null | undefined, least: number | undefined, most: number | undefined): boolean {
  if (least === undefined && most === undefined) return true;
  return value != null && value >= (least ?? -Infinity) && value <= (most ?? Infinity);
}

/** Sorts in one direction; missing values come last in both. */
function compare(one: Session, other: Session, key: keyof Session, descending: boolean): number {
  const [left, right] = [one[key] ?? null, other[key] ?? null];
  if (left === null || right === null) {
    if (left !== right) return left === null ? 1 : -1;
  } else if (left !== right) {
    return (left < right ? -1 : 1) * (descending ? -1 : 1);
  }
  return one.session_id < other.session_id ? -1 : 1;
}
