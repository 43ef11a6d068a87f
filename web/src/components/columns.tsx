import type { ReactNode } from "react";
import type { Column } from "./Table";

type More<Row> = Partial<Pick<Column<Row>, "hint" | "isSortable" | "isSpare" | "render">>;

/** A sortable, right-aligned column of numbers, formatted by `format`. */
export function figure<Row>(
  key: string,
  title: string,
  width: string,
  value: (row: Row) => number | null | undefined,
  format: (value: number | null | undefined) => ReactNode,
  more: More<Row> = {},
): Column<Row> {
  return { key, title, width, align: "right", value, render: (row) => format(value(row)), ...more };
}

/** A sortable text column; the tooltip has the full text. */
export function text<Row>(
  key: string,
  title: string,
  width: string,
  value: (row: Row) => string | null | undefined,
  more: More<Row> = {},
): Column<Row> {
  const shown = (row: Row) => <span title={value(row) ?? ""}>{value(row) ?? "–"}</span>;
  return { key, title, width, value, render: shown, ...more };
}
