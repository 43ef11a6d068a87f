// Where the time of each step went, and who is slower than the others: pure functions over what the server sent.
import type { Lane, Step, StepTime } from "../api";
import { isWaiting } from "../colours";

/** Roles whose lanes say how long a step takes, as most frameworks call them. */
const LEADING = /train|learn|driver|controller|actor|main/i;

/** The roles of a run, the one that leads its steps first. */
export function rolesOf(lanes: readonly Lane[]): string[] {
  const roles = [...new Set(lanes.map((lane) => lane.role))];
  return roles.sort(
    (one, other) => Number(LEADING.test(other)) - Number(LEADING.test(one)) || one.localeCompare(other),
  );
}

export interface Phases {
  steps: number[];
  /** By total time, the largest first. */
  phases: { name: string; seconds: number[]; total: number }[];
}

/** Returns, for each step, how long each state ran on an average lane of a role, in seconds. */
export function phasesByStep(times: readonly StepTime[], lanes: readonly Lane[], role: string, most = 8): Phases {
  const ofRole = new Set(lanes.filter((lane) => lane.role === role).map((lane) => lane.lane_id));
  const chosen = times.filter((time) => ofRole.has(time.lane_id));
  const steps = [...new Set(chosen.map((time) => time.step))].sort((one, other) => one - other);
  const places = new Map(steps.map((step, place) => [step, place]));
  const active = steps.map(() => new Set<number>());
  const sums = new Map<string, number[]>();
  for (const time of chosen) {
    const place = places.get(time.step)!;
    active[place]!.add(time.lane_id);
    let sum = sums.get(time.name);
    if (sum === undefined) sums.set(time.name, (sum = steps.map(() => 0)));
    sum[place]! += time.wall_ns / 1e9;
  }
  const phases = [...sums].map(([name, sum]) => {
    const seconds = sum.map((value, place) => value / active[place]!.size);
    return { name, seconds, total: seconds.reduce((one, other) => one + other, 0) };
  });
  phases.sort((one, other) => other.total - one.total);
  if (phases.length <= most) return { steps, phases };
  const rest = phases.slice(most - 1);
  const seconds = steps.map((_, place) => rest.reduce((sum, phase) => sum + phase.seconds[place]!, 0));
  return {
    steps,
    phases: [
      ...phases.slice(0, most - 1),
      { name: `${rest.length} others`, seconds, total: seconds.reduce((one, other) => one + other, 0) },
    ],
  };
}

export interface Straggler {
  role: string;
  rank: number | null;
  processId: string;
  name: string;
  /** How long one takes here, and on a usual process of the role. */
  averageNs: number;
  usualNs: number;
  ratio: number;
  laneId: number;
}

const MIN_PEERS = 3;
const MIN_COUNT = 3;

/** Finds processes on which a state takes much longer than on their peers of the same role, the worst first. */
export function stragglers(times: readonly StepTime[], lanes: readonly Lane[], least = 1.4): Straggler[] {
  const laneOf = new Map(lanes.map((lane) => [lane.lane_id, lane]));
  const groups = new Map<string, Map<string, { wall: number; count: number; lane: Lane }>>();
  for (const time of times) {
    const lane = laneOf.get(time.lane_id);
    if (lane === undefined) continue;
    const key = JSON.stringify([lane.role, time.name]);
    let group = groups.get(key);
    if (group === undefined) groups.set(key, (group = new Map<string, { wall: number; count: number; lane: Lane }>()));
    const sum = group.get(lane.process_id) ?? { wall: 0, count: 0, lane };
    sum.wall += time.wall_ns;
    sum.count += time.count;
    group.set(lane.process_id, sum);
  }
  const found: Straggler[] = [];
  for (const [key, group] of groups) {
    const members = [...group.values()].filter((one) => one.count >= MIN_COUNT);
    if (members.length < MIN_PEERS) continue;
    const usualNs = median(members.map((one) => one.wall / one.count));
    for (const { wall, count, lane } of members) {
      const ratio = wall / count / usualNs;
      // What is only a small part of the time may be slow without anybody waiting for it.
      if (ratio < least || wall < 0.05 * Math.max(...members.map((one) => one.wall))) continue;
      const name = (JSON.parse(key) as [string, string])[1];
      found.push({
        role: lane.role,
        rank: lane.rank,
        processId: lane.process_id,
        name,
        averageNs: wall / count,
        usualNs,
        ratio,
        laneId: lane.lane_id,
      });
    }
  }
  return found.sort((one, other) => other.ratio - one.ratio);
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((one, other) => one - other);
  const middle = sorted.length >> 1;
  return sorted.length === 0
    ? Number.NaN
    : sorted.length % 2 === 1
      ? sorted[middle]!
      : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** How long each finished step took: from its beginning to the next one's, in seconds. */
export function stepSeconds(steps: readonly Step[]): { step: number; seconds: number }[] {
  return steps
    .slice(0, -1)
    .map((step, place) => ({ step: step.step, seconds: (steps[place + 1]!.start_ns - step.start_ns) / 1e9 }));
}

/** How the last steps compare with those before: 0.2 means 20 % slower. Null while there are too few. */
export function slowdown(seconds: readonly number[], recent = 5): number | null {
  if (seconds.length < recent * 3) return null;
  return median(seconds.slice(-recent)) / median(seconds.slice(0, -recent)) - 1;
}

export interface RoleIdle {
  role: string;
  lanes: number;
  /** The average lane's share of time without a state, or in one that waits. */
  share: number;
  worst: { lane: Lane; share: number };
}

/** How much of the time of some finished steps the lanes of each role were idle: the size of the bubble. */
export function idleByRole(times: readonly StepTime[], lanes: readonly Lane[], steps: readonly Step[]): RoleIdle[] {
  const first = steps[0];
  const last = steps.at(-1);
  if (first === undefined || last === undefined || last.start_ns <= first.start_ns) return [];
  const whole = last.start_ns - first.start_ns;
  const busy = new Map<number, number>();
  for (const time of times) {
    if (time.step < first.step || time.step >= last.step) continue;
    busy.set(time.lane_id, (busy.get(time.lane_id) ?? 0) + (isWaiting(time.name) ? 0 : time.wall_ns));
  }
  const roles = new Map<string, { lane: Lane; share: number }[]>();
  for (const lane of lanes) {
    const wall = busy.get(lane.lane_id);
    if (wall === undefined) continue;
    const share = Math.min(1, Math.max(0, 1 - wall / whole));
    roles.set(lane.role, [...(roles.get(lane.role) ?? []), { lane, share }]);
  }
  return [...roles]
    .map(([role, members]) => ({
      role,
      lanes: members.length,
      share: members.reduce((sum, one) => sum + one.share, 0) / members.length,
      worst: members.reduce((most, one) => (one.share > most.share ? one : most)),
    }))
    .sort((one, other) => other.share - one.share);
}
