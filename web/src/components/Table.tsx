import { type KeyboardEvent, type ReactNode, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";

export interface Column<Row> {
  key: string;
  title: ReactNode;
  /** The content of a cell. */
  render: (row: Row) => ReactNode;
  /** The sort key; `Table` cannot sort a column without it. */
  value?: (row: Row) => number | string | null | undefined;
  /** A CSS grid width such as `120px` or `minmax(160px, 2fr)`. */
  width?: string;
  align?: "left" | "right";
  /** Sorted by the server: the column needs no `value`. */
  isSortable?: boolean;
  /** The text of the column's tooltip. */
  hint?: string;
  /** Left out where there is no room for all columns. */
  isSpare?: boolean;
}

export interface Sort {
  key: string;
  descending: boolean;
}

/** `key` or `-key`, as in the address. */
export function parseSort(text: string): Sort {
  return text.startsWith("-") ? { key: text.slice(1), descending: true } : { key: text, descending: false };
}

export function sortText(sort: Sort): string {
  return sort.descending ? `-${sort.key}` : sort.key;
}

interface VirtualProps<Row> {
  columns: readonly Column<Row>[];
  /** The number of rows, including those not loaded. */
  count: number;
  /** The row at an index; undefined while it is not loaded. */
  rowAt: (index: number) => Row | undefined;
  rowKey: (row: Row) => string;
  sort?: Sort | undefined;
  onSort?: ((sort: Sort) => void) | undefined;
  onOpen?: ((row: Row) => void) | undefined;
  selected?: string | null | undefined;
  /** Called with the range of visible rows, to load them. */
  onVisible?: ((first: number, last: number) => void) | undefined;
  rowClass?: ((row: Row) => string | undefined) | undefined;
  label: string;
  empty?: ReactNode;
  /** True for a list that grows at the top: keeps the scroll position. */
  keepsPlace?: boolean;
  /** The table's height; by default it fills its parent. */
  height?: number | string;
}

const ROW_HEIGHT = 28;
const SPARE_ROWS = 8;

/** A table of any length: only visible rows are in the document. */
export function VirtualTable<Row>(props: VirtualProps<Row>) {
  const {
    columns: known,
    count,
    rowAt,
    rowKey,
    onOpen,
    selected,
    onVisible,
    rowClass,
    label,
    empty,
    height = "100%",
  } = props;
  const { keepsPlace = false } = props;
  const box = useRef<HTMLDivElement>(null);
  const [scroll, setScroll] = useState({ top: 0, height: 400, width: Infinity });
  const [cursor, setCursor] = useState(-1);
  const columns = useMemo(() => fitting(known, scroll.width), [known, scroll.width]);
  const template = columns.map((column) => column.width ?? "minmax(80px, 1fr)").join(" ");
  const minWidth = leastWidth(columns);

  useEffect(() => {
    const element = box.current;
    if (element === null) return undefined;
    const measure = () => setScroll(extentOf(element));
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const top = useRef<{ index: number; key: string } | null>(null);
  useLayoutEffect(() => {
    const element = box.current;
    if (!keepsPlace || element === null) return;
    const held = top.current;
    if (held !== null) {
      let index = held.index;
      while (index < count && keyAt(index) !== held.key) index += 1;
      if (index < count) element.scrollTop += (index - held.index) * ROW_HEIGHT;
    }
    const index = Math.floor(element.scrollTop / ROW_HEIGHT);
    const key = element.scrollTop > 0 ? keyAt(index) : undefined;
    top.current = key === undefined ? null : { index, key };
  });
  const keyAt = (index: number) => {
    const row = rowAt(index);
    return row === undefined ? undefined : rowKey(row);
  };

  const first = Math.max(0, Math.floor(scroll.top / ROW_HEIGHT) - SPARE_ROWS);
  const last = Math.min(count, Math.ceil((scroll.top + scroll.height) / ROW_HEIGHT) + SPARE_ROWS);
  useEffect(() => onVisible?.(first, last), [onVisible, first, last]);

  const onKeyDown = (event: KeyboardEvent) => {
    const move = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[event.key];
    const row = cursor >= 0 ? rowAt(cursor) : undefined;
    if (event.key === "Enter" && row !== undefined) onOpen?.(row);
    if (move === undefined || count === 0) return;
    event.preventDefault();
    const next = Math.min(count - 1, Math.max(0, cursor + move));
    setCursor(next);
    const element = box.current;
    if (element === null) return;
    const top = next * ROW_HEIGHT;
    if (top < element.scrollTop) element.scrollTop = top;
    const room = element.clientHeight - 2 * ROW_HEIGHT;
    if (top > element.scrollTop + room) element.scrollTop = top - room;
  };

  const rows: ReactNode[] = [];
  for (let index = first; index < last; index += 1) {
    const row = rowAt(index);
    const key = row === undefined ? `unloaded ${index}` : rowKey(row);
    const classes = [
      "table-row",
      index === cursor ? "is-cursor" : "",
      row !== undefined && key === selected ? "is-selected" : "",
    ];
    rows.push(
      <div
        key={key}
        role="row"
        aria-rowindex={index + 2}
        className={[...classes, (row !== undefined && rowClass?.(row)) || "", onOpen ? "is-clickable" : ""]
          .filter(Boolean)
          .join(" ")}
        style={{ gridTemplateColumns: template, minWidth, transform: `translateY(${index * ROW_HEIGHT}px)` }}
        onClick={() => {
          setCursor(index);
          if (row !== undefined) onOpen?.(row);
        }}
      >
        {columns.map((column) => (
          <div key={column.key} role="cell" className={column.align === "right" ? "cell is-right" : "cell"}>
            {row === undefined ? "…" : column.render(row)}
          </div>
        ))}
      </div>,
    );
  }
  return (
    <div
      ref={box}
      className="table"
      role="table"
      aria-label={label}
      aria-rowcount={count + 1}
      tabIndex={0}
      style={{ height }}
      onScroll={(event) => setScroll(extentOf(event.currentTarget))}
      onKeyDown={onKeyDown}
    >
      <TableHead {...props} columns={columns} template={template} minWidth={minWidth} />
      <div className="table-body" style={{ height: count * ROW_HEIGHT }}>
        {rows}
      </div>
      {count === 0 && empty}
    </div>
  );
}

/** The sum of the columns' minimum widths: with less room, the table scrolls. Equal in all rows, so columns line up. */
export function leastWidth(columns: readonly { width?: string }[]): number {
  return columns.reduce((sum, column) => sum + Number(/([\d.]+)px/.exec(column.width ?? "80px")?.[1] ?? 80), 0);
}

function extentOf({ scrollTop, clientHeight, clientWidth }: HTMLDivElement) {
  return { top: scrollTop, height: clientHeight, width: clientWidth };
}

/** The columns to show in a width: without spare ones, from the last, as long as they do not all fit. */
export function fitting<Some extends { width?: string; isSpare?: boolean }>(columns: readonly Some[], width: number) {
  const shown = [...columns];
  for (const column of [...columns].reverse())
    if (column.isSpare === true && leastWidth(shown) > width) shown.splice(shown.indexOf(column), 1);
  return shown;
}

function TableHead<Row>({
  columns,
  sort,
  onSort,
  template,
  minWidth,
}: VirtualProps<Row> & { template: string; minWidth: number }) {
  return (
    <div className="table-head" role="row" style={{ gridTemplateColumns: template, minWidth }}>
      {columns.map((column) => {
        const isSorted = sort?.key === column.key;
        const canSort = onSort !== undefined && (column.value !== undefined || column.isSortable === true);
        const className = column.align === "right" ? "cell is-right" : "cell";
        const order = isSorted ? (sort.descending ? "descending" : "ascending") : "none";
        return (
          <div
            key={column.key}
            role="columnheader"
            className={className}
            aria-sort={canSort ? order : undefined}
            title={column.hint}
          >
            {canSort ? (
              <button
                type="button"
                onClick={() =>
                  onSort({ key: column.key, descending: isSorted ? !sort.descending : column.align === "right" })
                }
              >
                <span className="sort-title">
                  {column.title}
                  <span className="sort-mark">{isSorted ? (sort.descending ? "▾" : "▴") : ""}</span>
                </span>
              </button>
            ) : (
              column.title
            )}
          </div>
        );
      })}
    </div>
  );
}

type TableProps<Row> = Omit<VirtualProps<Row>, "count" | "rowAt" | "onVisible"> & { rows: readonly Row[] };

/** A table of loaded rows, which it sorts. */
export function Table<Row>({ rows, ...rest }: TableProps<Row>) {
  const { columns, sort } = rest;
  const value = columns.find((column) => column.key === sort?.key)?.value;
  const descending = sort?.descending ?? false;
  const sorted = useMemo(
    () => (value === undefined ? rows : [...rows].sort((one, other) => compare(value(one), value(other), descending))),
    [rows, value, descending],
  );
  return <VirtualTable {...rest} count={sorted.length} rowAt={(index) => sorted[index]} />;
}

type Sortable = number | string | null | undefined;

/** Orders numbers by value and text alphabetically; missing values come last in either direction. */
export function compare(one: Sortable, other: Sortable, descending: boolean): number {
  const isOneMissing = one === null || one === undefined || Number.isNaN(one);
  const isOtherMissing = other === null || other === undefined || Number.isNaN(other);
  if (isOneMissing || isOtherMissing) return Number(isOneMissing) - Number(isOtherMissing);
  const order =
    typeof one === "number" && typeof other === "number"
      ? one - other
      : String(one).localeCompare(String(other), "en", { numeric: true });
  return descending ? -order : order;
}
