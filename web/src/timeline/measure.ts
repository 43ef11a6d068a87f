// Statistics of a drawn frame: benchmarks must know that there was something to draw.
import { covers } from "./geometry";
import { type LaneRow } from "./layout";
import { type Scene, lanesTop } from "./scene";

/** The number of spans on the visible lanes in the visible window; 0 while their blocks are loading. */
export function spansShown({ fine, window, layout, scrollTop, height, strips }: Scene): number {
  if (fine === null || !covers(fine.window, window)) return 0;
  const bottom = scrollTop + height - lanesTop(strips.length);
  const lanes = layout.rows.filter(
    (row): row is LaneRow => row.kind === "lane" && row.y < bottom && row.y + row.height > scrollTop,
  );
  let found = 0;
  for (const { lane } of lanes) {
    const blocks = fine.lanes.get(lane.lane_id);
    for (let index = blocks?.first ?? 0; index < (blocks?.end ?? 0); index += 1) {
      if (fine.start[index]! < window.end && fine.end[index]! > window.start) found += fine.count[index]!;
    }
  }
  return found;
}
