interface Props {
  label: string;
  value: number;
  least?: number;
  onChange: (value: number) => void;
}

/** An integer field. */
export function NumberField({ label, value, least = 0, onChange }: Props) {
  return (
    <input
      type="number"
      className="number-field"
      aria-label={label}
      title={label}
      min={least}
      step={1}
      value={value}
      onChange={(event) => {
        const given = Math.round(Number(event.target.value));
        if (Number.isFinite(given)) onChange(Math.max(least, given));
      }}
    />
  );
}
