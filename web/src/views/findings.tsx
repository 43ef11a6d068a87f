import { useState } from "react";
import { type Finding, api, errorText } from "../api";
import { EmptyState } from "../components/EmptyState";
import { type Fact, Facts, factsOf } from "../components/Facts";
import { Loading } from "../components/Loading";
import { Select } from "../components/Select";
import { SeverityBadge, byGravity } from "../components/SeverityBadge";
import { ViewLink } from "../components/ViewLink";
import { reportFacts } from "../reportFacts";
import {
  counted,
  formatAgo,
  formatCount,
  formatDuration,
  formatMoment,
  formatNumber,
  formatSeconds,
  formatShare,
} from "../units";
import { useUrlState } from "../url";
import { useAnswer } from "../useQuery";
import { useWindow } from "../window";
import type { ViewProps } from ".";
import { timelineFinding } from "./links";
import "./views.css";

/** The findings, most severe first, each with its evidence and a link to the timeline. */
export default function Findings({ run }: ViewProps) {
  const [rule, setRule] = useUrlState("rule", "");
  const { bounds } = useWindow(run);
  const [hasMuted, setHasMuted] = useUrlState("muted", false);
  const { data, error } = useAnswer("findings", { run, muted: hasMuted || undefined }, { everyMs: 3000, pollMs: 5000 });
  const mutes = useAnswer("findings/mute", { run }, { enabled: reportFacts() === null, pollMs: 5000 });
  const muted = new Set(mutes.data?.rules ?? []);
  if (error !== undefined && data === undefined) return <EmptyState title="No findings" text={error} />;
  if (data === undefined) return <Loading />;
  if (data.length === 0) {
    return (
      <EmptyState
        title="No findings"
        text="While the run is live, the server looks for stalls, stragglers, stuck sessions, slow tools, lost telemetry and more, and lists its findings here with evidence."
      >
        <p>
          <ViewLink view="hotspots">Where does the time go?</ViewLink> ·{" "}
          <ViewLink view="sessions">Which sessions are slow?</ViewLink>
        </p>
      </EmptyState>
    );
  }
  const rules = [...new Set(data.map((finding) => finding.rule))].sort();
  const titles = new Map(data.map((finding) => [finding.finding_id, finding.title]));
  const isInside = (finding: Finding) =>
    bounds === null || (finding.start_ns < bounds.end_ns && finding.end_ns > bounds.start_ns);
  const shown = data.filter((finding) => (rule === "" || finding.rule === rule) && isInside(finding)).sort(byGravity);
  return (
    <div className="view">
      <div className="toolbar">
        <Select
          label="Rule"
          value={rules.includes(rule) ? rule : ""}
          options={[
            { value: "", label: "all rules" },
            ...rules.map((value) => ({ value, label: value.replaceAll("_", " ") })),
          ]}
          onChange={setRule}
        />
        <span className="muted" role="status">
          {counted(shown.length, "finding")}
        </span>
        {reportFacts() === null && (
          <button
            type="button"
            className="chip"
            aria-pressed={hasMuted}
            onClick={() => setHasMuted(!hasMuted)}
            title="Also show findings of muted rules"
          >
            Show muted
          </button>
        )}
      </div>
      {shown.map((finding) => (
        <FindingPanel
          key={finding.finding_id}
          run={run}
          finding={finding}
          titles={titles}
          isMuted={muted.has(finding.rule)}
        />
      ))}
    </div>
  );
}

interface FindingProps {
  run: string;
  finding: Finding;
  titles: ReadonlyMap<string, string>;
  isMuted: boolean;
}

/** Hides a rule's findings in this run for all users, or shows them again. */
function MuteButton({ run, rule, isMuted }: { run: string; rule: string; isMuted: boolean }) {
  const [message, setMessage] = useState("");
  const toggle = () =>
    void api.muteRule(run, rule, !isMuted).then(
      () => setMessage(isMuted ? "unmuted" : "muted"),
      (error: unknown) => setMessage(errorText(error)),
    );
  return (
    <>
      <button
        type="button"
        className="chip"
        onClick={toggle}
        title={
          isMuted
            ? "Show the findings of this rule in this run again"
            : "Hide all findings of this rule in this run, for everyone"
        }
      >
        {isMuted ? "Unmute rule" : "Mute rule"}
      </button>
      {message !== "" && (
        <span className="muted" role="status">
          {message}
        </span>
      )}
    </>
  );
}

/** A number of the evidence with its unit and what it is compared with. */
function evidenceFact({ name, value, unit, compared_with: comparedWith }: Readonly<Record<string, unknown>>): Fact {
  const number = typeof value === "number" ? (unit === "s" ? formatSeconds(value) : formatNumber(value)) : null;
  const text = number ?? (typeof value === "string" ? value : JSON.stringify(value));
  const withUnit = typeof unit === "string" && unit !== "s" ? `${text} ${unit}` : text;
  return [String(name), typeof comparedWith === "string" ? `${withUnit} (${comparedWith})` : withUnit];
}

/** What a fix would save, with units. */
function impactFacts({
  seconds_per_step: seconds,
  share_of_step: share,
  ...others
}: Readonly<Record<string, unknown>>) {
  const facts: Fact[] = [];
  if (typeof seconds === "number") facts.push(["per step", formatSeconds(seconds)]);
  if (typeof share === "number") facts.push(["share of the step", formatShare(share)]);
  return [...facts, ...factsOf(others)];
}

function FindingPanel({ run, finding, titles, isMuted }: FindingProps) {
  const culprit = factsOf(finding.culprit ?? {});
  const impact = impactFacts(finding.impact ?? {});
  const explained = (finding.explains ?? []).map((id) => titles.get(id)).filter((title) => title !== undefined);
  const evidence = (finding.evidence ?? []).map(evidenceFact);
  return (
    <article className="panel finding">
      <header>
        <SeverityBadge severity={finding.severity} />
        <h2>
          <ViewLink view="timeline" state={timelineFinding(finding)} title="Show it on the timeline">
            {finding.title}
          </ViewLink>
        </h2>
        <div className="panel-actions">
          <ViewLink view="timeline" state={timelineFinding(finding)}>
            Timeline
          </ViewLink>
          <ViewLink
            view="hotspots"
            state={{
              scope: "window",
              from: (finding.start_ns / 1e9).toFixed(3),
              to: (finding.end_ns / 1e9).toFixed(3),
            }}
          >
            Hotspots
          </ViewLink>
          <ViewLink
            view="logs"
            state={{ from: (finding.start_ns / 1e9).toFixed(3), to: (finding.end_ns / 1e9).toFixed(3) }}
          >
            Logs
          </ViewLink>
          {reportFacts() === null && <MuteButton run={run} rule={finding.rule} isMuted={isMuted} />}
        </div>
      </header>
      <div className="panel-body">
        <p className="muted">
          {[
            finding.rule.replaceAll("_", " "),
            finding.status === "open"
              ? `open, began ${formatAgo(finding.start_ns)}`
              : `resolved after ${formatDuration(finding.end_ns - finding.start_ns)}`,
            formatMoment(finding.start_ns),
            finding.first_step == null ? null : `step ${formatCount(finding.first_step)}`,
            (finding.lanes ?? []).length > 0 ? `${finding.lanes!.length} lanes` : null,
          ]
            .filter((part) => part !== null)
            .join(" · ")}
        </p>
        {finding.explanation && <p>{finding.explanation}</p>}
        {finding.remedy && <p>What to do: {finding.remedy}</p>}
        {explained.length > 0 && <p className="muted">Also explains: {explained.join("; ")}</p>}
        {[
          { title: "Culprit", facts: culprit },
          { title: "Impact", facts: impact },
          { title: "Evidence", facts: evidence },
        ].map(
          ({ title, facts }) =>
            facts.length > 0 && (
              <section key={title} aria-label={title}>
                <h3 className="sub-title">{title}</h3>
                <Facts facts={facts} isWide />
              </section>
            ),
        )}
      </div>
    </article>
  );
}
