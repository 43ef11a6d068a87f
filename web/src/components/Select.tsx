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

/** A choice from a few, all of them in view. */
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
