/** An answer is on the way: nothing here yet does not mean that there is nothing. */
export function Loading({ text = "Loading…" }: { text?: string }) {
  return (
    <div className="loading" role="status">
      {text}
    </div>
  );
}
