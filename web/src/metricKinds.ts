/** How the page treats each kind of metric; `rl_insight/metrics/kinds.py` declares the kinds. */
interface MetricKind {
  /** In the list of metrics. */
  short: string;
  /** Shown as its growth per second. */
  isRate: boolean;
  /** Shown as quantiles and their spread. */
  isDistribution: boolean;
}

const KINDS: Readonly<Record<string, MetricKind>> = {
  counter: { short: "count", isRate: true, isDistribution: false },
  gauge: { short: "gauge", isRate: false, isDistribution: false },
  histogram: { short: "dist", isRate: false, isDistribution: true },
};

/** A kind by its name in the API; an unknown kind is shown as plain values. */
export function kindOf(name: string): MetricKind {
  return KINDS[name] ?? { short: name, isRate: false, isDistribution: false };
}
