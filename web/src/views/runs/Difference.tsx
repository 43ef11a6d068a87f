import type { RunComparison } from "../../api";
import { Panel } from "../../components/Panel";
import { useAnswer } from "../../useQuery";
import { valueText } from "./values";
import { Loading } from "../../components/Loading";
import { ErrorLine } from "../../components/ErrorLine";

/** The differences of the other run: a sentence, and the configuration values that differ. */
export function WhatDiffers({ one, other }: { one: string; other: string }) {
  const { data, error } = useAnswer("runs/compare", { run: one, other }, { everyMs: 10_000, keep: false });
  if (error !== undefined) return <ErrorLine text={error} />;
  if (data === undefined) return <Loading text="Comparing…" />;
  return (
    <Panel
      title="Changes in the second run"
      value={
        data.steps > 0 ? (
          <span className="muted">{`over ${data.steps} finished steps that both have, ${data.first_step} to ${data.last_step}`}</span>
        ) : undefined
      }
    >
      <p className="difference-sentence">{data.sentence}</p>
      {data.config.length > 0 && <ConfigDifferences found={data} />}
    </Panel>
  );
}

function ConfigDifferences({ found }: { found: RunComparison }) {
  return (
    <div className="scroll">
      <table className="plain config" aria-label="Configuration differences">
        <thead>
          <tr>
            <th>Configuration</th>
            <th>{found.first}</th>
            <th>{found.second}</th>
          </tr>
        </thead>
        <tbody>
          {found.config.map((row) => (
            <tr key={row.key}>
              <td className="mono">{row.key}</td>
              <td className="mono">{row.first === null ? "–" : valueText(row.first)}</td>
              <td className="mono">{row.second === null ? "–" : valueText(row.second)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
