import type { RunComparison } from "../../api";
import { Panel } from "../../components/Panel";
import { valueText } from "./values";

/** The differences of the second run: a sentence, and the configuration values that differ. */
export function WhatDiffers({ found }: { found: RunComparison }) {
  return (
    <Panel
      title="Changes in the second run"
      value={
        found.steps > 0 ? (
          <span className="muted">{`over ${found.steps} finished steps that both have, ${found.first_step} to ${found.last_step}`}</span>
        ) : undefined
      }
    >
      <p className="difference-sentence">{found.sentence}</p>
      {found.config.length > 0 && <ConfigDifferences found={found} />}
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
