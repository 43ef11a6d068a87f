import type { PartDurations } from "../api";
import { placeInBins } from "../statistics";
import { formatCount, formatSeconds } from "../units";

const WIDTH = 160;
const HEIGHT = 20;

/** The durations of one part of sessions: small bars with marks at p50, p95 and p99, and those figures. */
export function Distribution({ part, color }: { part: PartDurations; color: string }) {
  const { name, bins } = part;
  const highest = Math.max(1, ...bins.map((bin) => bin.count));
  const marks = [part.p50_s, part.p95_s, part.p99_s];
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
                <title>{`${formatSeconds(bin.from_s)} to ${formatSeconds(bin.to_s)}: ${formatCount(bin.count)}`}</title>
              </rect>
            );
          })}
          {marks.map((mark, index) => (
            <line
              key={index}
              className="quantile-mark"
              x1={placeInBins(bins, mark) * WIDTH}
              x2={placeInBins(bins, mark) * WIDTH}
              y1={0}
              y2={HEIGHT}
            />
          ))}
        </svg>
      </td>
      {[...marks, part.max_s].map((seconds, index) => (
        <td key={index} className="right">
          {formatSeconds(seconds)}
        </td>
      ))}
    </tr>
  );
}
