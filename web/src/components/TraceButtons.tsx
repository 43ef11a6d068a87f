import { useState } from "react";
import { type TraceQuery, errorText } from "../api";
import { openInPerfetto, saveTrace } from "../perfetto";

interface Props {
  /** The part of the run to export; called when a button is clicked. */
  query: () => TraceQuery;
  /** A description of the trace's content: `the visible part`. */
  what: string;
  title: string;
  /** Called with a message for the user; null if there is none. */
  onMessage: (message: string | null) => void;
}

/** Opens a part of the run in Perfetto, or saves it as a trace file. */
export function TraceButtons({ query, what, title, onMessage }: Props) {
  const [isBusy, setIsBusy] = useState(false);
  const begin = (work: Promise<string | null>) => {
    setIsBusy(true);
    onMessage(null);
    work
      .then(
        (message) => onMessage(message),
        (error: unknown) => onMessage(errorText(error)),
      )
      .finally(() => setIsBusy(false));
  };
  return (
    <span className="toolbar trace-buttons" aria-busy={isBusy}>
      <button
        type="button"
        disabled={isBusy}
        onClick={() => begin(openInPerfetto(query(), title))}
        title={`Open ${what} in ui.perfetto.dev. The trace is passed to that tab directly and not uploaded. Without internet access it is saved as a file.`}
      >
        {isBusy ? "Perfetto …" : "Perfetto ↗"}
      </button>
      <button
        type="button"
        className="icon-button"
        disabled={isBusy}
        onClick={() => begin(saveTrace(query(), title))}
        aria-label="Save as trace"
        title={`Save ${what} as a trace file for Perfetto or chrome://tracing`}
      >
        ⤓
      </button>
    </span>
  );
}
