import { useMemo } from "react";
import { type Line, type Metric, api, lineValue } from "../api";
import { colorOfIndex, lineColor } from "../colors";
import { kindOf } from "../metricKinds";
import { type Theme, useTheme } from "../theme";
import { metricFormatter } from "../units";
import { useQuery } from "../useQuery";
import { type Window, width, withMargins } from "./geometry";
import type { Strip } from "./scene";

const POINTS = 300;
const MAX_LINES = 12;
const LEAST_NS = 30e9;
const LEAST_RATE_NS = 2e9;

interface Asked {
  metric: string;
  kind: string;
  lines: Line[];
}

/** Loads metrics for the visible window (with margins, so that a small move needs no request). */
export function useStrips(
  run: string,
  names: readonly string[],
  metrics: readonly Metric[],
  window: Window | null,
  origin: number,
): Strip[] {
  const part = useMemo(() => (window === null ? null : rounded(window)), [window]);
  const kinds = useMemo(() => new Map(metrics.map((metric) => [metric.name, metric.kind])), [metrics]);
  const [theme] = useTheme();
  const known = names.filter((name) => kinds.has(name));
  const { data } = useQuery<Asked[]>(
    `strips ${run} ${JSON.stringify(known)} ${part?.start} ${part?.end}`,
    (signal) =>
      Promise.all(
        known.map(async (metric) => ({
          metric,
          kind: kinds.get(metric) ?? "",
          lines: await load(run, metric, kinds.get(metric) ?? "", part!, origin, signal),
        })),
      ),
    { enabled: part !== null && known.length > 0, everyMs: 1500 },
  );
  return useMemo(
    () =>
      known.flatMap((name) => {
        const found = data?.find((one) => one.metric === name);
        return found === undefined ? [] : [strip(found, origin, theme)];
      }),
    [data, origin, theme, JSON.stringify(known)],
  );
}

/** Rounds a window outward, so that following the run does not request another window on each frame. */
function rounded(window: Window): Window {
  // Metrics are sampled far less often than spans: a short window alone would contain no points.
  const wide = withMargins(window, Math.max(0.5, LEAST_NS / width(window) / 2));
  const grain = width(wide) / 8;
  return { start: Math.floor(wide.start / grain) * grain, end: Math.ceil(wide.end / grain) * grain };
}

function load(
  run: string,
  metric: string,
  kind: string,
  part: Window,
  origin: number,
  signal: AbortSignal,
): Promise<Line[]> {
  const { isRate, isDistribution } = kindOf(kind);
  const query = {
    run,
    metric,
    start_ns: BigInt(origin) + BigInt(Math.round(part.start)),
    end_ns: BigInt(origin) + BigInt(Math.round(part.end)),
    // Counters are sent every half second or so: a rate over a shorter time would only show the flushes.
    width: Math.max(isRate ? LEAST_RATE_NS : 1, Math.round(width(part) / POINTS)),
  };
  if (isDistribution) return api.metricQuantiles({ ...query, share: [0.5, 0.95] }, signal);
  return api.metricRange({ ...query, aggregation: isRate ? "rate" : "avg" }, signal);
}

function strip({ metric, kind, lines }: Asked, origin: number, theme: Theme): Strip {
  let low = Infinity;
  let high = -Infinity;
  const shown = lines.slice(0, MAX_LINES).map((line, place) => {
    const points = line.x
      .map((x, index) => [x - origin, lineValue(line.y[index])] as const)
      .filter((point): point is readonly [number, number] => point[1] !== null && Number.isFinite(point[1]));
    for (const [, y] of points) {
      low = Math.min(low, y);
      high = Math.max(high, y);
    }
    return {
      label: Object.values(line.labels).join(" "),
      color: lineColor(colorOfIndex(place), theme),
      x: Float64Array.from(points, ([x]) => x),
      y: Float64Array.from(points, ([, y]) => y),
    };
  });
  const isEmpty = low > high;
  const plain = metricFormatter(metric);
  const format = kindOf(kind).isRate ? (value: number | null | undefined) => `${plain(value)}/s` : plain;
  return { title: metric, format, lines: shown, low: isEmpty ? 0 : low, high: isEmpty ? 1 : high };
}
