import { type SubmitEvent, useState } from "react";
import { api, errorText } from "../api";
import { markText, useMarks } from "../marks";
import { formatClock } from "../units";
import type { Window } from "./geometry";

interface Props {
  run: string;
  range: Window;
  origin: number;
}

/** The marks in a range, and a field to annotate its start. */
export function Annotations({ run, range, origin }: Props) {
  const [text, setText] = useState("");
  const [message, setMessage] = useState("");
  const marks = useMarks().filter((mark) => mark.time_ns - origin >= range.start && mark.time_ns - origin <= range.end);
  const send = (timeNs: bigint, what: string, said: string) => {
    api.annotate(run, timeNs, what).then(
      () => setMessage(said),
      (error: unknown) => setMessage(errorText(error)),
    );
  };
  const onSubmit = (event: SubmitEvent) => {
    event.preventDefault();
    if (text.trim() === "") return;
    const timeNs = BigInt(origin) + BigInt(Math.round(range.start));
    // Nanoseconds since 1970 exceed 2^53: multiples of 1024 survive the conversion to a number.
    send(timeNs + 1024n - (timeNs % 1024n), text, "Saved. It will appear on every time axis.");
    setText("");
  };
  return (
    <section>
      {marks.length > 0 && <h3>Marks</h3>}
      {marks.slice(0, 50).map((mark, place) => (
        <div key={place} className="side-line">
          <span className="mono muted">{formatClock(mark.time_ns)}</span> {markText(mark)}{" "}
          {mark.kind === "annotation" && (
            <button
              type="button"
              className="link-button"
              onClick={() => send(BigInt(mark.time_ns), "", "Removed.")}
              aria-label={`Remove the annotation ${mark.name}`}
            >
              remove
            </button>
          )}
        </div>
      ))}
      <form className="toolbar" onSubmit={onSubmit}>
        <input
          className="search"
          aria-label="Annotate the start of this range"
          placeholder="Add an annotation"
          maxLength={1000}
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        <button type="submit">Save</button>
        {message !== "" && (
          <span className="muted" role="status">
            {message}
          </span>
        )}
      </form>
    </section>
  );
}
