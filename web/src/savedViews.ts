// Saved views and pinned metrics, shared by all users of the server.
import { useCallback, useState } from "react";
import { type SavedViews, api, errorText } from "./api";
import { reportFacts } from "./reportFacts";
import { useAnswer } from "./useQuery";

const NOTHING: SavedViews = { views: [], pins: [] };

/** The saved views and pins, and how to change them; a report has none. */
export function useSavedViews() {
  const [changed, setChanged] = useState<SavedViews | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const { data } = useAnswer("views", {}, { enabled: reportFacts() === null, live: false, everyMs: 10_000 });
  const take = useCallback((answer: Promise<SavedViews>) => {
    answer.then(
      (saved) => {
        setChanged(saved);
        setProblem(null);
      },
      (failure: unknown) => setProblem(errorText(failure)),
    );
  }, []);
  const saved = changed ?? data ?? NOTHING;
  return {
    views: saved.views ?? [],
    pins: saved.pins ?? [],
    problem,
    save: (name: string, address: string) => take(api.saveView(name, address)),
    pin: (metric: string, isPinned: boolean) => take(api.pinMetric(metric, isPinned)),
  };
}
