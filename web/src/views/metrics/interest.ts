// Which metrics people look at first.
import type { Metric } from "../../api";
import { naturally } from "../../natural";

/** The names of metrics, most important first, as the server ranks them. */
export function byInterest(metrics: readonly Pick<Metric, "name" | "interest">[]): string[] {
  return [...metrics]
    .sort((one, other) => one.interest - other.interest || naturally(one.name, other.name))
    .map((metric) => metric.name);
}
