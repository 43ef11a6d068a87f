// The statuses of sessions, in the order in which the page lists them.

export const PENDING = "pending";
/** Statuses of sessions that ended badly. */
export const BAD_STATUSES: readonly string[] = ["failed", "cancelled", "dropped", "lost"];
export const ENDED_STATUSES: readonly string[] = ["accepted", "rejected", ...BAD_STATUSES];
export const STATUSES: readonly string[] = [PENDING, ...ENDED_STATUSES];
