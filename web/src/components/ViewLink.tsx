import type { MouseEvent, ReactNode } from "react";
import { type LinkState, linkTo, navigate } from "../url";

interface Props {
  view: string;
  state?: LinkState;
  title?: string;
  className?: string;
  isCurrent?: boolean;
  children: ReactNode;
}

/** A link to another view, with some state; opens in place, or in a new tab like any link. */
export function ViewLink({ view, state = {}, title, className, isCurrent = false, children }: Props) {
  const address = linkTo(view, state);
  const onClick = (event: MouseEvent) => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    navigate(address);
  };
  return (
    <a
      href={address}
      onClick={onClick}
      title={title}
      className={className}
      aria-current={isCurrent ? "page" : undefined}
    >
      {children}
    </a>
  );
}
