import { type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Mark } from "../api";
import { lineColor } from "../colors";
import { wrongPlaces } from "../lines";
import { markText, useMarks } from "../marks";
import { token, useTheme } from "../theme";
import { type Formatter, formatCount, formatMoment, formatNumber, tickTexts } from "../units";
import { type Overlay, drawOverlay, marksNear } from "./chartOverlay";
import { axisWidth, xRange } from "./chartScale";

export interface ChartSeries {
  label: string;
  /** As many as there are x values; null leaves a gap, NaN and infinities are marked. */
  values: readonly (number | null)[];
  color: string;
  isDashed?: boolean;
  /** Thinner and paler: for many lines behind one that matters. */
  isFaint?: boolean;
  /** Drawn as a line in a chart of points. */
  isLine?: boolean;
}

interface Props {
  /** Seconds since 1970, or steps; ascending. */
  x: readonly number[];
  series: readonly ChartSeries[];
  xKind?: "time" | "step";
  kind?: "line" | "points" | "stacked";
  format?: Formatter;
  height?: number;
  isLogarithmic?: boolean;
  /** Fixes the y axis; by default it fits the values. */
  range?: readonly [number, number];
  /** Charts with the same key share their cursor. */
  syncKey?: string;
  /** Called with the dragged range of x. */
  onSelect?: ((from: number, to: number) => void) | undefined;
  /** Called with the clicked x. */
  onPick?: ((x: number) => void) | undefined;
  label: string;
  /** Values are bytes: ticks are at powers of two. */
  isBinary?: boolean;
  /** Labels of series that are not drawn. */
  hidden?: ReadonlySet<string> | undefined;
  /** Makes the legend entries toggle buttons; called with the clicked label. */
  onToggle?: ((label: string) => void) | undefined;
  /** The part of x to highlight: the window that all views share. */
  band?: readonly [number, number] | null | undefined;
  /** False: show values only on hover (default true). */
  hasLegend?: boolean;
}

/** 1, 2, 4 … bytes, up to petabytes. */
const BINARY_STEPS = Array.from({ length: 54 }, (_, power) => 2 ** power);

/** A chart over time or steps. uPlot draws it; this synchronizes it with React, the theme and the size. */
export function Chart(props: Props) {
  const { x, kind = "line", format = formatNumber, xKind = "time", height = 160, label, hasLegend = true } = props;
  const box = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const [theme] = useTheme();
  const series = useMemo(
    () =>
      kind === "stacked" ? props.series : props.series.map((one) => ({ ...one, color: lineColor(one.color, theme) })),
    [props.series, kind, theme],
  );
  const [hovered, setHovered] = useState<number | null>(null);
  const callbacks = useRef(props);
  callbacks.current = { ...props, series };
  const data = useMemo(() => plotData(x, series, kind), [x, series, kind]);
  const marks = useMarks();
  const wrong = useMemo(
    () =>
      wrongPlaces(
        x,
        series.map((one) => one.values),
      ),
    [x, series],
  );
  const overlay: Overlay = { xKind, marks, band: props.band ?? null, wrong };
  const latestOverlay = useRef(overlay);
  latestOverlay.current = overlay;
  const [near, setNear] = useState<readonly Mark[]>([]);
  const latestData = useRef(data);
  latestData.current = data;
  // Changes that need a new plot; new values do not.
  const shape = JSON.stringify([
    series.map((one) => [one.label, one.color, one.isDashed, one.isFaint, one.isLine]),
    kind,
    xKind,
    height,
    props.isLogarithmic,
    props.range,
    props.syncKey,
    theme,
    [...(props.hidden ?? [])],
  ]);

  useEffect(() => {
    const element = box.current;
    if (element === null) return undefined;
    const plot = new uPlot(
      options(callbacks, latestOverlay, element.clientWidth, setHovered, setNear),
      latestData.current,
      element,
    );
    chart.current = plot;
    const observer = new ResizeObserver(() =>
      plot.setSize({ width: element.clientWidth, height: callbacks.current.height ?? 160 }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.destroy();
      chart.current = null;
    };
  }, [shape]);

  useEffect(() => chart.current?.setData(data), [data]);
  useEffect(() => {
    // Without data there are no axes to draw yet.
    if (x.length > 0) chart.current?.redraw(false);
  }, [marks, wrong, props.band?.[0], props.band?.[1]]);

  const index = hovered !== null && hovered < x.length ? hovered : null;
  return (
    <figure className="chart" aria-label={label}>
      <div ref={box} style={{ height }} />
      {(hasLegend || index !== null || near.length > 0) && (
        <figcaption className={hasLegend ? "legend" : "legend is-floating"}>
          {series.map((one) => (
            <LegendEntry
              key={one.label}
              series={one}
              isHidden={props.hidden?.has(one.label) ?? false}
              onToggle={props.onToggle}
            >
              {(index !== null || kind !== "points" || one.isLine === true) && <b>{legendValue(one, index, format)}</b>}
            </LegendEntry>
          ))}
          {index !== null && (
            <span className="muted">
              {xKind === "step" ? `step ${formatCount(x[index])}` : formatMoment((x[index] ?? 0) * 1e9)}
            </span>
          )}
          {near.slice(0, 3).map((mark) => (
            <strong key={`${mark.time_ns} ${mark.name}`} className="mark-text">
              {markText(mark)}
            </strong>
          ))}
        </figcaption>
      )}
    </figure>
  );
}

function LegendEntry({
  series,
  isHidden,
  onToggle,
  children,
}: {
  series: ChartSeries;
  isHidden: boolean;
  onToggle: Props["onToggle"];
  children: ReactNode;
}) {
  const content = (
    <>
      <i style={{ background: series.color }} />
      <span className="legend-name">{series.label}</span>
      {children}
    </>
  );
  if (onToggle === undefined) return <span title={series.label}>{content}</span>;
  return (
    <button
      type="button"
      className="legend-switch"
      aria-pressed={!isHidden}
      title={`${series.label}: click to ${isHidden ? "show" : "hide"}`}
      onClick={() => onToggle(series.label)}
    >
      {content}
    </button>
  );
}

function legendValue(series: ChartSeries, index: number | null, format: Formatter): string {
  const written = (value: number | null | undefined) => (Number.isNaN(value) ? "NaN" : format(value));
  if (index !== null) return written(series.values[index]);
  for (let last = series.values.length - 1; last >= 0; last -= 1) {
    const value = series.values[last];
    if (value !== null && value !== undefined) return written(value);
  }
  return "–";
}

function plotData(x: readonly number[], series: readonly ChartSeries[], kind: Props["kind"]): uPlot.AlignedData {
  const columns = series.map((one) => one.values.map((value) => (Number.isFinite(value) ? value : null)));
  if (kind === "stacked") {
    // Drawn from the back: the first column is the sum of all, the last is at the bottom.
    for (let index = columns.length - 2; index >= 0; index -= 1) {
      const above = columns[index]!;
      const below = columns[index + 1]!;
      for (let place = 0; place < above.length; place += 1) above[place] = (above[place] ?? 0) + (below[place] ?? 0);
    }
  }
  return [[...x], ...columns] as uPlot.AlignedData;
}

function options(
  callbacks: { current: Props },
  overlay: { current: Overlay },
  width: number,
  setHovered: (index: number | null) => void,
  setNear: (update: (old: readonly Mark[]) => readonly Mark[]) => void,
): uPlot.Options {
  let selectedAt = -Infinity;
  const {
    series,
    kind = "line",
    xKind = "time",
    height = 160,
    isLogarithmic = false,
    range,
    syncKey,
  } = callbacks.current;
  const axis = {
    stroke: token("--text-muted"),
    font: `11px ${token("--font")}`,
    grid: { stroke: token("--grid"), width: 1 },
    ticks: { show: false },
  };
  const isBars = kind === "stacked";
  return {
    width,
    height,
    padding: [8, 18, 0, 0],
    legend: { show: false },
    cursor: {
      y: false,
      points: { size: 6 },
      drag: { x: callbacks.current.onSelect !== undefined, y: false, setScale: false },
      ...(syncKey === undefined ? {} : { sync: { key: syncKey } }),
    },
    scales: {
      x: { time: xKind === "time", range: (plot) => xRange(plot.data[0], xKind, isBars) },
      y: {
        // uPlot's kinds of scale are a const enum that exists only in its types.
        // eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment
        distr: isLogarithmic ? 3 : 1,
        ...(range
          ? { range: [range[0], range[1]] }
          : isBars
            ? { range: (_plot, _from, to) => [0, to > 0 ? to * 1.05 : 1] }
            : {}),
      },
    },
    axes: [
      {
        ...axis,
        grid: { show: false },
        size: 26,
        space: xKind === "time" ? 84 : 60,
        values: (_plot, ticks) =>
          xKind === "time"
            ? tickTexts(ticks.map((tick) => tick * 1e9))
            : ticks.map((tick) => (Number.isInteger(tick) ? formatCount(tick) : "")),
      },
      {
        ...axis,
        ...(callbacks.current.isBinary === true ? { incrs: BINARY_STEPS } : {}),
        size: (_plot, labels) => axisWidth(labels),
        space: height < 150 ? 22 : 32,
        values: (_plot, ticks) => ticks.map((tick) => (callbacks.current.format ?? formatNumber)(tick)),
      },
    ],
    series: [
      {},
      ...series.map((one) => ({
        ...plotSeries(one, kind),
        show: !(callbacks.current.hidden?.has(one.label) ?? false),
      })),
    ],
    hooks: {
      draw: [(plot) => drawOverlay(plot, overlay.current)],
      setCursor: [
        (plot) => {
          setHovered(plot.cursor.idx ?? null);
          const left = plot.cursor.left ?? -1;
          const near = left < 0 ? [] : marksNear(plot, overlay.current, left);
          setNear((old) => (old.length === 0 && near.length === 0 ? old : near));
        },
      ],
      setSelect: [
        (plot) => {
          if (plot.select.width < 4) return;
          selectedAt = performance.now();
          callbacks.current.onSelect?.(
            plot.posToVal(plot.select.left, "x"),
            plot.posToVal(plot.select.left + plot.select.width, "x"),
          );
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
      ready: [
        (plot) =>
          plot.over.addEventListener("click", (event) => {
            // The end of a drag is not a click.
            if (performance.now() - selectedAt < 200) return;
            // The cursor follows the pointer a frame later.
            const left = event.clientX - plot.over.getBoundingClientRect().left;
            const x = plot.data[0][plot.posToIdx(left)];
            if (x !== undefined) callbacks.current.onPick?.(x);
          }),
      ],
    },
  };
}

/** A line needs two points: a single value is drawn as a dot. */
function hasSingleValue(values: ArrayLike<number | null | undefined>): boolean {
  let found = 0;
  for (let place = 0; place < values.length && found < 2; place += 1) if (Number.isFinite(values[place])) found += 1;
  return found === 1;
}

function plotSeries(series: ChartSeries, kind: Props["kind"]): uPlot.Series {
  if (kind === "stacked") {
    return {
      label: series.label,
      fill: series.color,
      stroke: series.color,
      width: 0,
      points: { show: false },
      paths: uPlot.paths.bars!({ size: [0.82, 48] }),
    };
  }
  return {
    label: series.label,
    stroke: series.isFaint === true ? `${series.color}88` : series.color,
    width: series.isFaint === true ? 1 : 1.6,
    dash: series.isDashed === true ? [5, 4] : [],
    spanGaps: true,
    ...(kind === "points" && series.isLine !== true
      ? { paths: () => null, points: { show: true, size: 4, fill: series.color } }
      : { points: { show: (plot, index) => hasSingleValue(plot.data[index]!), size: 6, fill: series.color } }),
  };
}
