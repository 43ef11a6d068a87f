import { useMemo } from "react";
import type { QueryOf } from "../../api";
import { Chart } from "../../components/Chart";
import { reportFacts } from "../../reportFacts";
import { token, useTheme } from "../../theme";
import { formatCount } from "../../units";
import { useAnswer } from "../../useQuery";

interface Props {
  query: QueryOf<"logs/histogram">;
  /** Called with the dragged range in seconds. */
  onSelect: (from: number, to: number) => void;
}

/** A histogram of log lines by level, to spot bursts. */
export function LogHistogram({ query, onSelect }: Props) {
  const { data } = useAnswer("logs/histogram", query, { everyMs: 3000, enabled: reportFacts() === null });
  const [theme] = useTheme();
  const intervals = data?.intervals;
  const [x, series] = useMemo(() => {
    const rows = intervals ?? [];
    const kinds = [
      { label: "errors", color: token("--bad"), values: rows.map((one) => one.errors) },
      { label: "warnings", color: token("--warning"), values: rows.map((one) => one.warnings) },
      {
        label: "other lines",
        color: token("--text-muted"),
        values: rows.map((one) => one.lines - one.warnings - one.errors),
      },
    ];
    return [rows.map((one) => one.start_ns / 1e9), kinds] as const;
  }, [intervals, theme]);
  if (x.length < 2) return null;
  return (
    <section className="panel log-histogram">
      <Chart
        label="Lines over time"
        kind="stacked"
        x={x}
        series={series}
        format={formatCount}
        height={64}
        hasLegend={false}
        onSelect={onSelect}
      />
    </section>
  );
}
