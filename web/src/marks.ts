// Events, checkpoints, restarts and annotations: shown on every time axis along with its data.
import { createContext, useContext } from "react";
import type { Mark } from "./api";
import { formatDuration, shorten } from "./units";
import { useAnswer } from "./useQuery";

const NO_MARKS: readonly Mark[] = [];

/** The marks of the visible run. */
export const MarksContext = createContext<readonly Mark[]>(NO_MARKS);

export function useMarks(): readonly Mark[] {
  return useContext(MarksContext);
}

/** Loads the marks of a run; undefined for none. */
export function useLoadedMarks(run: string | undefined): readonly Mark[] {
  const { data } = useAnswer("marks", { run: run! }, { enabled: run !== undefined, everyMs: 5000 });
  return data ?? NO_MARKS;
}

const TOKENS: Readonly<Record<string, string>> = {
  event: "--accent",
  checkpoint: "--text-muted",
  process: "--bad",
  annotation: "--good",
};

/** The theme's color of a mark. */
export function markToken(mark: Pick<Mark, "kind">): string {
  return TOKENS[mark.kind] ?? "--accent";
}

/** A mark as one line of text. */
export function markText(mark: Mark): string {
  const many = mark.count > 1 ? ` (${mark.count} times)` : "";
  const step = mark.step === null ? "" : `, step ${mark.step}`;
  const detail =
    mark.detail === null || mark.detail === "{}"
      ? ""
      : mark.kind === "checkpoint"
        ? ` ${formatDuration(Number(mark.detail))}`
        : ` ${shorten(mark.detail, 120)}`;
  return `${shorten(mark.name, 120)}${detail}${many}${step}`;
}
