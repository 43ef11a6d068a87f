import { useMemo } from "react";
import type { Metric } from "../../api";
import { SearchBox } from "../../components/SearchBox";
import { kindOf } from "../../metricKinds";
import { naturally } from "../../natural";

interface Props {
  metrics: readonly Metric[];
  chosen: readonly string[];
  search: string;
  onSearch: (search: string) => void;
  onChange: (chosen: readonly string[]) => void;
}

/** All metrics; a click shows only that one, its checkbox adds it to the others. */
export function MetricList({ metrics, chosen, search, onSearch, onChange }: Props) {
  const shown = useMemo(() => {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (metric: Metric) =>
      words.every((word) =>
        `${metric.name} ${metric.documentation} ${metric.kind} ${metric.labels.join(" ")}`.toLowerCase().includes(word),
      );
    return metrics.filter(fits).sort((one, other) => naturally(one.name, other.name));
  }, [metrics, search]);
  const toggle = (name: string) =>
    onChange(chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name]);
  return (
    <section className="panel metric-list">
      <SearchBox value={search} onChange={onSearch} label="Search metrics" placeholder="Search metrics" />
      <div className="scroll">
        {shown.map((metric) => (
          <div
            key={`${metric.name} ${metric.kind}`}
            className={chosen.includes(metric.name) ? "metric-line is-selected" : "metric-line"}
          >
            <input
              type="checkbox"
              checked={chosen.includes(metric.name)}
              onChange={() => toggle(metric.name)}
              aria-label={`Show ${metric.name} too`}
            />
            <button
              type="button"
              className="link-button"
              onClick={() => onChange([metric.name])}
              title={metric.documentation === "" ? metric.name : `${metric.name}: ${metric.documentation}`}
            >
              {metric.name}
            </button>
            <span
              className="badge"
              title={`${metric.series} series`}
            >{`${kindOf(metric.kind).short} ${metric.series}`}</span>
          </div>
        ))}
        {shown.length === 0 && <p className="muted">No matching metrics.</p>}
      </div>
    </section>
  );
}
