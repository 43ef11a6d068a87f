// Chooses the metrics of the overview: the common ones, under the names that frameworks use.
import { naturally } from "../natural";
import { isHardware } from "../views/metrics/interest";

/** For each place on the page, the names of its metric, best first. */
const WISHES = {
  reward: [
    /^(.*[/_.])?reward_?mean$/i,
    /^(critic_)?rewards?(_mean)?$/i,
    /reward.*(mean|avg|average)/i,
    /(score|return).*mean/i,
    /reward/i,
  ],
  throughput: [
    /tokens?_per_(s|sec|second)(_per_gpu)?$/i,
    /throughput/i,
    /(samples|sequences|episodes)_per_(s|second)/i,
    /(^|_)tgs$/i,
  ],
  staleness: [/stale(ness)?.*mean|stale(ness)?.*avg/i, /stale/i, /off_?policy/i, /(version|policy)_(lag|gap)/i],
} as const;

export type Wish = keyof typeof WISHES;

/** Returns the metric that matches best; undefined if none does. */
export function chooseMetric(names: readonly string[], wish: Wish): string | undefined {
  for (const pattern of WISHES[wish]) {
    // Of several matches, the shortest is the most general.
    const fitting = names
      .filter((name) => pattern.test(name))
      .sort((one, other) => one.length - other.length || naturally(one, other));
    if (fitting.length > 0) return fitting[0];
  }
  return undefined;
}

/** Metrics to show if none of the common ones exist. */
export function otherMetrics(names: readonly string[], taken: readonly (string | undefined)[], most: number): string[] {
  const ranked = [/^(.*[/_.])?loss/i, /kl/i, /entropy/i, /grad_?norm/i, /length/i, /./];
  const rank = (name: string) => ranked.findIndex((pattern) => pattern.test(name));
  return names
    .filter((name) => !taken.includes(name) && !isHardware(name))
    .sort((one, other) => rank(one) - rank(other) || naturally(one, other))
    .slice(0, most);
}
