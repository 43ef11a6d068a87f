import { useEffect, useMemo, useState } from "react";
import type { Finding, Lane, Metric, Step } from "../api";
import { useAnswer } from "../useQuery";
import { useSteps } from "../useSteps";
import { useFinding } from "./finding";
import { sortLanes } from "./layout";
import { filterLanes } from "./search";
import { type Hits, useHits } from "./useHits";
import type { TimelineAddress } from "./useTimelineAddress";

const MOST_STEPS = 1000;
const NO_LANES: readonly Lane[] = [];
const NO_METRICS: readonly Metric[] = [];

export interface TimelineData {
  /** All lanes of the run; empty while they load. */
  lanes: readonly Lane[];
  hasLanes: boolean;
  /** The lanes that match the filter, in the order of the address. */
  shownLanes: readonly Lane[];
  /** Undefined while they load. */
  steps: readonly Step[] | undefined;
  metrics: readonly Metric[];
  hits: Hits;
  /** The finding in the address. */
  finding: Finding | undefined;
}

/** What the timeline shows besides the spans, which its controller loads. */
export function useTimelineData(run: string, address: TimelineAddress): TimelineData {
  const lanes = useLanes(run);
  const rows = lanes ?? NO_LANES;
  const steps = useSteps(run, MOST_STEPS);
  const metrics = useAnswer("metrics", { run }, { everyMs: 5000 });
  const hits = useHits(run, address.search, rows);
  const finding = useFinding(run, address.findingId);
  const { filter, arrangement } = address.lanes;
  const matching = useMemo(() => filterLanes(rows, filter), [rows, filter]);
  const shownLanes = useMemo(() => sortLanes(matching, arrangement), [matching, arrangement]);
  return {
    ...{ lanes: rows, hasLanes: lanes !== undefined, shownLanes },
    ...{ steps, metrics: metrics.data ?? NO_METRICS, hits, finding },
  };
}

function useLanes(run: string): readonly Lane[] | undefined {
  const [count, setCount] = useState(0);
  // A long list changes little in a few seconds.
  const { data } = useAnswer("lanes", { run }, { everyMs: Math.max(2000, count * 2) });
  useEffect(() => setCount(data?.length ?? 0), [data]);
  return data;
}
