// The search of the sessions: words, and conditions with a prefix such as `step:3-9 status:failed task:"a b"`.
import type { SessionConditions } from "../../api";
import { BAD_STATUSES, ENDED_STATUSES, PENDING, STATUSES } from "../../sessionStatus";
import { noDuration, parseConditions, parseSeconds } from "../../searchText";

/** Conditions with a text value. */
const TEXTS = {
  task: "task_id",
  session: "session_id",
  phase: "phase",
  role: "role",
  group: "group_id",
  version: "model_version",
  reason: "reason",
} as const;
/** Conditions with numeric bounds, and their formats. */
const NUMBERS = {
  reward: "a reward: use reward:<0.1, reward:>=0.5 or reward:1",
  tokens: "a number of tokens: use tokens:>1000 or tokens:<=64",
  turns: "a number of turns: use turns:>3 or turns:1",
} as const;
type TextKey = keyof typeof TEXTS;
type NumberKey = keyof typeof NUMBERS;
type Prefix = TextKey | NumberKey | "step" | "status" | "error" | "rank" | "longer";
export const PREFIXES =
  "step status task session phase error role rank longer reward tokens turns group version reason".split(
    " ",
  ) as Prefix[];

export interface ParsedSearch {
  query: SessionConditions;
  /** An error message for invalid input. */
  problem: string | null;
}

const ALIASES: Readonly<Record<string, readonly string[]>> = {
  open: [PENDING],
  running: [PENDING],
  done: ENDED_STATUSES,
  error: ["failed"],
  bad: BAD_STATUSES,
};

/** Parses a search. */
export function parseSearch(text: string): ParsedSearch {
  const query: SessionConditions = {};
  const take = (key: string, value: string, words: string[]) => condition(query, words, key as Prefix, value);
  const { words, problem } = parseConditions(text, PREFIXES, take);
  if (words.length > 0) query.text = words.join(" ");
  return { query, problem };
}

function condition(query: SessionConditions, words: string[], prefix: Prefix, value: string): string | null {
  switch (prefix) {
    case "step":
      return stepCondition(query, value);
    case "status":
      return statusCondition(query, value);
    case "error":
      query.status = [...BAD_STATUSES];
      if (value !== "*") words.push(value);
      return null;
    case "rank":
      if (!Number.isInteger(Number(value))) return `cannot parse “${value}” as a rank: use rank:3.`;
      query.rank = Number(value);
      return null;
    case "longer": {
      const seconds = parseSeconds(value);
      if (seconds === null) return noDuration(value);
      query.longer_than_s = seconds;
      return null;
    }
    case "reward":
    case "tokens":
    case "turns":
      return numberCondition(query, prefix, value);
    default:
      query[TEXTS[prefix]] = value;
      return null;
  }
}

function numberCondition(query: SessionConditions, key: NumberKey, value: string): string | null {
  const isReward = key === "reward";
  // The neighbor of an exclusive bound.
  const bounds = boundsOf(value, (bound, direction) =>
    isReward ? bound + direction * (Math.abs(bound) || 1) * 2 ** -52 : bound + direction,
  );
  if (bounds === null || (!isReward && bounds.some((bound) => bound !== undefined && !Number.isInteger(bound))))
    return `cannot parse “${value}” as ${NUMBERS[key]}.`;
  [query[`least_${key}`], query[`most_${key}`]] = bounds;
  return null;
}

type Bounds = [least: number | undefined, most: number | undefined];

/** Reads `<0.1`, `>=5` or `1`; `next` returns the neighbor of an exclusive bound. */
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

function stepCondition(query: SessionConditions, value: string): string | null {
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
  return `cannot parse “${value}” as a step: use step:7, step:3-9 or step:>5.`;
}

function statusCondition(query: SessionConditions, value: string): string | null {
  const wanted = value
    .toLowerCase()
    .split(",")
    .filter((one) => one !== "");
  const unknown = wanted.find((one) => !STATUSES.includes(one) && ALIASES[one] === undefined);
  if (unknown !== undefined) return `unknown status “${unknown}”: use ${STATUSES.join(", ")}.`;
  query.status = [...new Set(wanted.flatMap((one) => ALIASES[one] ?? [one]))];
  return null;
}

/** Returns a search with one condition set, or removed with null; the rest is unchanged. */
export function withCondition(text: string, prefix: Prefix, value: string | null): string {
  const kept = (text.match(/(?:[a-z]+:)?"[^"]*"?|\S+/gi) ?? []).filter(
    (token) => !token.toLowerCase().startsWith(`${prefix}:`),
  );
  if (value !== null) kept.push(/\s/.test(value) ? `${prefix}:"${value}"` : `${prefix}:${value}`);
  return kept.join(" ");
}
