import { type Spread, binsOf, placeInBins } from "../statistics";
import type { Formatter } from "../units";

interface Props {
  name: string;
  spread: Spread;
  color: string;
  format: Formatter;
}

const BINS = 32;
const WIDTH = 160;
const HEIGHT = 20;

/** One quantity's distribution: small bars with marks at p50, p95 and p99, and those figures. */
export function Distribution({ name, spread, color, format }: Props) {
  const bins = binsOf(spread.sorted, BINS);
  const highest = Math.max(1, ...bins.map((bin) => bin.count));
  const marks = [spread.p50, spread.p95, spread.p99];
  return (
    <tr>
      <th scope="row" title={name}>
        <i className="swatch" style={{ background: color }} /> {name}
      </th>
      <td>
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          width="100%"
          height={HEIGHT}
          preserveAspectRatio="none"
          role="img"
          aria-label={`Distribution of ${name}`}
        >
          {bins.map((bin, index) => {
            const height = bin.count === 0 ? 0 : Math.max(1.5, (bin.count / highest) * HEIGHT);
            return (
              <rect
                key={index}
                x={(index * WIDTH) / bins.length}
                y={HEIGHT - height}
                width={WIDTH / bins.length - 0.6}
                height={height}
                fill={color}
              >
                <title>{`${format(bin.from)} to ${format(bin.to)}: ${bin.count}`}</title>
              </rect>
            );
          })}
          {marks.map(
            (mark, index) =>
              mark !== null && (
                <line
                  key={index}
                  className="quantile-mark"
                  x1={placeInBins(bins, mark) * WIDTH}
                  x2={placeInBins(bins, mark) * WIDTH}
                  y1={0}
                  y2={HEIGHT}
                />
              ),
          )}
        </svg>
      </td>
      <td className="right">{format(spread.p50)}</td>
      <td className="right">{format(spread.p95)}</td>
      <td className="right">{format(spread.p99)}</td>
      <td className="right">{format(spread.max)}</td>
    </tr>
  );
}
