const TAIL = 5;

interface Props {
  text: string;
  /** The tooltip, by default the text; null inside a link that has one. */
  title?: string | null;
  className?: string;
}

/** An id or a name on one line. Without room for all of it, its end stays visible: long ids often differ only there. */
export function LongText({ text, title = text, className = "" }: Props) {
  const place = text.length > TAIL ? text.length - TAIL : text.length;
  return (
    <span className={`long-text ${className}`} title={title ?? undefined} aria-label={text}>
      <span>{text.slice(0, place)}</span>
      <span>{text.slice(place)}</span>
    </span>
  );
}
