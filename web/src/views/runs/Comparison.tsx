import { useMemo } from "react";
import { type RunComparison, type WallTime, api } from "../../api";
import { Chart } from "../../components/Chart";
import { EmptyState } from "../../components/EmptyState";
import { Loading } from "../../components/Loading";
import { Panel } from "../../components/Panel";
import { figure, text } from "../../components/columns";
import { type Column, Table, parseSort, sortText } from "../../components/Table";
import { colorOfName } from "../../colors";
import { formatBytes, formatSeconds, metricFormatter, shorten } from "../../units";
import { useUrlState } from "../../url";
import { type Query, useAnswer, useQuery } from "../../useQuery";
import { type RunData, STEP_TIME, byStep, commonQuantities, firstShown, overlay } from "./compare";
import { WhatDiffers } from "./Difference";
import { ErrorLine } from "../../components/ErrorLine";

const MOST_STEPS = 1000;
const ONE_COLOR = "#0072b2";
const OTHER_COLOR = "#d55e00";

function useRunData(run: string): Query<RunData> {
  return useQuery(
    `compare ${run}`,
    async (signal) => {
      const steps = await api.steps({ run, limit: MOST_STEPS }, signal);
      const first = steps[0]?.step ?? 0;
      const last = steps.at(-1)?.step ?? 0;
      const [metrics, listed] = await Promise.all([
        api.stepMetrics({ run, first, last: Math.min(last, first + MOST_STEPS - 1) }, signal),
        api.metrics({ run }, signal),
      ]);
      return { steps, metrics, listed };
    },
    { everyMs: 5000, keep: false },
  );
}

/** Two runs: the differences in words, common quantities by step, overlaid, and the differences in wall time. */
export function Comparison({ one, other }: { one: string; other: string }) {
  const { data, error } = useAnswer("runs/compare", { run: one, other }, { everyMs: 10_000, keep: false });
  return (
    <>
      {error !== undefined ? (
        <ErrorLine text={error} />
      ) : data === undefined ? (
        <Loading text="Comparing…" />
      ) : (
        <WhatDiffers found={data} />
      )}
      <Quantities one={one} other={other} />
      {data !== undefined && (
        <Panel title={data.is_per_step ? "Difference in wall time per step" : "Difference in wall time"}>
          <DifferenceTable found={data} />
        </Panel>
      )}
    </>
  );
}

function Quantities({ one, other }: { one: string; other: string }) {
  const first = useRunData(one);
  const second = useRunData(other);
  const [chosen, setChosen] = useUrlState("show", []);
  const problem = first.error ?? second.error;
  if (problem !== undefined) return <ErrorLine text={problem} />;
  if (first.data === undefined || second.data === undefined) return <Loading />;
  const [a, b] = [first.data, second.data];
  const offered = commonQuantities(a, b);
  const shown = chosen.length > 0 ? chosen.filter((name) => offered.includes(name)) : firstShown(offered, a);
  const toggle = (name: string) =>
    setChosen(shown.includes(name) ? shown.filter((one_) => one_ !== name) : [...shown, name]);
  return (
    <>
      <div className="toolbar" role="group" aria-label="Quantities to compare">
        {offered.slice(0, 60).map((name) => (
          <button
            key={name}
            type="button"
            className="chip"
            aria-pressed={shown.includes(name)}
            onClick={() => toggle(name)}
          >
            {shorten(name, 50)}
          </button>
        ))}
      </div>
      <div className="grid">
        {shown.map((name) => (
          <Overlaid key={name} name={name} one={a} other={b} names={[one, other]} />
        ))}
      </div>
    </>
  );
}

interface PairProps {
  one: RunData;
  other: RunData;
  names: readonly [string, string];
}

function Overlaid({ name, one, other, names }: PairProps & { name: string }) {
  const found = useMemo(() => overlay(byStep(one, name), byStep(other, name)), [one, other, name]);
  const series = useMemo(
    () => [
      { label: shorten(names[0], 40), values: found.one, color: ONE_COLOR },
      {
        label: names[1] === names[0] ? `${shorten(names[1], 38)} ′` : shorten(names[1], 40),
        values: found.other,
        color: OTHER_COLOR,
        isDashed: true,
      },
    ],
    [found, names[0], names[1]],
  );
  return (
    <Panel className="span-6" title={name}>
      {found.steps.length === 0 ? (
        <EmptyState title="No steps" text="Record steps with insight.set_step or insight.step." />
      ) : (
        <Chart
          label={name}
          x={found.steps}
          series={series}
          xKind="step"
          format={name === STEP_TIME ? formatSeconds : metricFormatter(name)}
          height={150}
          syncKey="compare"
          isBinary={metricFormatter(name) === formatBytes}
        />
      )}
    </Panel>
  );
}

const KIND_HINT =
  "Phases of the leading role are those of an average lane; of other spans, at least one was running for this long";

function DifferenceTable({ found }: { found: RunComparison }) {
  const [order, setOrder] = useUrlState("sort", "-more");
  const rows = found.wall_times;
  const columns = useMemo<Column<WallTime>[]>(() => {
    const largest = Math.max(1e-9, ...rows.map((row) => Math.abs(row.difference_s)));
    const time = (key: "first_s" | "second_s" | "first_p95_s" | "second_p95_s", title: string, hint: string) =>
      figure<WallTime>(key, title, "130px", (row) => row[key], formatSeconds, { hint });
    return [
      {
        key: "name",
        title: "Name",
        width: "minmax(160px, 1.5fr)",
        value: (row) => row.name,
        render: (row) => (
          <span title={row.name}>
            <i className="swatch" style={{ background: colorOfName(row.name) }} /> {row.name}
          </span>
        ),
      },
      text("kind", "Kind", "80px", (row) => row.kind, { hint: KIND_HINT }),
      time("first_s", "First", found.first),
      time("second_s", "Second", found.second),
      figure("more", "Difference", "minmax(200px, 1.5fr)", (row) => Math.abs(row.difference_s), formatSeconds, {
        render: (row) => <DifferenceBar row={row} largest={largest} />,
      }),
      figure(
        "ratio",
        "Ratio",
        "90px",
        (row) => row.ratio,
        (ratio) => (ratio == null ? "–" : `× ${ratio.toFixed(2)}`),
      ),
      time("first_p95_s", "p95 first", "95 % of the spans are shorter"),
      time("second_p95_s", "p95 second", "95 % of the spans are shorter"),
    ];
  }, [rows, found.first, found.second]);
  return (
    <Table
      label="Differences"
      columns={columns}
      rows={rows}
      rowKey={(row) => `${row.kind} ${row.name}`}
      sort={parseSort(order)}
      onSort={(sort) => setOrder(sortText(sort))}
      height={360}
      empty={<p className="muted">Neither run has spans.</p>}
    />
  );
}

/** To the right: the second run needs more; to the left: less. */
function DifferenceBar({ row, largest }: { row: WallTime; largest: number }) {
  const share = (Math.abs(row.difference_s) / largest) * 50;
  const isMore = row.difference_s > 0;
  return (
    <span className="difference">
      <i
        style={{
          left: isMore ? "50%" : `${50 - share}%`,
          width: `${share}%`,
          background: isMore ? OTHER_COLOR : ONE_COLOR,
        }}
      />
      <span>
        {row.difference_s === 0 ? "same" : `${isMore ? "+" : "−"}${formatSeconds(Math.abs(row.difference_s))}`}
      </span>
    </span>
  );
}
