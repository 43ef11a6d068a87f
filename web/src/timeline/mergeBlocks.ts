// Merges a response for the newest time range into the loaded blocks, so that following a run does not reload it
// repeatedly.
import { type Blocks, packed } from "./blocks";
import type { Window } from "./geometry";

type Place = readonly [blocks: Blocks, index: number];

/** Returns the old blocks that ended before the new window, and all of the new ones, within `window`. */
export function mergeBlocks(old: Blocks, news: Blocks, window: Window): Blocks {
  const names: string[] = [...old.names];
  const places = new Map(names.map((name, place) => [name, place]));
  const renamed = Int32Array.from(news.names, (name) => {
    let place = places.get(name);
    if (place === undefined) {
      place = names.length;
      names.push(name);
      places.set(name, place);
    }
    return place;
  });
  const lanes: number[] = [];
  const chosen: Place[] = [];
  for (const lane of [...new Set([...old.lanes.keys(), ...news.lanes.keys()])].sort((one, other) => one - other)) {
    for (const place of laneBlocks(old, news, lane, window)) {
      lanes.push(lane);
      chosen.push(place);
    }
  }
  const placesIn = new Map<Blocks, Int32Array>(
    [old, news].map((one) => [one, new Int32Array(one.start.length).fill(-1)]),
  );
  chosen.forEach(([blocks, index], place) => (placesIn.get(blocks)![index] = place));
  const arrived = new Map<string, number>();
  chosen.forEach(([blocks, index], place) => blocks === news && arrived.set(news.spanId[index]!, place));
  const parentOf = ([blocks, index]: Place) => {
    const parent = blocks.parent[index]!;
    if (parent < 0) return -1;
    const place = placesIn.get(blocks)![parent]!;
    // A block that has ended can be inside one that continues, which is in the new response.
    return place < 0 ? (arrived.get(blocks.spanId[parent]!) ?? -1) : place;
  };
  const numbers = (column: "start" | "end" | "count" | "busy" | "errors") =>
    Float64Array.from(chosen, ([blocks, index]) => blocks[column][index]!);
  return packed({
    window,
    pixelNs: Math.max(old.pixelNs, news.pixelNs),
    fetchedAt: news.fetchedAt,
    onlyLanes: old.onlyLanes,
    names,
    laneId: lanes,
    name: Int32Array.from(chosen, ([blocks, index]) =>
      blocks === news ? renamed[blocks.name[index]!]! : blocks.name[index]!,
    ),
    depth: Int32Array.from(chosen, ([blocks, index]) => blocks.depth[index]!),
    parent: Int32Array.from(chosen, parentOf),
    start: numbers("start"),
    end: numbers("end"),
    count: numbers("count"),
    busy: numbers("busy"),
    errors: numbers("errors"),
    isOpen: Uint8Array.from(chosen, ([blocks, index]) => blocks.isOpen[index]!),
    step:
      old.step === null || news.step === null
        ? null
        : Float64Array.from(chosen, ([blocks, index]) => blocks.step![index]!),
    spanId: chosen.map(([blocks, index]) => blocks.spanId[index]!),
  });
}

/** A lane's blocks by depth, then by start. */
function laneBlocks(old: Blocks, news: Blocks, lane: number, window: Window): Place[] {
  const found: Place[] = [];
  const before = old.lanes.get(lane);
  for (let index = before?.first ?? 0; index < (before?.end ?? 0); index += 1) {
    // Open blocks and those that reach into the new window are in the new response.
    const isSettled = old.isOpen[index] === 0 && old.end[index]! < news.window.start;
    if (isSettled && old.end[index]! >= window.start) found.push([old, index]);
  }
  const after = news.lanes.get(lane);
  for (let index = after?.first ?? 0; index < (after?.end ?? 0); index += 1) found.push([news, index]);
  return found.sort(
    ([one, at], [other, place]) => one.depth[at]! - other.depth[place]! || one.start[at]! - other.start[place]!,
  );
}
