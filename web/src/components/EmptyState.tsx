import type { ReactNode } from "react";
import { Snippet } from "./Snippet";

interface Props {
  title: string;
  text?: string;
  /** An example to copy. */
  code?: string;
  children?: ReactNode;
}

/** Explains why there is no data, and what to do about it. */
export function EmptyState({ title, text, code, children }: Props) {
  return (
    <div className="empty" role="status">
      <strong>{title}</strong>
      {text !== undefined && <p>{text}</p>}
      {code !== undefined && <Snippet code={code} />}
      {children}
    </div>
  );
}
