// The scope of the hotspots in the address, and its conditions for the server.
import type { HotspotQuery, QueryOf, Step } from "../../api";

export type SeriesQuery = Omit<QueryOf<"spans/series">, "name">;

export const SCOPES = ["latest", "last", "step", "all", "window"] as const;
export type ScopeKind = (typeof SCOPES)[number];

export interface Scope {
  kind: ScopeKind;
  /** For `last`: how many steps. */
  count: number;
  /** For `step`. */
  step: number;
  /** For `window`: seconds since 1970. */
  from: number;
  to: number;
}

/** The conditions for the hotspots and the flame. */
export function hotspotConditions(scope: Scope): HotspotQuery {
  switch (scope.kind) {
    case "latest":
      return { last_steps: 1 };
    case "last":
      return { last_steps: Math.max(1, Math.round(scope.count)) };
    case "step":
      return { step: Math.round(scope.step) };
    case "window":
      return scope.to > scope.from
        ? { start_ns: Math.round(scope.from * 1e9), end_ns: Math.round(scope.to * 1e9) }
        : {};
    case "all":
      return {};
  }
}

/** The time range of a scope, if known, in nanoseconds: for links into the timeline. */
export function scopeWindow(scope: Scope, steps: readonly Step[]): readonly [number, number] | null {
  if (scope.kind === "window") return scope.to > scope.from ? [scope.from * 1e9, scope.to * 1e9] : null;
  if (scope.kind === "all") return null;
  const latest = steps.at(-1)?.step ?? 0;
  const first = scope.kind === "step" ? scope.step : scope.kind === "last" ? latest - scope.count + 1 : latest;
  const last = scope.kind === "step" ? scope.step : latest;
  const shown = steps.filter((one) => one.step >= first && one.step <= last);
  if (shown.length === 0) return null;
  return [
    Math.min(...shown.map((one) => one.start_ns)),
    Math.max(...shown.map((one) => one.end_ns ?? Date.now() * 1e6)),
  ];
}

/** The conditions for the series of a name, which cover the entire run unless a step or a window is chosen. */
export function seriesConditions(scope: Scope): SeriesQuery {
  if (scope.kind === "step") return { first_step: Math.round(scope.step), last_step: Math.round(scope.step) };
  if (scope.kind !== "window" || scope.to <= scope.from) return {};
  return { start_ns: Math.round(scope.from * 1e9), end_ns: Math.round(scope.to * 1e9) };
}
