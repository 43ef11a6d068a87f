/** A process, or a record that names its process; sessions may not. */
export interface ProcessPlace {
  role?: string | null;
  rank?: number | null;
  process_id?: string | null;
}

/** The display name of a process: `rollout 17`; without a role, its id. */
export function processTitle({ role, rank, process_id }: ProcessPlace): string {
  const name = role || process_id || "process";
  return rank == null ? name : `${name} ${rank}`;
}
