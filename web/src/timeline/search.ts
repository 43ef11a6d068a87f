// The search of the timeline: words, and conditions such as `status:error longer:20s tool=search role:rollout rank:17`.
import type { Lane, SpanQuery } from "../api";
import { noDuration, parseConditions, parseSeconds, unquoted } from "../searchText";
import { processTitle } from "../processTitle";
import { laneTitle } from "./layout";

const OF_LANES = ["role", "rank", "node", "host", "lane", "process"] as const;
const OF_SPANS = ["status", "longer", "error", "session", "step", "name"] as const;
export const CONDITIONS: readonly string[] = [...OF_SPANS, ...OF_LANES];
const STATUSES = ["ok", "error", "cancelled", "open"] as const;

type LaneKey = (typeof OF_LANES)[number];
type Found = Pick<
  SpanQuery,
  "status" | "longer_than_ns" | "error" | "session_id" | "step" | "name_contains" | "attribute"
>;

export interface TimelineSearch {
  /** Words to match in names, attributes, errors, sessions and lane names. */
  words: string;
  query: Found;
  /** Conditions on lanes; all must match. */
  places: readonly (readonly [LaneKey, string])[];
  /** An error message for invalid input. */
  problem: string | null;
}

/** Parses a search. */
export function parseTimelineSearch(text: string): TimelineSearch {
  const query: Found = {};
  const places: (readonly [LaneKey, string])[] = [];
  const isAttribute = (token: string) => {
    const found = /^([\w.\-/]+)=(.+)$/s.exec(token);
    if (found !== null) query.attribute = `${found[1]!}=${unquoted(found[2]!)}`;
    return found !== null;
  };
  const take = (key: string, value: string) => {
    if (!(OF_LANES as readonly string[]).includes(key)) return spanCondition(query, key, value);
    places.push([key as LaneKey, value]);
    return null;
  };
  const { words, problem } = parseConditions(text, [...CONDITIONS, "key=value"], take, isAttribute);
  return { words: words.join(" "), query, places, problem };
}

const TEXTS: Readonly<Record<string, "error" | "session_id" | "name_contains">> = {
  error: "error",
  session: "session_id",
  name: "name_contains",
};

function spanCondition(query: Found, key: string, value: string): string | null {
  const field = TEXTS[key];
  if (field !== undefined) {
    query[field] = value;
  } else if (key === "status") {
    const status = STATUSES.find((one) => one === value.toLowerCase());
    if (status === undefined) return `unknown status “${value}”: use ${STATUSES.join(", ")}.`;
    query.status = status;
  } else if (key === "longer") {
    const seconds = parseSeconds(value);
    if (seconds === null) return noDuration(value);
    query.longer_than_ns = Math.round(seconds * 1e9);
  } else {
    if (!/^-?\d+$/.test(value)) return `cannot parse “${value}” as a step: use step:37.`;
    query.step = Number(value);
  }
  return null;
}

/** Whether a lane matches the conditions on lanes. */
export function fitsPlaces(lane: Lane, places: TimelineSearch["places"]): boolean {
  return places.every(([key, value]) => {
    const wanted = value.toLowerCase();
    if (key === "rank") return fitsRank(lane.rank, wanted);
    if (key === "role") return lane.role.toLowerCase() === wanted;
    if (key === "node" || key === "host") return lane.host.toLowerCase().includes(wanted);
    return (key === "lane" ? laneTitle(lane) : lane.process_id).toLowerCase().includes(wanted);
  });
}

function fitsRank(rank: number | null, wanted: string): boolean {
  const range = /^(\d+)-(\d+)$/.exec(wanted);
  if (rank === null) return false;
  return range === null ? String(rank) === wanted : rank >= Number(range[1]) && rank <= Number(range[2]);
}

/** Whether a lane's names contain all words: `rollout 17` matches one process, not `rollout 170`. */
export function fitsWords(lane: Lane, words: string): boolean {
  const title = `${processTitle(lane)} ${laneTitle(lane)}`.toLowerCase();
  const names = [title, lane.host, lane.process_id, lane.lane ?? ""].map((name) => name.toLowerCase());
  const wanted = words.toLowerCase().trim();
  return names.some((name) => new RegExp(`(^|[^a-z0-9])${escaped(wanted)}($|[^0-9])`).test(name));
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

/** The lanes that match a filter, which has the syntax of a search; all lanes if it is empty. */
export function filterLanes(lanes: readonly Lane[], filter: string): readonly Lane[] {
  const { words, places } = parseTimelineSearch(filter);
  if (words === "" && places.length === 0) return lanes;
  return lanes.filter((lane) => fitsPlaces(lane, places) && (words === "" || containsWords(lane, words)));
}

/** While a filter is being typed, each word may match a part of the lane's names. */
function containsWords(lane: Lane, words: string): boolean {
  const text = `${processTitle(lane)} ${laneTitle(lane)} ${lane.host} ${lane.process_id}`.toLowerCase();
  return words
    .toLowerCase()
    .split(" ")
    .every((word) => text.includes(word));
}
