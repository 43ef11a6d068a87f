import { useMemo, useState } from "react";
import { type SpanQuery, api } from "../../api";
import { EmptyState } from "../../components/EmptyState";
import { Tooltip } from "../../components/Tooltip";
import { colourOfName, textOn } from "../../colours";
import { formatCount, formatDuration, formatShare, shorten } from "../../units";
import { useQuery } from "../../useQuery";
import { type FlameBox, type FlameNode, findNode, flameOf, layOut } from "./flame";

interface Props {
  run: string;
  conditions: SpanQuery;
  /** The node on show; empty for all. */
  zoom: string;
  onZoom: (path: string) => void;
}

const LONGEST = 3000;
const ROW = 25;

/** Where the time goes by role, name and children: the width is the time in which at least one such span ran. */
export function Flame({ run, conditions, zoom, onZoom }: Props) {
  const query: SpanQuery = { run, ...conditions, order: "longest", limit: LONGEST };
  // The longest spans carry the time; asking for all of a large run would not show more.
  const { data, error } = useQuery(`flame ${JSON.stringify(query)}`, async (signal) => ({ spans: await api.spans(query, signal), nowNs: Date.now() * 1e6 }), { everyMs: 10_000 });
  const roots = useMemo(() => (data === undefined ? [] : flameOf(data.spans, data.nowNs)), [data]);
  const shown = findNode(roots, zoom);
  const boxes = useMemo(() => layOut(shown === null ? roots : [shown]), [roots, shown]);
  const [hovered, setHovered] = useState<{ box: FlameBox; x: number; y: number } | null>(null);
  if (error !== undefined) return <div className="error-line">{error}</div>;
  if (data === undefined) return null;
  if (boxes.length === 0) return <EmptyState title="No spans in this scope" text="Choose a wider scope." />;
  const whole = boxes.filter((box) => box.depth === 0).reduce((sum, box) => sum + box.node.wallNs, 0);
  return (
    <>
      <p className="muted">
        {data.spans.length < LONGEST ? `All ${formatCount(data.spans.length)} spans of the scope.` : `The ${formatCount(LONGEST)} longest spans of the scope.`} Click to zoom in.{" "}
        {shown !== null && <button type="button" className="link-button" onClick={() => onZoom("")}>Show all</button>}
      </p>
      <div className="scroll">
        <div className="flame" role="group" aria-label="Flame graph" style={{ height: (Math.max(...boxes.map((box) => box.depth)) + 1) * ROW }}>
          {boxes.map((box) => (
            <button
              key={box.node.path}
              type="button"
              className={box.node.errors > 0 ? "has-errors" : ""}
              style={{ left: `${box.left * 100}%`, width: `${box.width * 100}%`, top: box.depth * ROW, height: ROW - 1, backgroundColor: box.depth === 0 && shown === null ? "var(--border)" : colourOfName(box.node.name), color: box.depth === 0 && shown === null ? "inherit" : textOn(colourOfName(box.node.name)) }}
              aria-label={`${box.node.name}: ${formatDuration(box.node.wallNs)}`}
              onPointerMove={(event) => setHovered({ box, x: event.clientX, y: event.clientY })}
              onPointerLeave={() => setHovered(null)}
              onClick={() => onZoom(box.node.path === zoom ? "" : box.node.path)}
            >
              {box.width > 0.03 ? shorten(box.node.name, 60) : ""}
            </button>
          ))}
        </div>
      </div>
      {hovered !== null && (
        <Tooltip x={hovered.x} y={hovered.y}>
          <NodeFacts node={hovered.box.node} share={hovered.box.node.wallNs / whole} />
        </Tooltip>
      )}
    </>
  );
}

function NodeFacts({ node, share }: { node: FlameNode; share: number }) {
  return (
    <>
      <strong>{shorten(node.name, 300)}</strong>
      <div>{`${formatDuration(node.wallNs)} wall time, ${formatShare(share)} of what is on show`}</div>
      {node.count > 0 && <div className="muted">{`${formatCount(node.count)} spans${node.errors > 0 ? `, ${formatCount(node.errors)} with an error` : ""}`}</div>}
    </>
  );
}
