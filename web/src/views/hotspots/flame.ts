// A flame graph of spans by the path of their names: role, then name, then the names of children.
import type { Span } from "../../api";
import { unionLength } from "../../statistics";

export interface FlameNode {
  name: string;
  /** The names from the root to here; tells nodes of one name apart. */
  path: string;
  count: number;
  errors: number;
  /** How long at least one of its spans ran, in nanoseconds. */
  wallNs: number;
  children: FlameNode[];
}

interface Growing {
  name: string;
  path: string;
  count: number;
  errors: number;
  intervals: [number, number][];
  children: Map<string, Growing>;
}

const SEPARATOR = "\u0000";

/** Gathers spans by path. A span whose parent is not among them stands under its role. */
export function flameOf(spans: readonly Span[], nowNs: number): FlameNode[] {
  const byId = new Map(spans.map((span) => [`${span.span_id}`, span]));
  const root: Growing = { name: "", path: "", count: 0, errors: 0, intervals: [], children: new Map() };
  for (const span of spans) {
    let node = root;
    for (const name of pathOf(span, byId)) node = child(node, name);
    node.count += 1;
    node.errors += span.status === "error" ? 1 : 0;
    node.intervals.push([span.start_ns, span.duration_ns === null ? nowNs : span.start_ns + span.duration_ns]);
  }
  return finished(root).children;
}

function pathOf(span: Span, byId: ReadonlyMap<string, Span>): string[] {
  const names: string[] = [];
  const seen = new Set<string>();
  let at: Span | undefined = span;
  while (at !== undefined && !seen.has(at.span_id)) {
    seen.add(at.span_id);
    names.push(at.name);
    at = at.parent_id === null ? undefined : byId.get(at.parent_id);
  }
  names.push(span.role || "no role");
  return names.reverse();
}

function child(node: Growing, name: string): Growing {
  let found = node.children.get(name);
  if (found === undefined) {
    found = { name, path: `${node.path}${SEPARATOR}${name}`, count: 0, errors: 0, intervals: [], children: new Map() };
    node.children.set(name, found);
  }
  return found;
}

function finished(node: Growing): FlameNode {
  const children = [...node.children.values()].map(finished).sort((one, other) => other.wallNs - one.wallNs);
  // A role, and a parent that is not among the spans, have no intervals of their own: their children's stand for them.
  const own = node.intervals.length > 0 ? node.intervals : [...node.children.values()].flatMap((one) => allIntervals(one));
  return { name: node.name, path: node.path, count: node.count, errors: node.errors, wallNs: unionLength(own), children };
}

function allIntervals(node: Growing): [number, number][] {
  return node.intervals.length > 0 ? node.intervals : [...node.children.values()].flatMap(allIntervals);
}

export interface FlameBox {
  node: FlameNode;
  depth: number;
  /** From 0 to 1. */
  left: number;
  width: number;
}

/** Lays the nodes out. Children that ran at the same time may need more room than their parent has: they share it. */
export function layOut(roots: readonly FlameNode[], narrowest = 0.001): FlameBox[] {
  const boxes: FlameBox[] = [];
  const place = (nodes: readonly FlameNode[], depth: number, left: number, width: number, whole: number) => {
    const sum = nodes.reduce((total, node) => total + node.wallNs, 0);
    const scale = width / Math.max(whole, sum, 1);
    let at = left;
    for (const node of nodes) {
      const own = node.wallNs * scale;
      if (own >= narrowest) {
        boxes.push({ node, depth, left: at, width: own });
        place(node.children, depth + 1, at, own, node.wallNs);
      }
      at += own;
    }
  };
  place(roots, 0, 0, 1, roots.reduce((total, node) => total + node.wallNs, 0));
  return boxes;
}

/** The node of a path, with its path's first part dropped from the layout: what zooming in shows. */
export function findNode(roots: readonly FlameNode[], path: string): FlameNode | null {
  for (const node of roots) {
    if (node.path === path) return node;
    if (path.startsWith(`${node.path}${SEPARATOR}`)) return findNode(node.children, path);
  }
  return null;
}
