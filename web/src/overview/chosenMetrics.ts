// Chooses the metrics of the overview: the server says which ones show the quantities that every run has.
import type { Metric } from "../api";
import { byInterest } from "../views/metrics/interest";

export type Quantity = NonNullable<Metric["quantity"]>;

/** Returns the metric that shows a quantity of the run; undefined if none does. */
export function metricOf(metrics: readonly Metric[], quantity: Quantity): string | undefined {
  return metrics.find((metric) => metric.quantity === quantity)?.name;
}

/** Metrics to show if none of the common ones exist. */
export function otherMetrics(
  metrics: readonly Metric[],
  taken: readonly (string | undefined)[],
  most: number,
): string[] {
  return byInterest(metrics.filter((metric) => !metric.is_hardware && !taken.includes(metric.name))).slice(0, most);
}
