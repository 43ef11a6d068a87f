export interface Option<T extends string> {
  value: T;
  label: string;
}

interface Props<T extends string> {
  label: string;
  value: T;
  options: readonly Option<T>[];
  onChange: (value: T) => void;
  /** Show the label only to screen readers. */
  isLabelHidden?: boolean;
}

/** Options from their labels, in that order. */
export function labeled<T extends string>(labels: Readonly<Record<T, string>>): readonly Option<T>[] {
  return Object.entries<string>(labels).map(([value, label]) => ({ value: value as T, label }));
}

/** Whether charts are logarithmic. */
export function LogButton({ isOn, onChange }: { isOn: boolean; onChange: (isOn: boolean) => void }) {
  return (
    <button type="button" aria-pressed={isOn} onClick={() => onChange(!isOn)} title="Logarithmic axis">
      log
    </button>
  );
}

/** A choice from a list. */
export function Select<T extends string>({ label, value, options, onChange, isLabelHidden = false }: Props<T>) {
  return (
    <label className="field">
      <span className={isLabelHidden ? "visually-hidden" : "field-label"}>{label}</span>
      <select value={value} onChange={(event) => onChange(event.target.value as T)}>
        {options.map((option) => (
          <option key={option.value} value={option.value}>
            {option.label}
          </option>
        ))}
      </select>
    </label>
  );
}

/** A choice from a few options, all visible. */
export function Choice<T extends string>({ label, value, options, onChange }: Props<T>) {
  return (
    <div className="choice" role="radiogroup" aria-label={label}>
      {options.map((option) => (
        <button
          key={option.value}
          type="button"
          role="radio"
          aria-checked={option.value === value}
          onClick={() => onChange(option.value)}
        >
          {option.label}
        </button>
      ))}
    </div>
  );
}
