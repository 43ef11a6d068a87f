import type { ReactNode } from "react";

interface Props {
  title: ReactNode;
  /** A number next to the title. */
  value?: ReactNode;
  /** Controls at the right. */
  actions?: ReactNode;
  className?: string;
  children: ReactNode;
}

/** A titled box. */
export function Panel({ title, value, actions, className, children }: Props) {
  return (
    <section className={className === undefined ? "panel" : `panel ${className}`}>
      <header>
        <h2>{title}</h2>
        {value !== undefined && <span className="panel-value">{value}</span>}
        {actions !== undefined && <div className="panel-actions">{actions}</div>}
      </header>
      <div className="panel-body">{children}</div>
    </section>
  );
}
