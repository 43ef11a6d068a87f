import { type KeyboardEvent, type MouseEvent, type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import { token, useTheme } from "../theme";
import { type Cell, type HeatMapData, type Layout, cellAt, cellBox, drawHeatMap, heatColor } from "./heatMapDrawing";
import { markToken, useMarks } from "../marks";
import { placeOf } from "./chartOverlay";
import { Tooltip } from "./Tooltip";

interface Props {
  data: HeatMapData;
  label: string;
  format: (value: number) => string;
  formatX: (x: number) => string;
  xKind?: "time" | "step";
  /** The values at the ends of the color scale; by default those of the data. */
  range?: readonly [number, number] | undefined;
  isLogarithmic?: boolean;
  height: number;
  /** Room for the names of the rows. */
  left?: number;
  onPick?: ((cell: Cell) => void) | undefined;
}

const BOTTOM = 22;

/** Values by row and time as colors; the pointer or the arrow keys read single cells. */
export function HeatMap({
  data,
  label,
  format,
  formatX,
  xKind = "time",
  range,
  isLogarithmic = false,
  height,
  left = 120,
  onPick,
}: Props) {
  const [theme] = useTheme();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(600);
  const [chosen, setMarked] = useState<Cell | null>(null);
  // New data may have fewer rows or columns.
  const marked = chosen !== null && chosen.row < data.rows.length && chosen.column < data.x.length ? chosen : null;
  const marks = useMarks();
  const ends = useMemo(() => range ?? endsOf(data), [range, data]);
  const layout: Layout = { width, height, left, bottom: BOTTOM };

  useEffect(() => {
    const element = canvas.current;
    if (element === null) return undefined;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (context === null || context === undefined) return;
    const ratio = window.devicePixelRatio;
    context.canvas.width = width * ratio;
    context.canvas.height = height * ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawHeatMap(context, data, layout, {
      theme,
      range: ends,
      isLogarithmic,
      formatX,
      marked,
      marks: marks.flatMap((mark) => {
        const x = placeOf(mark, xKind);
        return x === null ? [] : [{ x: xKind === "step" ? x + 0.5 : x, color: token(markToken(mark)) }];
      }),
      text: token("--text"),
      mutedText: token("--text-muted"),
      font: token("--font"),
    });
  });

  const cellUnder = (event: MouseEvent<HTMLCanvasElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    return cellAt(data, layout, event.clientX - box.left, event.clientY - box.top);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Enter" && marked !== null) onPick?.(marked);
    if (event.key === "Escape") setMarked(null);
    if (move === undefined || data.rows.length === 0 || data.x.length === 0) return;
    event.preventDefault();
    setMarked((old) => ({
      row: clamp((old?.row ?? 0) + move[0]!, data.rows.length - 1),
      column: clamp((old?.column ?? data.x.length - 1) + move[1]!, data.x.length - 1),
    }));
  };
  return (
    <figure className="chart heat-map">
      <canvas
        ref={canvas}
        style={{ width: "100%", height }}
        role="img"
        aria-label={label}
        tabIndex={0}
        onPointerMove={(event) => setMarked(cellUnder(event))}
        onPointerLeave={() => setMarked(null)}
        onBlur={() => setMarked(null)}
        onKeyDown={onKeyDown}
        onClick={(event) => {
          const cell = cellUnder(event);
          if (cell !== null) onPick?.(cell);
        }}
      />
      <figcaption className="heat-scale">
        <span>{format(ends[0])}</span>
        <i
          style={{
            background: `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map((share) => heatColor(share, theme)).join(", ")})`,
          }}
        />
        <span>{format(ends[1])}</span>
        <span className="muted">blank: no data</span>
      </figcaption>
      {marked !== null && (
        <CellTooltip canvas={canvas.current} box={cellBox(data, layout, marked)}>
          {describe(data, marked, format, formatX)}
        </CellTooltip>
      )}
    </figure>
  );
}

function CellTooltip({
  canvas,
  box,
  children,
}: {
  canvas: HTMLCanvasElement | null;
  box: { x: number; y: number; width: number; height: number };
  children: ReactNode;
}) {
  const place = canvas?.getBoundingClientRect();
  if (place === undefined) return null;
  return (
    <Tooltip x={place.left + box.x + box.width} y={place.top + box.y + box.height}>
      {children}
    </Tooltip>
  );
}

function describe(
  data: HeatMapData,
  { row, column }: Cell,
  format: Props["format"],
  formatX: Props["formatX"],
): ReactNode {
  const value = data.values[row]?.[column];
  return (
    <>
      <strong>{data.rows[row]}</strong>
      <div>{value === null || value === undefined ? "nothing recorded" : format(value)}</div>
      <div className="muted">{formatX(data.x[column] ?? 0)}</div>
    </>
  );
}

function endsOf(data: HeatMapData): readonly [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const row of data.values) {
    for (const value of row) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : [0, 1];
}

function clamp(value: number, high: number): number {
  return Math.min(high, Math.max(0, value));
}
