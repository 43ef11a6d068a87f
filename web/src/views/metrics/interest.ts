// Which metrics people look at first.
import { naturally } from "../../natural";

const ORDER: readonly RegExp[] = [
  /reward|score|accuracy/i,
  /step_time|time_seconds/i,
  /throughput|tokens_per/i,
  /loss|(^|_)kl($|_)|entropy/i,
];

/** Hardware has a dedicated view. */
export function isHardware(name: string): boolean {
  return /^(gpu|gpu_process|node|process)_/.test(name);
}

function rank(name: string): number {
  if (isHardware(name)) return ORDER.length + 1;
  const place = ORDER.findIndex((pattern) => pattern.test(name));
  return place < 0 ? ORDER.length : place;
}

/** Names, most important first. */
export function byInterest(names: readonly string[]): string[] {
  return [...names].sort((one, other) => rank(one) - rank(other) || naturally(one, other));
}
