import { type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import { type Session, type Transcript, type TranscriptMessage, api } from "../../api";
import { SearchBox } from "../../components/SearchBox";
import { StatusBadge } from "../../components/StatusBadge";
import { PENDING } from "../../sessionStatus";
import { counted, formatCount, formatNumber, formatSeconds, formatTokens } from "../../units";
import { useQuery } from "../../useQuery";
import { asText, contains, cutBy, pieces, visible } from "./transcriptText";
import { ErrorLine } from "../../components/ErrorLine";

interface Props {
  run: string;
  session: Session;
}

/** Longer text is truncated until expanded. */
const SHORT = 3000;

/** A session as a conversation, if its text was recorded. */
export function TranscriptPanel({ run, session }: Props) {
  const isOpen = session.status === PENDING;
  const key = `transcript ${run} ${session.session_id} ${session.status ?? ""}`;
  const found = useQuery(
    key,
    (signal): Promise<Transcript | null> => api.transcript({ run, session_id: session.session_id }, signal),
    { live: isOpen, everyMs: 2000, keep: false },
  );
  const transcript = found.data; // null in a report that has no transcripts
  if (found.error !== undefined) return <ErrorLine text={found.error} />;
  if (transcript == null || transcript.messages.length === 0) return null;
  if (!transcript.is_captured)
    return (
      <section>
        <h3>Transcript</h3>
        <p className="muted">
          {`Not recorded: ${counted(transcript.messages.length, "text")} of this session. Text capture is off, or `}
          the session is not in the sample of its step. Set <code>recorder.capture_text</code> and{" "}
          <code>recorder.transcripts_per_step</code>.
        </p>
      </section>
    );
  return <Conversation transcript={transcript} />;
}

function Conversation({ transcript }: { transcript: Transcript }) {
  const [wanted, setWanted] = useState("");
  const [place, setPlace] = useState(0);
  const list = useRef<HTMLOListElement>(null);
  const hits = useMemo(
    () => transcript.messages.flatMap((message, index) => (contains(message, wanted) ? [index] : [])),
    [transcript, wanted],
  );
  const current = hits[place % Math.max(1, hits.length)];
  useEffect(() => {
    if (current !== undefined) list.current?.children[current]?.scrollIntoView({ block: "nearest" });
  }, [current, wanted]);
  return (
    <section aria-label="Transcript">
      <h3>{`Transcript (${formatCount(transcript.messages.length)})`}</h3>
      <div className="toolbar">
        <SearchBox
          value={wanted}
          onChange={(text) => {
            setWanted(text);
            setPlace(0);
          }}
          label="Search in the transcript"
          placeholder="Search in the transcript; Enter: next"
          hasKey={false}
          onEnter={(isBackwards) => setPlace(place + (isBackwards ? hits.length - 1 : 1))}
        />
        <span className="muted" role="status">
          {wanted === ""
            ? ""
            : hits.length === 0
              ? "not found"
              : `${(place % hits.length) + 1} of ${hits.length} messages`}
        </span>
        <span className="spacer" />
        <CopyButton text={() => asText(transcript)} />
      </div>
      <ol className="transcript" ref={list}>
        {transcript.messages.map((message, index) => (
          <Message key={index} message={message} wanted={wanted} isHit={index === current} />
        ))}
      </ol>
      <p className="transcript-end">
        <StatusBadge status={transcript.status} />
        {transcript.reward !== null && <b>{`Reward ${formatNumber(transcript.reward)}`}</b>}
        {transcript.tokens !== null && <span className="muted">{formatTokens(transcript.tokens)}</span>}
        {transcript.reason !== null && <span className="muted">{visible(transcript.reason)}</span>}
      </p>
      {transcript.is_cut && (
        <p className="muted">{`Truncated: the beginning of ${formatCount(transcript.characters)} characters.`}</p>
      )}
    </section>
  );
}

function CopyButton({ text }: { text: () => string }) {
  const [isCopied, setIsCopied] = useState(false);
  // Browsers allow the clipboard only on localhost and over TLS.
  const clipboard = navigator.clipboard as Clipboard | undefined;
  if (clipboard === undefined) return null;
  const copy = async () => {
    await clipboard.writeText(text());
    setIsCopied(true);
  };
  return (
    <button type="button" onClick={() => void copy()}>
      {isCopied ? "Copied" : "Copy transcript"}
    </button>
  );
}

interface MessageProps {
  message: TranscriptMessage;
  wanted: string;
  isHit: boolean;
}

function Message({ message, wanted, isHit }: MessageProps) {
  const kind = ["system", "user", "assistant", "tool"].includes(message.role) ? message.role : "other";
  const isBad = message.outcome === "error" || message.outcome === "cancelled";
  const facts = [
    message.tokens == null ? null : formatTokens(message.tokens),
    message.duration_s == null ? null : formatSeconds(message.duration_s),
    isBad || message.outcome === "open" ? message.outcome : null,
    message.tool == null || message.text ? `${formatCount(message.characters ?? 0)} characters` : null,
  ].filter((fact) => fact !== null);
  const head = (
    <>
      <b className="transcript-role">{visible(message.role)}</b>
      {message.tool != null && <code className="transcript-tool">{marked(visible(message.tool), wanted)}</code>}
      <span className={isBad ? "bad" : "muted"}>{facts.join(" · ")}</span>
    </>
  );
  const classes = `transcript-message is-${kind}${isHit ? " is-hit" : ""}`;
  if (message.tool == null)
    return (
      <li className={classes}>
        {(message.left_out ?? 0) > 0 && (
          <p className="muted">{`${formatCount(message.left_out)} earlier messages were omitted.`}</p>
        )}
        <header>{head}</header>
        <Body text={message.text} characters={message.characters} wanted={wanted} />
      </li>
    );
  return (
    <li className={classes}>
      <details open={contains(message, wanted) || undefined}>
        <summary>{head}</summary>
        {(message.arguments != null || (message.arguments_characters ?? 0) > 0) && (
          <>
            <h4>Arguments</h4>
            <Body text={message.arguments} characters={message.arguments_characters} wanted={wanted} isCode />
          </>
        )}
        {(message.text !== "" || (message.characters ?? 0) > 0) && (
          <>
            <h4>Result</h4>
            <Body text={message.text} characters={message.characters} wanted={wanted} isCode />
          </>
        )}
      </details>
    </li>
  );
}

interface BodyProps {
  text: string | null | undefined;
  characters: number | undefined;
  wanted: string;
  isCode?: boolean;
}

/** One piece of text: always a text node, whatever it contains. */
function Body({ text, characters = 0, wanted, isCode = false }: BodyProps) {
  const [isWhole, setIsWhole] = useState(false);
  const safe = useMemo(() => (text == null ? "" : visible(text)), [text]);
  if (text == null)
    return <p className="muted">{characters > 0 ? `${formatCount(characters)} characters, not recorded` : "–"}</p>;
  const isShort = isWhole || safe.length <= SHORT || wanted !== "";
  const missing = cutBy(text, characters);
  return (
    <>
      <div
        className={isCode ? "transcript-text mono" : "transcript-text"}
        dir="auto"
        // Scrollable, so it must be focusable with the keyboard.
        {...(isCode ? { tabIndex: 0 } : {})}
      >
        {marked(isShort ? safe : safe.slice(0, SHORT), wanted)}
      </div>
      {!isShort && (
        <button type="button" className="link-button" onClick={() => setIsWhole(true)}>
          {`Show all ${formatCount(safe.length)} characters`}
        </button>
      )}
      {missing > 0 && (
        <p className="warning">{`Truncated: ${formatCount(characters - missing)} of ${formatCount(characters)} characters were recorded.`}</p>
      )}
    </>
  );
}

function marked(text: string, wanted: string): ReactNode {
  if (wanted === "") return text;
  return pieces(text, wanted).map((piece, index) => (index % 2 === 1 ? <mark key={index}>{piece}</mark> : piece));
}
