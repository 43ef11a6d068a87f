import { useEffect, useMemo, useState } from "react";
import { type Lane, type Span, api } from "../api";
import { formatCount, counted } from "../units";
import { useQuery } from "../useQuery";
import { fitsPlaces, fitsWords, parseTimelineSearch } from "./search";

const MAX_HITS = 1000;
/** With more lanes than this, a request does not list them individually. */
const MAX_LANES = 500;

/** A lane or a span that was found. */
export type Hit = { lane: Lane } | { span: Span };

export interface Hits {
  ids: ReadonlySet<string>;
  /** The lanes whose name, host or process matches the search. */
  lanes: ReadonlySet<number>;
  /** The words to match in visible names; lower case, empty for none. */
  words: string;
  isSearching: boolean;
  count: number;
  text: string;
  move: (distance: number) => Hit | null;
}

const NO_IDS: ReadonlySet<string> = new Set();

/** The lanes and spans that a search finds, and the current position among them. */
export function useHits(run: string, search: string, lanes: readonly Lane[]): Hits {
  const [place, setPlace] = useState(-1);
  const { words, query, places, problem } = useMemo(() => parseTimelineSearch(search), [search]);
  const isSearching = words !== "" || places.length > 0 || Object.keys(query).length > 0;
  const foundLanes = useMemo(() => {
    if (words === "" && places.length === 0) return [];
    return lanes.filter((lane) => fitsPlaces(lane, places) && (words === "" || fitsWords(lane, words)));
  }, [lanes, words, places]);
  const onLanes = useMemo(
    () => (places.length === 0 ? null : lanes.filter((lane) => fitsPlaces(lane, places))),
    [lanes, places],
  );
  // Conditions only on lanes match lanes, not each of their spans.
  const wantsSpans = words !== "" || Object.keys(query).length > 0;
  const laneIds = onLanes === null || onLanes.length > MAX_LANES ? undefined : onLanes.map((lane) => lane.lane_id);
  const { data, isLoading } = useQuery(
    `hits ${run} ${JSON.stringify([words, query, laneIds])}`,
    async (signal) => {
      const conditions = { ...query, ...(words === "" ? {} : { text: words }), lane: laneIds };
      return (await api.spans({ run, ...conditions, limit: MAX_HITS }, signal)).reverse();
    },
    { enabled: wantsSpans && laneIds?.length !== 0, live: false, keep: false },
  );
  useEffect(() => setPlace(-1), [run, search]);
  const spans = wantsSpans ? (data ?? []) : [];
  const ids = useMemo(
    () => (!wantsSpans || data === undefined ? NO_IDS : new Set(data.map((span) => span.span_id))),
    [data, wantsSpans],
  );
  // Conditions on spans match only spans.
  const named = Object.keys(query).length > 0 ? [] : foundLanes;
  const laneSet = useMemo(() => new Set(named.map((lane) => lane.lane_id)), [foundLanes, query]);
  const count = named.length + spans.length;
  const move = (distance: number): Hit | null => {
    if (count === 0) return null;
    // Lanes come first; without any, and backward, the first step goes to the newest span, which is likely in view.
    const first = named.length > 0 && distance > 0 ? 0 : count - 1;
    const next = place < 0 ? first : (place + distance + count) % count;
    setPlace(next);
    return next < named.length ? { lane: named[next]! } : { span: spans[next - named.length]! };
  };
  const text = problem ?? hitText(named.length, spans.length, place, isLoading && wantsSpans);
  return { ids, lanes: laneSet, words: words.toLowerCase(), isSearching, count, text, move };
}

function hitText(lanes: number, spans: number, place: number, isLoading: boolean): string {
  if (isLoading) return "…";
  if (lanes + spans === 0)
    return "no matches: search names, attributes, errors, lanes, hosts, status:error, longer:20s";
  if (place >= 0) return `${place + 1} of ${formatCount(lanes + spans)}`;
  const parts = [
    lanes > 0 ? counted(lanes, "lane") : "",
    spans >= MAX_HITS ? `the newest ${formatCount(MAX_HITS)} spans` : spans > 0 ? counted(spans, "span") : "",
  ];
  return parts.filter(Boolean).join(", ");
}
