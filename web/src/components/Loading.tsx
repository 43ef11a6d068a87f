/** Shown until the first response: no data yet does not mean that there is none. */
export function Loading({ text = "Loading…" }: { text?: string }) {
  return (
    <div className="loading" role="status">
      {text}
    </div>
  );
}
