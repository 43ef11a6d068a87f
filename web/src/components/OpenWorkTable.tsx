import { useMemo } from "react";
import type { OpenWork, SessionInFlight } from "../api";
import { colorOfName } from "../colors";
import { processTitle } from "../processTitle";
import { counted, formatCount, formatSeconds } from "../units";
import { ageClass, usualText } from "../overview/OpenWorkPanel";
import { useAnswer } from "../useQuery";
import { timelineSpan } from "../views/links";
import { LongText } from "./LongText";
import { figure } from "./columns";
import { type Column, Table } from "./Table";
import { ViewLink } from "./ViewLink";

/** Unfinished work by name: the count, and the age of the oldest. */
export function OpenWorkTable({ run, height }: { run: string; height?: number }) {
  const { data } = useAnswer("open/work", { run }, { everyMs: 2000, pollMs: 5000 });
  const hasSessions = data?.some((work) => work.oldest_session_id !== null) ?? false;
  const sessions = useAnswer(
    "sessions/in_flight",
    { run, limit: MOST_SESSIONS },
    { everyMs: 3000, enabled: hasSessions },
  );
  const columns = useMemo(
    () => columnsOf(new Map((sessions.data ?? []).map((session) => [session.session_id, session]))),
    [sessions.data],
  );
  return (
    <Table
      label="Suspect open work"
      columns={columns}
      rows={data ?? []}
      rowKey={(work) => `${work.name} ${work.oldest_span_id}`}
      sort={{ key: "age", descending: true }}
      {...(height === undefined ? {} : { height })}
      empty={data === undefined ? null : <p className="muted">No open work.</p>}
    />
  );
}

/** The oldest come first, and only the oldest of each name is shown. */
const MOST_SESSIONS = 200;

const muted = (seconds: number | null | undefined) => <span className="muted">{formatSeconds(seconds)}</span>;

/** What an open session is doing. */
function sessionText(sessionId: string, session: SessionInFlight | undefined): string {
  const shows = `Show session ${sessionId}`;
  if (session?.phase == null) return shows;
  const others = session.open_phases > 1 ? `, ${counted(session.open_phases - 1, "other phase")} open` : "";
  return `${shows}: in ${session.phase} for ${formatSeconds(session.phase_age_s)}${others}`;
}

function columnsOf(sessions: ReadonlyMap<string, SessionInFlight>): Column<OpenWork>[] {
  return [
    {
      key: "name",
      title: "Name",
      width: "minmax(70px, 1fr)",
      value: (work) => work.name,
      render: (work) => (
        <ViewLink
          view="timeline"
          state={{
            ...timelineSpan(work.oldest_span_id, work.oldest_ns, work.oldest_ns + work.oldest_age_s * 1e9),
            lane: work.lane_id,
          }}
          title="Show the oldest in the timeline"
        >
          <i className="swatch" style={{ background: colorOfName(work.name) }} /> {work.name}
        </ViewLink>
      ),
    },
    figure("count", "Open", "50px", (work) => work.count, formatCount),
    figure("age", "Oldest", "98px", (work) => work.oldest_age_s, formatSeconds, {
      render: (work) => (
        <span className={ageClass(work)} title={usualText(work)}>
          {formatSeconds(work.oldest_age_s)}
        </span>
      ),
    }),
    figure("usual", "Usually", "86px", (work) => work.usual_s, muted, {
      isSpare: true,
      hint: "The median of finished ones",
    }),
    {
      key: "where",
      title: "Task",
      width: "minmax(96px, 1fr)",
      render: (work) =>
        work.oldest_session_id === null ? (
          <span title={work.process_id}>{processTitle(work)}</span>
        ) : (
          <ViewLink
            view="sessions"
            state={{ session: work.oldest_session_id }}
            title={sessionText(work.oldest_session_id, sessions.get(work.oldest_session_id))}
          >
            <LongText text={sessions.get(work.oldest_session_id)?.task_id ?? work.oldest_session_id} title={null} />
          </ViewLink>
        ),
    },
  ];
}
