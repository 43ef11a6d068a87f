import { useMemo, useState } from "react";
import type { FlameNode, HotspotQuery } from "../../api";
import { EmptyState } from "../../components/EmptyState";
import { Tooltip } from "../../components/Tooltip";
import { colorOfName, textOn } from "../../colors";
import { formatCount, formatDuration, formatShare, shorten } from "../../units";
import { useAnswer } from "../../useQuery";
import { type FlameBox, findNode, layOut, placed } from "./flame";
import { ErrorLine } from "../../components/ErrorLine";
import { sumOf } from "../../statistics";

interface Props {
  run: string;
  conditions: HotspotQuery;
  /** The selected node; empty for all. */
  zoom: string;
  onZoom: (path: string) => void;
}

const ROW = 25;

/** Where the time goes by role, name and children: the width is the sum of their durations. */
export function Flame({ run, conditions, zoom, onZoom }: Props) {
  const query = { run, ...conditions };
  const { data, error } = useAnswer("hotspots/flame", query, { everyMs: 5000 });
  const roots = useMemo(() => placed(data?.roots ?? []), [data]);
  const shown = findNode(roots, zoom);
  const boxes = useMemo(() => layOut(shown === null ? roots : [shown]), [roots, shown?.path]);
  const [hovered, setHovered] = useState<{ box: FlameBox; x: number; y: number } | null>(null);
  if (error !== undefined) return <ErrorLine text={error} />;
  if (data === undefined) return null;
  if (boxes.length === 0) return <EmptyState title="No spans in this scope" text="Choose a wider scope." />;
  const whole = sumOf(boxes.filter((box) => box.depth === 0).map((box) => box.node.total_ns));
  return (
    <>
      <p className="muted">
        {data.left_out === 0
          ? `All ${formatCount(data.spans)} spans of the scope.`
          : `The ${formatCount(data.spans)} longest of ${formatCount(data.spans + data.left_out)} spans.`}{" "}
        Click to zoom in.{" "}
        {shown !== null && (
          <button type="button" className="link-button" onClick={() => onZoom("")}>
            Show all
          </button>
        )}
      </p>
      <div className="scroll">
        <div
          className="flame"
          role="group"
          aria-label="Flame graph"
          style={{ height: (Math.max(...boxes.map((box) => box.depth)) + 1) * ROW }}
        >
          {boxes.map((box) => (
            <button
              key={box.path}
              type="button"
              className={box.node.errors > 0 ? "has-errors" : ""}
              style={{
                left: `${box.left * 100}%`,
                width: `${box.width * 100}%`,
                top: box.depth * ROW,
                height: ROW - 1,
                backgroundColor: box.depth === 0 && shown === null ? "var(--border)" : colorOfName(box.node.name),
                color: box.depth === 0 && shown === null ? "inherit" : textOn(colorOfName(box.node.name)),
              }}
              aria-label={`${nameOf(box)}: ${formatDuration(box.node.total_ns)}`}
              onPointerMove={(event) => setHovered({ box, x: event.clientX, y: event.clientY })}
              onPointerLeave={() => setHovered(null)}
              onClick={() => onZoom(box.path === zoom ? "" : box.path)}
            >
              {box.width > 0.03 ? shorten(nameOf(box), 60) : ""}
            </button>
          ))}
        </div>
      </div>
      {hovered !== null && (
        <Tooltip x={hovered.x} y={hovered.y}>
          <NodeFacts name={nameOf(hovered.box)} node={hovered.box.node} share={hovered.box.node.total_ns / whole} />
        </Tooltip>
      )}
    </>
  );
}

/** A role may have no name. */
function nameOf(box: FlameBox): string {
  return box.node.name === "" ? "no role" : box.node.name;
}

function NodeFacts({ name, node, share }: { name: string; node: FlameNode; share: number }) {
  return (
    <>
      <strong>{shorten(name, 300)}</strong>
      <div>{`${formatDuration(node.total_ns)} in total, ${formatShare(share)} of the visible time`}</div>
      <div className="muted">{`at least one ran for ${formatDuration(node.wall_ns)}`}</div>
      {node.count > 0 && (
        <div className="muted">{`${formatCount(node.count)} spans${node.errors > 0 ? `, ${formatCount(node.errors)} with an error` : ""}`}</div>
      )}
    </>
  );
}
