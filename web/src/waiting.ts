/** Matches names that mean waiting: `schema/names.py` has the same pattern, and a test compares them. */
export const WAITING_PATTERN =
  "(?:^|[^A-Za-z])(?:wait|WAIT|waits|WAITS|waiting|WAITING|idle|IDLE|blocked|BLOCKED|barrier|BARRIER|starved|STARVED|paused|PAUSED|queued|QUEUED|pending|PENDING|bubble|BUBBLE|bubbles|BUBBLES|sleep|SLEEP|sleeping|SLEEPING)(?![a-z])|(?:^|[^A-Z])(?:Wait|Waits|Waiting|Idle|Blocked|Barrier|Starved|Paused|Queued|Pending|Bubble|Bubbles|Sleep|Sleeping)(?![a-z])";
