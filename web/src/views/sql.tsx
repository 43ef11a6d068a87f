import { useState } from "react";
import { type SqlResult, api, errorText } from "../api";
import { EmptyState } from "../components/EmptyState";
import { csvCell } from "../lines";
import { saveText } from "../download";
import { counted } from "../units";
import { useUrlState } from "../url";
import { useQuery } from "../useQuery";
import type { ViewProps } from ".";
import { valueText } from "./runs/values";
import "./views.css";

const FIRST =
  "SELECT name, count(*) AS spans, sum(duration_ns) / 1e9 AS seconds\nFROM spans GROUP BY name ORDER BY 3 DESC";
const EXAMPLES: readonly (readonly [title: string, sql: string])[] = [
  ["Where the time goes", FIRST],
  [
    "Sessions by outcome",
    "SELECT status, count(*) AS sessions, avg(reward) AS reward, avg(tokens) AS tokens\nFROM sessions GROUP BY status ORDER BY 2 DESC",
  ],
  [
    "Slowest ranks",
    "SELECT role, rank, name, avg(duration_ns) / 1e9 AS seconds\nFROM spans WHERE step IS NOT NULL\nGROUP BY ALL ORDER BY 4 DESC LIMIT 50",
  ],
  ["Tables and views", "SELECT table_name, column_name, data_type FROM information_schema.columns ORDER BY 1"],
];

/** One SELECT over the tables of the run, if the server allows it. */
export default function SqlConsole({ run }: ViewProps) {
  const [query, setQuery] = useUrlState("sql", FIRST);
  const [result, setResult] = useState<SqlResult | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const status = useQuery("status", (signal) => api.status(signal), { live: false, pollMs: 10_000 });
  const isOff = status.data?.sql_enabled === false;
  const [isRunning, setIsRunning] = useState(false);
  const ask = async () => {
    setIsRunning(true);
    setProblem(null);
    try {
      setResult(await api.sql(run, query));
    } catch (failure) {
      setProblem(errorText(failure));
    } finally {
      setIsRunning(false);
    }
  };
  return (
    <div className="view">
      {isOff && (
        <EmptyState
          title="SQL is off on this server"
          text="SQL can read everything in a run, so it must be enabled when the server starts:"
          code="rl-insight server start sql.enabled=true"
        />
      )}
      <div className="toolbar" role="group" aria-label="Examples">
        {EXAMPLES.map(([title, sql]) => (
          <button key={title} type="button" className="chip" onClick={() => setQuery(sql)}>
            {title}
          </button>
        ))}
      </div>
      <section className="panel">
        <textarea
          className="sql-text mono"
          aria-label="SQL"
          spellCheck={false}
          rows={6}
          value={query}
          onChange={(event) => setQuery(event.target.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void ask();
          }}
        />
        <div className="toolbar">
          <button type="button" onClick={() => void ask()} disabled={isRunning || isOff} title="Ctrl+Enter">
            {isRunning ? "Running…" : "Run"}
          </button>
          {result !== null && (
            <>
              <span className="muted" role="status">
                {`${counted(result.rows.length, "row")}${result.truncated ? ", more omitted" : ""}`}
              </span>
              <button type="button" className="chip" onClick={() => saveText("rows.csv", csvOf(result), "text/csv")}>
                CSV
              </button>
            </>
          )}
        </div>
      </section>
      {problem !== null && <div className="error-line">{problem}</div>}
      {result !== null && <Rows result={result} />}
    </div>
  );
}

function Rows({ result }: { result: SqlResult }) {
  return (
    <section className="panel grows scroll">
      <table className="plain" aria-label="Rows">
        <thead>
          <tr>
            {result.columns.map((column, index) => (
              <th key={index} title={result.types[index]}>
                {column}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {result.rows.map((row, index) => (
            <tr key={index}>
              {row.map((cell, place) => (
                <td key={place} className="mono">
                  {cellText(cell)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function cellText(cell: unknown): string {
  return cell === null ? "" : valueText(cell);
}

function csvOf(result: SqlResult): string {
  const lines = [result.columns, ...result.rows].map((row) => row.map((cell) => csvCell(cellText(cell))).join(","));
  return `${lines.join("\n")}\n`;
}
