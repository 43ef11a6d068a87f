/** An error message in one line; nothing without one. */
export function ErrorLine({ text }: { text: string | null | undefined }) {
  return text === null || text === undefined ? null : <div className="error-line">{text}</div>;
}
