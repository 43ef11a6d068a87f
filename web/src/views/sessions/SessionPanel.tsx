import { useState } from "react";
import { type Session, api } from "../../api";
import { Drawer } from "../../components/Drawer";
import { Facts, type Fact, factsOf } from "../../components/Facts";
import { LogLines } from "../../components/LogLines";
import { StatusBadge } from "../../components/StatusBadge";
import { TraceButtons } from "../../components/TraceButtons";
import { ViewLink } from "../../components/ViewLink";
import { processTitle } from "../../processTitle";
import { nowMs, reportFacts } from "../../reportFacts";
import { PENDING } from "../../sessionStatus";
import { formatClock, formatCount, formatNumber, formatSeconds, formatTokens } from "../../units";
import { useAnswer, useQuery } from "../../useQuery";
import { timelineWindow } from "../links";
import { TranscriptPanel } from "./TranscriptPanel";
import { Waterfall } from "./Waterfall";
import { extentOf } from "./gantt";
import { ErrorLine } from "../../components/ErrorLine";

interface Props {
  run: string;
  sessionId: string;
  onClose: () => void;
}

const MOST_SPANS = 1000;

/** One session: its outcome, waterfall, events, logs and counters. */
export function SessionPanel({ run, sessionId, onClose }: Props) {
  const session = useAnswer("sessions", { run, session_id: sessionId, limit: 1 }, { everyMs: 2000, keep: false });
  const found = session.data?.sessions[0];
  const isOpen = found?.status === PENDING;
  const options = { live: isOpen, everyMs: 2000, keep: false, enabled: found !== undefined };
  // Load a finished session once more, to include its last spans.
  const key = `${run} ${sessionId} ${found?.status ?? ""}`;
  const spans = useQuery(
    `spans ${key}`,
    (signal) => api.spans({ run, session_id: sessionId, order: "oldest", limit: MOST_SPANS }, signal),
    options,
  );
  const events = useQuery(
    `events ${key}`,
    (signal) => api.events({ run, session_id: sessionId, newest_first: false, limit: 500 }, signal),
    options,
  );
  const logs = useQuery(
    `logs ${key}`,
    (signal) => api.logs({ run, session_id: sessionId, newest_first: false, limit: 500 }, signal),
    options,
  );
  // Text that was recorded after its span is part of the transcript.
  const shownEvents = (events.data ?? []).filter((event) => event.name !== "rl_insight.texts");
  const now = nowMs() / 1000;
  return (
    <Drawer
      title={
        <>
          Session <code>{sessionId}</code>
        </>
      }
      onClose={onClose}
    >
      <ErrorLine text={session.error} />
      {session.data !== undefined && found === undefined && <p>This run has no session with that id.</p>}
      {found !== undefined && (
        <>
          <Summary run={run} session={found} now={now} />
          <TranscriptPanel run={run} session={found} />
          <section>
            <h3>Waterfall</h3>
            <Waterfall session={found} spans={spans.data ?? []} events={shownEvents} now={now} />
          </section>
          <Counters session={found} />
          <section>
            <h3>{`Events (${shownEvents.length})`}</h3>
            {shownEvents.map((event, index) => (
              <div key={index} className="side-line">
                <span className="mono muted">{formatClock(event.time_ns, true)}</span> {event.name}
                {Object.keys(event.attributes).length > 0 && (
                  <code className="muted"> {JSON.stringify(event.attributes)}</code>
                )}
              </div>
            ))}
          </section>
          <section>
            <h3>
              {`Logs (${logs.data?.length ?? 0})`}{" "}
              {(logs.data?.length ?? 0) > 0 && (
                <ViewLink view="logs" state={{ session: sessionId }}>
                  open in Logs
                </ViewLink>
              )}
            </h3>
            <LogLines lines={logs.data ?? []} />
          </section>
        </>
      )}
    </Drawer>
  );
}

function Summary({ run, session, now }: { run: string; session: Session; now: number }) {
  const [traceMessage, setTraceMessage] = useState<string | null>(null);
  const [from, to] = extentOf(session, now);
  const facts: Fact[] = [
    [
      "Task",
      session.task_id == null ? null : (
        <ViewLink view="sessions" state={{ search: `task:"${session.task_id}"` }} title="All samples of this task">
          {session.task_id}
        </ViewLink>
      ),
    ],
    [
      "Step",
      session.step == null ? null : (
        <ViewLink view="sessions" state={{ search: `step:${session.step}` }}>
          {formatCount(session.step)}
        </ViewLink>
      ),
    ],
    ["Process", processTitle(session)],
    ["Total", session.total_s == null ? `open for ${formatSeconds(to - from)}` : formatSeconds(session.total_s)],
    ["Queue wait", session.queue_wait_s == null ? null : formatSeconds(session.queue_wait_s)],
    ["Runner wait", session.runner_wait_s == null ? null : formatSeconds(session.runner_wait_s)],
    ["Post wait", session.post_wait_s == null ? null : formatSeconds(session.post_wait_s)],
    ...Object.entries(session.phase_seconds ?? {}).map(([name, seconds]): Fact => [name, formatSeconds(seconds)]),
    ["Reward", session.reward == null ? null : formatNumber(session.reward)],
    ["Tokens", session.tokens == null ? null : formatTokens(session.tokens)],
    ["Turns", session.turns == null ? null : formatCount(session.turns)],
    ["Model version", session.model_version],
    [
      "Group",
      session.group_id == null ? null : (
        <ViewLink view="sessions" state={{ show: "groups", group: session.group_id }} title="All samples in its group">
          {session.group_id}
        </ViewLink>
      ),
    ],
  ];
  return (
    <section>
      <p className="toolbar">
        <StatusBadge status={session.status ?? PENDING} />
        {session.reason != null && (
          <span className={session.status === "failed" ? "bad" : "muted"}>{session.reason}</span>
        )}
        <span className="spacer" />
        <ViewLink view="timeline" state={timelineWindow(from * 1e9, to * 1e9, { search: session.session_id })}>
          Timeline
        </ViewLink>
        {reportFacts() === null && (
          <TraceButtons
            query={() => ({ run, session_id: session.session_id })}
            what="this session"
            title={`${run}-${session.session_id}`}
            onMessage={setTraceMessage}
          />
        )}
      </p>
      {traceMessage !== null && (
        <p className="note-line" role="status">
          {traceMessage}
        </p>
      )}
      <Facts facts={facts} isWide />
    </section>
  );
}

function Counters({ session }: { session: Session }) {
  const counters = Object.entries(session.counters ?? {});
  const rollout = Object.entries(session.rollout_stats ?? {});
  if (counters.length + rollout.length === 0) return null;
  return (
    <section>
      <h3>Counters</h3>
      <Facts
        facts={[
          ...counters.map(([name, value]): Fact => [name, formatNumber(value)]),
          ...factsOf(Object.fromEntries(rollout)),
        ]}
        isWide
      />
    </section>
  );
}
