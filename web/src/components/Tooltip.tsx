import type { ReactNode } from "react";
import { createPortal } from "react-dom";

interface Props {
  /** Where the pointer is, in the window. */
  x: number;
  y: number;
  children: ReactNode;
}

const WIDTH = 380;

/** A box next to the pointer that stays inside the window and ignores pointer events. */
export function Tooltip({ x, y, children }: Props) {
  const isRight = x > window.innerWidth - WIDTH;
  const isLow = y > window.innerHeight - 220;
  const style = {
    left: isRight ? undefined : x + 14,
    right: isRight ? window.innerWidth - x + 14 : undefined,
    top: isLow ? undefined : y + 14,
    bottom: isLow ? window.innerHeight - y + 14 : undefined,
  };
  return createPortal(
    <div className="tooltip" role="tooltip" style={style}>
      {children}
    </div>,
    document.body,
  );
}
