/** A name with more marks in view than this, such as one per step, becomes a row of ticks, so that others stand out. */
const MANY_OF_ONE = 12;

/** The names with too many marks to draw a line and a head for each. */
export function frequentNames(marks: readonly { name: string }[]): ReadonlySet<string> {
  const counts = new Map<string, number>();
  for (const { name } of marks) counts.set(name, (counts.get(name) ?? 0) + 1);
  return new Set([...counts].filter(([, count]) => count > MANY_OF_ONE).map(([name]) => name));
}
