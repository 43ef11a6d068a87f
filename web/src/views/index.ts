// The views, in the order of the navigation. A view is a file here that exports its component as default:
//   export default function Sessions({ run }: ViewProps) { ... }
// A listed view without a file is not shown.
import { type ComponentType, lazy } from "react";
import { retrying } from "./retrying";

export interface ViewProps {
  /** The visible run. */
  run: string;
}

export interface View {
  name: string;
  title: string;
  /** Path of a 20 x 20 icon, drawn with a stroke. */
  icon: string;
  component: ComponentType<ViewProps>;
}

const LISTED: readonly (readonly [name: string, title: string, icon: string])[] = [
  ["overview", "Overview", "M3 10l7-6 7 6M5 9v8h10V9"],
  ["timeline", "Timeline", "M3 5h9M6 10h11M4 15h7"],
  ["sessions", "Sessions", "M4 4h12v12H4zM4 8h12M8 8v8"],
  ["hotspots", "Hotspots", "M10 3c3 4 5 6 5 9a5 5 0 0 1-10 0c0-2 1-3 2-4 1 2 2 2 2 0 0-2 0-3 1-5z"],
  ["metrics", "Metrics", "M3 16l5-6 3 3 6-8"],
  ["hardware", "Hardware", "M6 6h8v8H6zM8 3v3M12 3v3M8 14v3M12 14v3M3 8h3M3 12h3M14 8h3M14 12h3"],
  ["logs", "Logs", "M4 5h12M4 9h12M4 13h8"],
  ["findings", "Findings", "M9 4a5 5 0 1 1 0 10A5 5 0 0 1 9 4zM13 13l4 4"],
  ["runs", "Runs", "M4 5h12v3H4zM4 11h12v3H4z"],
  ["changes", "Changes", "M3 14h6V6h8M9 14l-2-2M9 14l-2 2"],
  ["ranks", "Ranks", "M3 4h4v4H3zM8 4h4v4H8zM13 4h4v4h-4zM3 10h4v4H3zM8 10h4v4H8zM13 10h4v4h-4z"],
  ["processes", "Processes", "M4 4h5v5H4zM11 4h5v5h-5zM4 11h5v5H4zM11 11h5v5h-5z"],
  ["sql", "SQL", "M4 5l4 5-4 5M10 15h6"],
];

const files = import.meta.glob<{ default: ComponentType<ViewProps> }>("./*.tsx");

/** Loads all views, so that each can be shown while the server is down; a view that fails now is loaded when shown. */
export function preloadViews(): void {
  for (const load of Object.values(files)) load().catch(() => undefined);
}

export const VIEWS: readonly View[] = LISTED.flatMap(([name, title, icon]) => {
  const load = files[`./${name}.tsx`];
  return load === undefined ? [] : [{ name, title, icon, component: lazy(retrying(load)) }];
});
