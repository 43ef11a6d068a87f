import { Select } from "../../components/Select";
import { shorten } from "../../units";
import { useAnswer } from "../../useQuery";

interface Props {
  run: string;
  also: readonly string[];
  onChange: (runs: readonly string[]) => void;
}

/** Other runs whose values are drawn in the same charts, by step. */
export function Overlay({ run, also, onChange }: Props) {
  const { data } = useAnswer("runs", {}, { everyMs: 10_000, pollMs: 10_000 });
  const others = (data ?? []).filter((info) => info.run_id !== run && !also.includes(info.run_id) && !info.problem);
  if (others.length === 0 && also.length === 0) return null;
  return (
    <div className="toolbar" role="group" aria-label="Runs in these charts">
      <Select
        label="Overlay"
        value=""
        options={[
          { value: "", label: "add a run" },
          ...others.map((info) => ({ value: info.run_id, label: shorten(info.run_id, 60) })),
        ]}
        onChange={(chosen) => chosen !== "" && onChange([...also, chosen])}
      />
      {also.map((other) => (
        <button
          key={other}
          type="button"
          className="chip"
          aria-label={`Remove ${other} from the charts`}
          onClick={() => onChange(also.filter((one) => one !== other))}
        >
          {`${shorten(other, 50)} ×`}
        </button>
      ))}
      {also.length > 0 && <span className="muted">aligned by step</span>}
    </div>
  );
}
