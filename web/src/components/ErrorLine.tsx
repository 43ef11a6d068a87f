/** An error message on one line; renders nothing without one. */
export function ErrorLine({ text }: { text: string | null | undefined }) {
  return text === null || text === undefined ? null : <div className="error-line">{text}</div>;
}
