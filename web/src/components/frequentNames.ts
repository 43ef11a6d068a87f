/** A name with more marks than these in view, such as one of every step, is a row of ticks: others stand out. */
const MANY_OF_ONE = 12;

/** The names whose marks are too many to have a line and a head each. */
export function frequentNames(marks: readonly { name: string }[]): ReadonlySet<string> {
  const counts = new Map<string, number>();
  for (const { name } of marks) counts.set(name, (counts.get(name) ?? 0) + 1);
  return new Set([...counts].filter(([, count]) => count > MANY_OF_ONE).map(([name]) => name));
}
