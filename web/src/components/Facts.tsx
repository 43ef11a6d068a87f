import type { ReactNode } from "react";

export type Fact = readonly [name: string, value: ReactNode];

/** Names and values; missing values are omitted. With `isWide`, in as many columns as fit. */
export function Facts({ facts, isWide = false }: { facts: readonly Fact[]; isWide?: boolean }) {
  const known = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return (
    <dl className={isWide ? "facts is-wide" : "facts"}>
      {known.map(([name, value]) => (
        <div key={name}>
          <dt title={name}>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Attributes as facts: strings unchanged, anything else as JSON. */
export function factsOf(attributes: Readonly<Record<string, unknown>>): Fact[] {
  return Object.entries(attributes).map(([name, value]) => [
    name,
    typeof value === "string" ? value : JSON.stringify(value),
  ]);
}
