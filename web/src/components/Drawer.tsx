import { type ReactNode, useEffect, useRef } from "react";
import { isTyping } from "../keys";

interface Props {
  title: ReactNode;
  onClose: () => void;
  children: ReactNode;
}

/** Details next to the view: Escape closes it, and the view stays usable. */
export function Drawer({ title, onClose, children }: Props) {
  const close = useRef(onClose);
  close.current = onClose;
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !isTyping(event.target) && document.querySelector("dialog[open]") === null)
        close.current();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
  return (
    <aside className="side-panel is-wide" aria-label="Details">
      <header>
        <h2>{title}</h2>
        <button type="button" className="icon-button" onClick={onClose} aria-label="Close" title="Close (Esc)">
          ×
        </button>
      </header>
      <div className="side-panel-body">{children}</div>
    </aside>
  );
}
