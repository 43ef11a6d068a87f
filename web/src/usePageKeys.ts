import { useEffect } from "react";
import { isTyping } from "./keys";
import { linkTo, navigate } from "./url";
import type { View } from "./views";

/** The keys that work everywhere: digits go to views, a question mark opens the help. */
export function usePageKeys(views: readonly View[], setIsHelpOpen: (isOpen: boolean) => void): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (event.key === "?") setIsHelpOpen(true);
      const view = views[Number(event.key) - 1];
      if (/^[1-9]$/.test(event.key) && view !== undefined) navigate(linkTo(view.name));
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, [views, setIsHelpOpen]);
}
