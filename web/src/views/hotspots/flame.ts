// The layout of a flame graph.
import type { FlameNode } from "../../api";

const SEPARATOR = "\u0000";

export interface FlameBox {
  node: FlameNode;
  /** The names from the root to here; distinguishes nodes with the same name. */
  path: string;
  depth: number;
  /** From 0 to 1. */
  left: number;
  width: number;
}

interface Placed {
  node: FlameNode;
  path: string;
}

/** Lays nodes out by the sum of their durations, so that a child's width is its share of its parents' time.
 *
 * Concurrent children may need more room than their parent has: they share it.
 */
export function layOut(roots: readonly Placed[], narrowest = 0.001): FlameBox[] {
  const boxes: FlameBox[] = [];
  const place = (nodes: readonly Placed[], depth: number, left: number, width: number, whole: number) => {
    const sum = nodes.reduce((total, { node }) => total + node.total_ns, 0);
    const scale = width / Math.max(whole, sum, 1);
    let at = left;
    for (const { node, path } of nodes) {
      const own = node.total_ns * scale;
      if (own >= narrowest) {
        boxes.push({ node, path, depth, left: at, width: own });
        place(placed(node.children ?? [], path), depth + 1, at, own, node.total_ns);
      }
      at += own;
    }
  };
  place(
    roots,
    0,
    0,
    1,
    roots.reduce((total, { node }) => total + node.total_ns, 0),
  );
  return boxes;
}

/** Nodes with their paths. */
export function placed(nodes: readonly FlameNode[], path = ""): Placed[] {
  return nodes.map((node) => ({ node, path: `${path}${SEPARATOR}${node.name}` }));
}

/** The node at a path, for zooming in. */
export function findNode(nodes: readonly Placed[], path: string): Placed | null {
  for (const one of nodes) {
    if (one.path === path) return one;
    if (path.startsWith(`${one.path}${SEPARATOR}`)) return findNode(placed(one.node.children ?? [], one.path), path);
  }
  return null;
}
