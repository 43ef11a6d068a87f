import { useMemo } from "react";
import { useUrlState } from "../url";
import {
  type Arrangement,
  type Density,
  type Folding,
  GROUPINGS,
  type Grouping,
  LANE_ORDERS,
  type LaneOrder,
} from "./layout";
import { COLORINGS, type ColorBy } from "./scene";

export type TimelineAddress = ReturnType<typeof useTimelineAddress>;

/** The timeline's state in the address, so that a link shows the same to everyone. */
export function useTimelineAddress(isReport: boolean) {
  const [from, setFrom] = useUrlState("from", 0);
  const [to, setTo] = useUrlState("to", 0);
  const [window] = useUrlState("window", "");
  // The target of a link or the shared window must stay in place.
  const [isFollowing, setIsFollowing] = useUrlState("follow", from === 0 && window === "" && !isReport);
  const [colorBy, setColorBy] = useUrlState<ColorBy>("colour", "name", COLORINGS);
  const [density, setDensity] = useUrlState<Density>("density", "normal", ["normal", "compact"]);
  const [search, setSearch] = useUrlState("search", "");
  const [spanId, setSpanId] = useUrlState("span", "");
  const [laneId, setLaneId] = useUrlState("lane", -1);
  const [stripNames, setStripNames] = useUrlState("metric", []);
  const [findingId, setFindingId] = useUrlState("finding", "");
  return {
    ...{ from, setFrom, to, setTo, isFollowing, setIsFollowing, colorBy, setColorBy, density, setDensity },
    ...{ search, setSearch, spanId, setSpanId, laneId, setLaneId, stripNames, setStripNames },
    ...{ findingId, setFindingId },
    lanes: useLanesAddress(),
  };
}

export type LanesAddress = ReturnType<typeof useLanesAddress>;

/** Which lanes are visible, in which groups and order. */
function useLanesAddress() {
  const [filter, setFilter] = useUrlState("lanes", "");
  const [grouping, setGrouping] = useUrlState<Grouping>("group", "process", GROUPINGS);
  const [order, setOrder] = useUrlState<LaneOrder>("order", "usual", LANE_ORDERS);
  const [pins, setPins] = useUrlState("pin", []);
  const [collapsed, setCollapsed] = useUrlState("collapsed", []);
  const [isAllFolded, setIsAllFolded] = useUrlState("folded", false);
  const arrangement = useMemo<Arrangement>(
    () => ({ grouping, order, pinned: new Set(pins.map(Number)) }),
    [grouping, order, pins],
  );
  const folding = useMemo<Folding>(() => ({ all: isAllFolded, keys: new Set(collapsed) }), [isAllFolded, collapsed]);
  const toggled = (list: readonly string[], one: string) =>
    list.includes(one) ? list.filter((other) => other !== one) : [...list, one];
  return {
    ...{ filter, setFilter, grouping, setGrouping, order, setOrder, arrangement, folding, isAllFolded },
    /** Pins a lane to the top, or unpins it. */
    togglePin: (laneId: number) => setPins(toggled(pins, String(laneId))),
    toggleGroup: (key: string) => setCollapsed(toggled(collapsed, key)),
    foldAll: (isFolded: boolean) => {
      setCollapsed([]);
      setIsAllFolded(isFolded);
    },
  };
}
