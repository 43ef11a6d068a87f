import { useUrlState } from "../url";
import type { Density } from "./layout";
import { COLOURINGS, type ColourBy } from "./scene";

export type TimelineAddress = ReturnType<typeof useTimelineAddress>;

/** What the address says about the timeline: a link shows the same thing to anyone. */
export function useTimelineAddress(isReport: boolean) {
  const [from, setFrom] = useUrlState("from", 0);
  const [to, setTo] = useUrlState("to", 0);
  const [isFollowing, setIsFollowing] = useUrlState("follow", from === 0 && !isReport);
  const [colourBy, setColourBy] = useUrlState<ColourBy>("colour", "name", COLOURINGS);
  const [density, setDensity] = useUrlState<Density>("density", "normal", ["normal", "compact"]);
  const [search, setSearch] = useUrlState("search", "");
  const [spanId, setSpanId] = useUrlState("span", "");
  const [laneId, setLaneId] = useUrlState("lane", -1);
  const [collapsed, setCollapsed] = useUrlState("collapsed", []);
  const [stripNames, setStripNames] = useUrlState("metric", []);
  const [findingId, setFindingId] = useUrlState("finding", "");
  return {
    ...{ from, setFrom, to, setTo, isFollowing, setIsFollowing, colourBy, setColourBy, density, setDensity },
    ...{ search, setSearch, spanId, setSpanId, laneId, setLaneId, collapsed, setCollapsed, stripNames, setStripNames },
    ...{ findingId, setFindingId },
  };
}
