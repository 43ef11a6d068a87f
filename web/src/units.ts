// Human-readable numbers: ms and s, GiB, tokens, clock times.
import { nowMs } from "./reportFacts";

const NS = { us: 1e3, ms: 1e6, s: 1e9, min: 60e9, h: 3600e9, d: 86_400e9 } as const;
const UNKNOWN = "–";

/** Rounds to three figures without an exponent: 12.3, 1.23, 123. */
function threeFigures(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

/** A duration in nanoseconds: `1.25 ms`, `12.3 s`, `3 min 20 s`, `2 h 05 min`. */
export function formatDuration(ns: number | null | undefined): string {
  if (ns === null || ns === undefined || !Number.isFinite(ns)) return UNKNOWN;
  const size = Math.abs(ns);
  if (size < 1) return "0 s";
  if (size < NS.us) return `${Math.round(ns)} ns`;
  if (size < NS.ms) return `${threeFigures(ns / NS.us)} µs`;
  if (size < NS.s) return `${threeFigures(ns / NS.ms)} ms`;
  if (size < NS.min) return `${threeFigures(ns / NS.s)} s`;
  const sign = ns < 0 ? "-" : "";
  return sign + longDuration(size);
}

function longDuration(ns: number): string {
  const seconds = Math.round(ns / NS.s);
  const pad = (value: number) => String(value).padStart(2, "0");
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${pad(seconds % 60)} s`;
  const minutes = Math.floor(seconds / 60);
  if (seconds < 86_400) return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} min`;
  const hours = Math.floor(minutes / 60);
  return `${Math.floor(hours / 24)} d ${pad(hours % 24)} h`;
}

/** A duration in seconds, written like `formatDuration`. */
export function formatSeconds(seconds: number | null | undefined): string {
  return formatDuration(seconds === null || seconds === undefined ? seconds : seconds * NS.s);
}

/** A size: `1.50 GiB`. */
export function formatBytes(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined || !Number.isFinite(bytes)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : threeFigures(value)} ${units[unit]}`;
}

/** An integer in full: `12,345`. */
export function formatCount(count: number | null | undefined): string {
  return count === null || count === undefined ? UNKNOWN : count.toLocaleString("en-US", { maximumFractionDigits: 0 });
}

/** How many of something: `1 process`, `12 lanes`. */
export function counted(count: number | undefined, one: string, many = `${one}s`): string {
  return `${formatCount(count)} ${count === 1 ? one : many}`;
}

/** Any number, short: `0.123`, `12.3`, `1.23 k`, `4.5 M`, `1.2e-7`. */
export function formatNumber(value: number | null | undefined): string {
  if (value === null || value === undefined) return UNKNOWN;
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3) return value.toExponential(1);
  if (size < 1) return trimmed(value.toFixed(3));
  if (size < 1000) return Number.isInteger(value) ? String(value) : trimmed(threeFigures(value));
  for (const [factor, unit] of [
    [1e3, "k"],
    [1e6, "M"],
    [1e9, "G"],
    [1e12, "T"],
  ] as const) {
    if (size < factor * 999.5) return `${trimmed(threeFigures(value / factor))} ${unit}`;
  }
  return value.toExponential(2);
}

function trimmed(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** Tokens: `1.2 k tokens`. */
export function formatTokens(tokens: number | null | undefined): string {
  return tokens === null || tokens === undefined ? UNKNOWN : `${formatNumber(tokens)} tokens`;
}

/** A share from 0 to 1: `31 %`. */
export function formatShare(share: number | null | undefined): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return UNKNOWN;
  const percent = share * 100;
  return `${percent !== 0 && Math.abs(percent) < 9.95 ? trimmed(percent.toFixed(1)) : percent.toFixed(0)} %`;
}

/** The nearest millisecond: a full second in nanoseconds can be a fraction of a microsecond less as a number. */
function dateOf(ns: number): Date {
  return new Date(Math.round(ns / NS.ms));
}

/** A clock time with milliseconds where they matter: `14:03:22.125`. */
export function formatClock(ns: number | null | undefined, withMilliseconds = false): string {
  if (ns === null || ns === undefined) return UNKNOWN;
  const date = dateOf(ns);
  const pad = (value: number, width = 2) => String(value).padStart(width, "0");
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return withMilliseconds ? `${clock}.${pad(date.getMilliseconds(), 3)}` : clock;
}

/** A date and time: `2025-11-15 14:03:22`. */
export function formatDate(ns: number | null | undefined): string {
  if (ns === null || ns === undefined) return UNKNOWN;
  const date = dateOf(ns);
  const pad = (value: number) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${formatClock(ns)}`;
}

/** The day of a time: `10-09`. */
function dayOf(ns: number): string {
  return formatDate(ns).slice(5, 10);
}

/** A clock time; with the day unless it is today: `10-09 14:03:22`. */
export function formatMoment(ns: number | null | undefined, todayNs: number = nowMs() * NS.ms): string {
  if (ns === null || ns === undefined) return UNKNOWN;
  return formatDate(ns).slice(0, 10) === formatDate(todayNs).slice(0, 10)
    ? formatClock(ns)
    : `${dayOf(ns)} ${formatClock(ns)}`;
}

/**
 * Clock times along an axis, with milliseconds if ticks are less than a second apart; the first tick of a day shows the
 * date, unless it is today.
 */
export function tickTexts(times: readonly number[], todayNs: number = nowMs() * NS.ms): string[] {
  let day = formatDate(todayNs).slice(0, 10);
  const isFine = times.length > 1 && times[1]! - times[0]! < NS.s;
  return times.map((ns) => {
    const own = formatDate(ns).slice(0, 10);
    const text = own === day ? formatClock(ns, isFine) : `${dayOf(ns)} ${formatClock(ns).slice(0, 5)}`;
    day = own;
    return text;
  });
}

/** How long ago: `12 s ago`. */
export function formatAgo(ns: number | null | undefined, nowNs: number = nowMs() * NS.ms): string {
  if (ns === null || ns === undefined) return UNKNOWN;
  const age = nowNs - ns;
  return age < NS.s ? "just now" : `${age < NS.min ? `${Math.round(age / NS.s)} s` : longDuration(age)} ago`;
}

export type Formatter = (value: number | null | undefined) => string;

/** Chooses the format of a metric's values by the unit at the end of its name. */
export function metricFormatter(name: string): Formatter {
  const base = name.toLowerCase().replace(/_(total|mean|avg|average|max|min|sum|last|p\d+)$/, "");
  if (/(_per_s|_per_second|_per_sec)$/.test(base)) return (value) => `${formatNumber(value)}/s`;
  if (/(^|_)(ns|nanoseconds)$/.test(base)) return formatDuration;
  if (/(^|_)(ms|milliseconds)$/.test(base)) return (value) => formatSeconds(value == null ? value : value / 1e3);
  if (/(^|_)(s|sec|secs|seconds)$/.test(base)) return formatSeconds;
  if (/(^|_)bytes$/.test(base)) return formatBytes;
  if (/(^|_)mib$/.test(base)) return (value) => formatBytes(value == null ? value : value * 2 ** 20);
  if (/(^|_)(gib|gb)$/.test(base)) return (value) => formatBytes(value == null ? value : value * 2 ** 30);
  if (/(^|_)(ratio|share|fraction)$/.test(base)) return formatShare;
  if (/(^|_)(hertz|hz)$/.test(base)) return (value) => `${formatNumber(value)}Hz`;
  if (/(_ratio|_share|_fraction)$/.test(base)) return formatShare;
  if (/(percent|_pct|utilization|utilisation|_util)$/.test(base)) return (value) => `${formatNumber(value)} %`;
  if (/(celsius)$/.test(base)) return (value) => `${formatNumber(value)} °C`;
  if (/(watts)$/.test(base)) return (value) => `${formatNumber(value)} W`;
  return formatNumber;
}

/** A log level as text: 40 is `ERROR`. */
export function formatLevel(level: number): string {
  if (level >= 50) return "CRITICAL";
  if (level >= 40) return "ERROR";
  if (level >= 30) return "WARNING";
  if (level >= 20) return "INFO";
  return "DEBUG";
}

/** Truncates text; put the full text into a title or a panel. */
export function shorten(text: string, length: number): string {
  return text.length <= length ? text : `${text.slice(0, Math.max(1, length - 1))}…`;
}
