import { useState } from "react";
import { Select } from "../../components/Select";
import { shorten } from "../../units";
import { useAnswer } from "../../useQuery";

interface Props {
  run: string;
  /** The metric whose labels are offered. */
  metric: string;
  labels: readonly string[];
  /** `label=value`, or `label=~regex`. */
  matches: readonly string[];
  onChange: (matches: readonly string[]) => void;
}

/** Conditions on labels: each is a removable chip; new ones are chosen from the existing labels and values. */
export function LabelFilters({ run, metric, labels, matches, onChange }: Props) {
  const [label, setLabel] = useState("");
  const values = useAnswer(
    "metrics/labels",
    { run, label, metric },
    { enabled: label !== "", live: false, keep: false },
  );
  return (
    <>
      {matches.map((match) => (
        <button
          key={match}
          type="button"
          className="chip"
          aria-label={`Remove the filter ${match}`}
          title="Remove this filter"
          onClick={() => onChange(matches.filter((one) => one !== match))}
        >
          {shorten(match, 60)} ×
        </button>
      ))}
      <Select
        label="Filter by label"
        isLabelHidden
        value={label}
        options={[{ value: "", label: "filter…" }, ...labels.map((name) => ({ value: name, label: name }))]}
        onChange={setLabel}
      />
      {label !== "" && (
        <Select
          label={`Value of ${label}`}
          isLabelHidden
          value=""
          options={[
            { value: "", label: values.data === undefined ? "…" : "choose a value" },
            ...(values.data ?? []).map((value) => ({ value, label: shorten(value, 60) })),
          ]}
          onChange={(value) => {
            if (value === "") return;
            onChange([...matches.filter((match) => !match.startsWith(`${label}=`)), `${label}=${value}`]);
            setLabel("");
          }}
        />
      )}
    </>
  );
}
