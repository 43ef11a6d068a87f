import { Tooltip } from "../components/Tooltip";
import { processTitle } from "../processTitle";
import { formatClock, formatCount, formatDuration, shorten } from "../units";
import type { Hover, MarkHover } from "./inputs";

/** The description of a mark on the axis. */
export function MarkDetail({ hover, origin }: { hover: MarkHover; origin: number }) {
  return (
    <Tooltip x={hover.clientX} y={hover.clientY}>
      <strong>{hover.mark.text}</strong>
      <div className="muted">{formatClock(origin + hover.mark.time, true)}</div>
    </Tooltip>
  );
}

/** A short description of the item under the pointer. */
export function HoverDetail({ hover, origin }: { hover: Hover; origin: number }) {
  const { block, row } = hover;
  const isOne = block.count === 1;
  return (
    <Tooltip x={hover.clientX} y={hover.clientY}>
      <strong>{shorten(block.name, 200)}</strong>
      <div>
        {isOne
          ? formatDuration(block.end - block.start)
          : `${formatCount(block.count)} spans, ${formatDuration(block.busy)} in total`}
        {block.isOpen && <span className="warning"> still open</span>}
        {block.errors > 0 && <span className="bad"> {isOne ? "error" : `${formatCount(block.errors)} errors`}</span>}
      </div>
      <div className="muted">
        {processTitle(row.lane)} · {shorten(row.title, 60)} · {formatClock(origin + block.start, true)}
      </div>
    </Tooltip>
  );
}
