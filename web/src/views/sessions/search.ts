// The search of the sessions: words, and conditions with a prefix such as `step:3-9 status:failed task:"a b"`.
import type { SessionQuery } from "../../api";
import { parseSeconds, tokens, unquoted } from "../../searchText";

export const PREFIXES = [
  "step",
  "status",
  "task",
  "session",
  "phase",
  "error",
  "role",
  "rank",
  "longer",
  "reward",
  "tokens",
  "turns",
  "group",
  "version",
  "reason",
] as const;
type Prefix = (typeof PREFIXES)[number];

export type SessionSearch = Pick<
  SessionQuery,
  | "session_id"
  | "task_id"
  | "status"
  | "role"
  | "rank"
  | "first_step"
  | "last_step"
  | "longer_than_s"
  | "least_reward"
  | "most_reward"
  | "least_tokens"
  | "most_tokens"
  | "least_turns"
  | "most_turns"
  | "group_id"
  | "model_version"
  | "reason"
  | "text"
  | "phase"
>;

export interface ParsedSearch {
  query: SessionSearch;
  /** What was not understood, as a sentence. */
  problem: string | null;
}

/** Statuses of sessions that ended badly. */
const BAD = ["failed", "cancelled", "dropped", "lost"];
const KNOWN = ["pending", "accepted", "rejected", ...BAD];
const ALIASES: Readonly<Record<string, readonly string[]>> = {
  open: ["pending"],
  running: ["pending"],
  done: KNOWN.filter((status) => status !== "pending"),
  error: ["failed"],
  bad: BAD,
};

/** Reads a search text. */
export function parseSearch(text: string): ParsedSearch {
  const query: SessionSearch = {};
  const words: string[] = [];
  let problem: string | null = null;
  for (const token of tokens(text)) {
    // An address is text; anything else with a colon is meant as a condition.
    const found = /^([a-z_]+):(?!\/\/)(.*)$/is.exec(token);
    const prefix = found?.[1]?.toLowerCase();
    if (found === null || prefix === undefined) {
      if (unquoted(token) !== "") words.push(unquoted(token));
      continue;
    }
    if (!(PREFIXES as readonly string[]).includes(prefix)) {
      problem = `“${prefix}:” is not a condition: use ${PREFIXES.join(", ")}. Quotes make it text: "${token}".`;
      continue;
    }
    const value = unquoted(found[2]!);
    // While typing, a prefix without a value is not a condition yet.
    if (value !== "") problem = condition(query, words, prefix as Prefix, value) ?? problem;
  }
  if (words.length > 0) query.text = words.join(" ");
  return { query, problem };
}

function condition(query: SessionSearch, words: string[], prefix: Prefix, value: string): string | null {
  switch (prefix) {
    case "step":
      return stepCondition(query, value);
    case "status":
      return statusCondition(query, value);
    case "task":
      query.task_id = value;
      return null;
    case "session":
      query.session_id = value;
      return null;
    case "phase":
      query.phase = value;
      return null;
    case "error":
      query.status = BAD;
      if (value !== "*") words.push(value);
      return null;
    case "role":
      query.role = value;
      return null;
    case "rank": {
      const rank = Number(value);
      if (!Number.isInteger(rank)) return `“${value}” is not a rank: write rank:3.`;
      query.rank = rank;
      return null;
    }
    case "longer": {
      const seconds = parseSeconds(value);
      if (seconds === null) return `“${value}” is not a duration: write longer:2s, longer:500ms or longer:3min.`;
      query.longer_than_s = seconds;
      return null;
    }
    case "reward": {
      const bounds = boundsOf(value, (bound, direction) => bound + direction * (Math.abs(bound) || 1) * 2 ** -52);
      if (bounds === null) return `“${value}” is not a reward: write reward:<0.1, reward:>=0.5 or reward:1.`;
      [query.least_reward, query.most_reward] = bounds;
      return null;
    }
    case "tokens": {
      const bounds = boundsOf(value, (bound, direction) => bound + direction);
      if (bounds === null || bounds.some((bound) => bound !== undefined && !Number.isInteger(bound)))
        return `“${value}” is not a number of tokens: write tokens:>1000 or tokens:<=64.`;
      [query.least_tokens, query.most_tokens] = bounds;
      return null;
    }
    case "turns": {
      const bounds = boundsOf(value, (bound, direction) => bound + direction);
      if (bounds === null || bounds.some((bound) => bound !== undefined && !Number.isInteger(bound)))
        return `“${value}” is not a number of turns: write turns:>3 or turns:1.`;
      [query.least_turns, query.most_turns] = bounds;
      return null;
    }
    case "group":
      query.group_id = value;
      return null;
    case "version":
      query.model_version = value;
      return null;
    case "reason":
      query.reason = value;
      return null;
  }
}

type Bounds = [least: number | undefined, most: number | undefined];

/** Reads `<0.1`, `>=5` or `1`; `next` gives the neighbor of a bound that is not meant itself. */
function boundsOf(value: string, next: (bound: number, direction: number) => number): Bounds | null {
  const found = /^([<>]?)(=?)(-?\d+(?:\.\d+)?(?:e-?\d+)?)$/i.exec(value);
  if (found === null) return null;
  const bound = Number(found[3]);
  if (found[1] === "") return [bound, bound];
  const isMeant = found[2] === "=";
  return found[1] === "<"
    ? [undefined, isMeant ? bound : next(bound, -1)]
    : [isMeant ? bound : next(bound, 1), undefined];
}

function stepCondition(query: SessionSearch, value: string): string | null {
  const range = /^(\d+)(?:-(\d+))?$/.exec(value);
  const open = /^([<>])(=?)(\d+)$/.exec(value);
  if (range !== null) {
    query.first_step = Number(range[1]);
    query.last_step = Number(range[2] ?? range[1]);
    return null;
  }
  if (open !== null) {
    const step = Number(open[3]);
    if (open[1] === ">") query.first_step = open[2] === "=" ? step : step + 1;
    else query.last_step = open[2] === "=" ? step : step - 1;
    return null;
  }
  return `“${value}” is not a step: write step:7, step:3-9 or step:>5.`;
}

function statusCondition(query: SessionSearch, value: string): string | null {
  const wanted = value
    .toLowerCase()
    .split(",")
    .filter((one) => one !== "");
  const unknown = wanted.find((one) => !KNOWN.includes(one) && ALIASES[one] === undefined);
  if (unknown !== undefined) return `“${unknown}” is not a status: choose ${KNOWN.join(", ")}.`;
  query.status = [...new Set(wanted.flatMap((one) => ALIASES[one] ?? [one]))];
  return null;
}

/** Returns a search text with one condition set, or taken out with null; the rest stays as it was typed. */
export function withCondition(text: string, prefix: Prefix, value: string | null): string {
  const kept = (text.match(/(?:[a-z]+:)?"[^"]*"?|\S+/gi) ?? []).filter(
    (token) => !token.toLowerCase().startsWith(`${prefix}:`),
  );
  if (value !== null) kept.push(/\s/.test(value) ? `${prefix}:"${value}"` : `${prefix}:${value}`);
  return kept.join(" ");
}
