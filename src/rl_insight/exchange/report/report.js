"use strict";
// Draws a report from the JSON in #report-data. All text goes in as text, never as markup.
(() => {
  const report = JSON.parse(document.getElementById("report-data").textContent);
  const root = document.getElementById("report");
  const redraws = [];

  // -- small helpers

  function element(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name === "class") made.className = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name in made && name !== "list") made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  function css(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // No reds: they mean errors.
  const HUES = [217, 152, 31, 268, 190, 300, 95, 48, 239, 170];
  const hueOf = new Map();
  function color(name, alpha = 1) {
    if (!hueOf.has(name)) hueOf.set(name, hueOf.size);
    const place = hueOf.get(name);
    const dark = document.documentElement.dataset.theme === "dark";
    const light = (dark ? 62 : 52) - 9 * (Math.floor(place / HUES.length) % 3);
    return `hsl(${HUES[place % HUES.length]} 62% ${light}% / ${alpha})`;
  }
  const OUTCOMES = { error: "--bad", failed: "--bad", lost: "--bad", cancelled: "--warn", dropped: "--warn", rejected: "--warn" };
  function outcomeColor(status) {
    return OUTCOMES[status] ? css(OUTCOMES[status]) : color(status);
  }

  function duration(seconds) {
    if (seconds === null || seconds === undefined || !isFinite(seconds)) return "";
    const size = Math.abs(seconds);
    if (size >= 3600) return (seconds / 3600).toFixed(2) + " h";
    if (size >= 60) return (seconds / 60).toFixed(2) + " min";
    if (size >= 1) return seconds.toFixed(2) + " s";
    if (size >= 1e-3) return (seconds * 1e3).toFixed(2) + " ms";
    return size === 0 ? "0" : (seconds * 1e6).toFixed(1) + " µs";
  }
  // The same, short enough for an axis.
  function axisTime(seconds) {
    for (const [unit, size] of [["h", 3600], ["min", 60], ["s", 1], ["ms", 1e-3]]) {
      if (Math.abs(seconds) >= size * 0.9995) return Number((seconds / size).toPrecision(3)) + " " + unit;
    }
    return seconds === 0 ? "0" : Number((seconds * 1e6).toPrecision(3)) + " µs";
  }
  const whole = (number) => Number(number).toLocaleString("en-US");
  function compact(value) {
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e6 || size < 1e-3)) {
      for (const [unit, scale] of [["T", 1e12], ["G", 1e9], ["M", 1e6]]) if (size >= scale) return (value / scale).toFixed(1) + unit;
      return value.toExponential(1);
    }
    return Number(value.toPrecision(4)).toLocaleString("en-US");
  }
  const moment = (ns) => new Date(ns / 1e6).toISOString().replace("T", " ").slice(0, 23);

  const tip = element("div", { class: "tip", hidden: true, role: "tooltip" });
  function showTip(event, text) {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 8)) + "px";
  }

  function section(id, title, note, ...children) {
    const heading = element("h2", {}, title, note ? element("small", {}, note) : null);
    const made = element("section", { id }, heading, ...children);
    root.append(made);
    navigation.append(element("a", { href: "#" + id }, title));
    return made;
  }

  // A canvas that is as sharp as the screen, and drawn again when its width or the theme changes.
  function canvas(height, draw) {
    const made = element("canvas");
    made.style.height = height + "px";
    const paint = () => {
      const width = made.clientWidth;
      if (!width) return;
      const ratio = devicePixelRatio || 1;
      const tall = parseFloat(made.style.height);
      made.width = width * ratio;
      made.height = tall * ratio;
      const pen = made.getContext("2d");
      pen.scale(ratio, ratio);
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      draw(pen, width, tall);
    };
    new ResizeObserver(paint).observe(made);
    redraws.push(paint);
    made.paint = paint;
    return made;
  }

  function ticks(low, high, count) {
    const rough = (high - low) / Math.max(count, 1);
    if (!(rough > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
    return found;
  }

  function logTicks(low, high) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const factor of [1, 3]) {
        const value = factor * 10 ** power;
        if (value >= low && value <= high) found.push(value);
      }
    }
    return found.length ? found : [low, high];
  }

  // An x/y chart frame: axes, grid, and functions from values to pixels.
  function frame(pen, width, height, { x, y, xText, yText, log = false }) {
    const left = 58, right = 10, top = 8, bottom = 22;
    const [xLow, xHigh] = x[0] === x[1] ? [x[0] - 0.5, x[1] + 0.5] : x;
    let [yLow, yHigh] = y;
    if (log) { yLow = Math.max(yLow, 1e-9); yHigh = Math.max(yHigh, yLow * 1.5); }
    else if (yLow === yHigh) { yLow -= Math.abs(yLow) * 0.05 || 0.5; yHigh += Math.abs(yHigh) * 0.05 || 0.5; }
    const toX = (value) => left + ((value - xLow) / (xHigh - xLow)) * (width - left - right);
    const scaled = log ? Math.log : (value) => value;
    const toY = (value) => height - bottom - ((scaled(log ? Math.max(value, yLow) : value) - scaled(yLow)) / (scaled(yHigh) - scaled(yLow))) * (height - top - bottom);
    pen.clearRect(0, 0, width, height);
    pen.strokeStyle = css("--line");
    pen.fillStyle = css("--faint");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    for (const value of log ? logTicks(yLow, yHigh) : ticks(yLow, yHigh, 4)) {
      const at = Math.round(toY(value)) + 0.5;
      pen.beginPath(); pen.moveTo(left, at); pen.lineTo(width - right, at); pen.stroke();
      pen.fillText(yText(value), left - 6, at);
    }
    pen.textAlign = "center";
    for (const value of ticks(xLow, xHigh, Math.max(2, Math.floor(width / 110)))) {
      pen.fillText(xText(value), Math.min(Math.max(toX(value), left + 10), width - right - 16), height - 9);
    }
    return { toX, toY, left, right, top, bottom, fromX: (pixel) => xLow + ((pixel - left) / (width - left - right)) * (xHigh - xLow) };
  }

  function sortableTable(columns, rows, sortedBy, isShown = () => true) {
    let by = sortedBy, descending = true;
    const head = element("tr");
    const body = element("tbody");
    columns.forEach((column, place) => {
      const cell = element("th", { tabIndex: 0, onclick: () => order(place) }, column.title);
      cell.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); order(place); } });
      head.append(cell);
    });
    function order(place) {
      descending = place === by ? !descending : place !== 0;
      by = place;
      fill();
    }
    function fill() {
      [...head.children].forEach((cell, place) => {
        if (place === by) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      });
      const value = columns[by].value;
      const sorted = rows.filter(isShown).sort((one, other) => {
        const [a, b] = [value(one), value(other)];
        const compared = typeof a === "string" ? String(a).localeCompare(String(b)) : (a ?? -Infinity) - (b ?? -Infinity);
        return descending ? -compared : compared;
      });
      body.replaceChildren(...sorted.map((row) => element("tr", {}, ...columns.map((column) => {
        const cell = element("td", { class: column.bad && column.bad(row) ? "bad" : "" });
        if (column.share) {
          const bar = element("span", { class: "share" });
          bar.style.width = Math.round(column.share(row) * 60) + "px";
          cell.append(bar);
        }
        cell.append(column.text ? column.text(row) : String(column.value(row)));
        return cell;
      }))));
    }
    fill();
    return { node: element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), body)), fill };
  }

  // -- page

  const run = report.run;
  const navigation = element("nav");
  const stored = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = new URLSearchParams(location.search).get("theme") || stored;
  const repaint = () => redraws.forEach((paint) => paint());
  const themeButton = element("button", {
    type: "button",
    onclick: () => {
      const now = document.documentElement.dataset.theme;
      document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
      repaint();
    },
  }, "Dark / light");
  root.append(
    element("header", {}, element("h1", {}, run.run_id || "run"),
      element("span", { class: "about" }, [run.project, run.experiment_name].filter(Boolean).join(" / ")), themeButton),
    navigation);
  document.body.append(tip);

  function overview() {
    const lasted = run.start_ns === null ? null : (run.end_ns - run.start_ns) / 1e9;
    const times = report.steps.map((step) => (step.end_ns - step.start_ns) / 1e9).sort((a, b) => a - b);
    const errors = report.hotspots.reduce((sum, spot) => sum + spot.errors, 0);
    const cards = [
      ["duration", duration(lasted)],
      ["steps", run.first_step === null ? "none" : `${run.first_step} to ${run.last_step}`],
      ["median step", times.length ? duration(times[times.length >> 1]) : ""],
      ["processes", whole(run.processes)],
      ["spans", whole(run.spans)],
      ["open spans", whole(run.open_spans), run.open_spans > 0],
      ["errors in scope", whole(errors), errors > 0],
      ["sessions", whole(run.sessions)],
      ["log lines", whole(run.logs)],
      ["lost records", whole(run.lost), run.lost > 0],
    ].filter(([, value]) => value !== "");
    const made = section("overview", "Overview", run.start_ns === null ? "" : `${moment(run.start_ns)} UTC · scope: ${report.scope}`,
      element("div", { class: "cards" }, ...cards.map(([name, value, bad]) =>
        element("div", { class: bad ? "card bad" : "card" }, element("div", { class: "value" }, value), element("div", { class: "name" }, name)))));
    for (const finding of report.findings) {
      made.append(element("div", { class: "finding" }, `${finding.severity}: ${finding.title}`));
    }
    if (report.losses.length) {
      made.append(element("p", { class: "note" }, "Lost: " + report.losses.slice(0, 8)
        .map((loss) => `${whole(loss.count)} ${loss.kind} (${loss.reason}) by ${loss.role || loss.process_id}`).join(", ")));
    }
    if (report.steps.length > 1) made.append(element("h3", { class: "below" }, "Time of each step", element("small", {}, " with a red edge where there were errors")), stepChart());
  }

  function stepChart() {
    const steps = report.steps;
    const seconds = steps.map((step) => (step.end_ns - step.start_ns) / 1e9);
    let axes = null;
    const made = canvas(130, (pen, width, height) => {
      axes = frame(pen, width, height, {
        x: [steps[0].step - 0.5, steps[steps.length - 1].step + 0.5], y: [0, Math.max(...seconds)],
        xText: (value) => Number.isInteger(value) ? String(value) : "", yText: axisTime,
      });
      const wide = Math.max(1, (axes.toX(1) - axes.toX(0)) * 0.8);
      steps.forEach((step, place) => {
        const top = axes.toY(seconds[place]);
        pen.fillStyle = css("--accent");
        pen.fillRect(axes.toX(step.step) - wide / 2, top, wide, axes.toY(0) - top);
        if (step.errors) {
          pen.fillStyle = css("--bad");
          pen.fillRect(axes.toX(step.step) - wide / 2, top - 3, wide, 3);
        }
      });
    });
    made.addEventListener("pointermove", (event) => {
      const at = Math.round(axes.fromX(event.offsetX));
      const place = steps.findIndex((step) => step.step === at);
      showTip(event, place < 0 ? "" : `step ${at}\n${duration(seconds[place])}, ${whole(steps[place].spans)} spans, ${steps[place].errors} errors`);
    });
    made.addEventListener("pointerleave", (event) => showTip(event, ""));
    return made;
  }

  function hotspots() {
    if (!report.hotspots.length) return;
    const rows = report.hotspots;
    const most = Math.max(...rows.map((row) => row.wall_ns), 1);
    const time = (name) => ({ value: (row) => row[name], text: (row) => duration(row[name] / 1e9) });
    let wanted = "";
    const table = sortableTable([
      { title: "name", value: (row) => row.name || "" },
      { title: "wall", ...time("wall_ns"), share: (row) => row.wall_ns / most },
      { title: "count", value: (row) => row.count, text: (row) => whole(row.count) },
      { title: "avg", ...time("average_ns") }, { title: "p50", ...time("p50_ns") }, { title: "p95", ...time("p95_ns") },
      { title: "p99", ...time("p99_ns") }, { title: "max", ...time("max_ns") }, { title: "total", ...time("total_ns") },
      { title: "errors", value: (row) => row.errors, text: (row) => row.errors ? whole(row.errors) : "", bad: (row) => row.errors },
      { title: "open", value: (row) => row.open, text: (row) => row.open ? whole(row.open) : "", bad: (row) => row.open },
    ], rows, 1, (row) => (row.name || "").toLowerCase().includes(wanted));
    const search = element("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name",
      oninput: (event) => { wanted = event.target.value.toLowerCase(); table.fill(); } });
    section("hotspots", "Hotspots", `${report.scope} · wall: at least one was running; total: all added up`,
      element("div", { class: "tools" }, search), table.node);
  }

  function timeline() {
    const data = report.timeline;
    if (!data || !data.lane_id.length) return;
    const lanes = [];
    const rowOf = new Map();
    const known = new Map(report.lanes.map((lane) => [lane.lane_id, lane]));
    let tall = 0;
    const ROW = 15;
    for (const lane of report.lanes) {
      const depths = [];
      for (let place = 0; place < data.lane_id.length; place++) if (data.lane_id[place] === lane.lane_id) depths.push(data.depth[place]);
      if (!depths.length) continue;
      const rows = Math.min(Math.max(...depths) + 1, 6);
      lanes.push({ lane, top: tall, rows });
      rowOf.set(lane.lane_id, tall);
      tall += rows * ROW + 5;
    }
    let low = data.start_ns, high = data.end_ns;
    const left = 170, axis = 22;
    const toX = (ns, width) => left + ((ns - low) / (high - low)) * (width - left);
    const made = canvas(tall + axis, (pen, width, height) => {
      pen.clearRect(0, 0, width, height);
      pen.textAlign = "left";
      for (const { lane, top, rows } of lanes) {
        pen.fillStyle = css("--track");
        pen.fillRect(left, top + axis, width - left, rows * ROW);
        pen.fillStyle = css("--faint");
        pen.fillText(fit(pen, laneTitle(lane), left - 10), 2, top + axis + ROW / 2);
      }
      pen.save();
      pen.beginPath(); pen.rect(left, 0, width - left, height); pen.clip();
      for (let place = 0; place < data.lane_id.length; place++) {
        const begin = toX(data.block_start_ns[place], width), end = toX(data.block_end_ns[place], width);
        if (end < left || begin > width) continue;
        const y = rowOf.get(data.lane_id[place]) + axis + Math.min(data.depth[place], 5) * ROW;
        const name = data.names[data.name[place]];
        pen.fillStyle = data.errors[place] ? css("--bad") : color(name, data.open[place] ? 0.5 : 1);
        pen.fillRect(begin, y + 1, Math.max(end - begin, 0.7), ROW - 2);
        if (end - begin > 46) {
          pen.fillStyle = "#fff";
          pen.fillText(fit(pen, name, Math.min(end, width) - Math.max(begin, left) - 6), Math.max(begin, left) + 3, y + ROW / 2 + 0.5);
        }
      }
      pen.fillStyle = css("--faint");
      pen.strokeStyle = css("--line");
      pen.textAlign = "center";
      for (const value of ticks((low - data.start_ns) / 1e9, (high - data.start_ns) / 1e9, width / 130)) {
        const at = toX(data.start_ns + value * 1e9, width);
        pen.fillText("+" + axisTime(value), Math.max(at, left + 22), 9);
        pen.beginPath(); pen.moveTo(at, 16); pen.lineTo(at, height); pen.stroke();
      }
      pen.restore();
    });
    const under = (event) => {
      const width = made.clientWidth;
      const time = low + ((event.offsetX - left) / (width - left)) * (high - low);
      const slack = ((high - low) / width) * 2;
      let found = -1;
      for (let place = 0; place < data.lane_id.length; place++) {
        const y = rowOf.get(data.lane_id[place]) + axis + Math.min(data.depth[place], 5) * ROW;
        if (event.offsetY < y || event.offsetY >= y + ROW) continue;
        if (time < data.block_start_ns[place] - slack || time > data.block_end_ns[place] + slack) continue;
        if (found < 0 || data.block_end_ns[place] - data.block_start_ns[place] < data.block_end_ns[found] - data.block_start_ns[found]) found = place;
      }
      return found;
    };
    let grabbed = null;
    const limit = () => {
      const span = Math.min(Math.max(high - low, 1000), data.end_ns - data.start_ns);
      low = Math.min(Math.max(low, data.start_ns), data.end_ns - span);
      high = low + span;
    };
    function zoom(factor, around = (low + high) / 2) {
      low = around - (around - low) * factor;
      high = around + (high - around) * factor;
      limit();
      made.paint();
    }
    made.addEventListener("pointerdown", (event) => { grabbed = { x: event.clientX, low, high }; made.setPointerCapture(event.pointerId); });
    made.addEventListener("pointerup", () => { grabbed = null; });
    made.addEventListener("pointermove", (event) => {
      if (grabbed) {
        const moved = ((event.clientX - grabbed.x) / (made.clientWidth - left)) * (grabbed.high - grabbed.low);
        low = grabbed.low - moved; high = grabbed.high - moved;
        limit();
        made.paint();
        return;
      }
      const place = event.offsetX > left ? under(event) : -1;
      if (place < 0) { showTip(event, ""); return; }
      const lane = known.get(data.lane_id[place]);
      const shown = [data.names[data.name[place]] + (data.open[place] ? " (open)" : ""),
        data.count[place] > 1 ? `${whole(data.count[place])} spans, busy ${duration(data.busy_ns[place] / 1e9)}` : duration((data.block_end_ns[place] - data.block_start_ns[place]) / 1e9),
        `at +${duration((data.block_start_ns[place] - data.start_ns) / 1e9)}`, laneTitle(lane), `span ${data.span_id[place]}`];
      if (data.errors[place]) shown.push(`${data.errors[place]} errors`);
      showTip(event, shown.join("\n"));
    });
    made.addEventListener("pointerleave", (event) => showTip(event, ""));
    made.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      const at = low + ((event.offsetX - left) / (made.clientWidth - left)) * (high - low);
      zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
    }, { passive: false });
    const button = (title, action) => element("button", { type: "button", onclick: action }, title);
    const used = [...new Set(data.name)].map((place) => data.names[place]).slice(0, 16);
    section("timeline", "Timeline", report.scope,
      element("div", { class: "tools" }, button("Zoom in", () => zoom(0.5)), button("Zoom out", () => zoom(2)),
        button("All", () => { low = data.start_ns; high = data.end_ns; made.paint(); }),
        element("span", {}, "drag to move, Ctrl + wheel to zoom")),
      element("div", { class: "lanes" }, made), legend(used, color));
  }

  function laneTitle(lane) {
    const who = (lane.role || "process") + (lane.rank === null ? "" : " " + lane.rank);
    return lane.lane ? (lane.lane.startsWith(lane.role) ? lane.lane : `${who} · ${lane.lane}`) : who;
  }

  function fit(pen, text, width) {
    if (width < 12) return "";
    if (pen.measureText(text).width <= width) return text;
    let kept = text.length;
    while (kept > 1 && pen.measureText(text.slice(0, kept) + "…").width > width) kept = Math.floor(kept * 0.85);
    return kept > 1 ? text.slice(0, kept) + "…" : "";
  }

  // Ids differ at their end.
  function fitEnd(pen, text, width) {
    if (pen.measureText(text).width <= width) return text;
    let from = 1;
    while (from < text.length && pen.measureText("…" + text.slice(from)).width > width) from++;
    return "…" + text.slice(from);
  }

  function legend(names, of) {
    const made = element("div", { class: "legend" });
    const fill = () => made.replaceChildren(...names.map((name) => {
      const mark = element("i");
      mark.style.background = of(name);
      return element("span", {}, mark, name || "value");
    }));
    redraws.push(fill);
    fill();
    return made;
  }

  function scatterChart(scatter) {
    const times = scatter.start_ns, values = scatter.duration_s;
    const base = Math.min(...times);
    const span = Math.max(...times) - base;
    let axes = null;
    const made = canvas(260, (pen, width, height) => {
      axes = frame(pen, width, height, { x: [0, span / 1e9], y: [Math.max(Math.min(...values), (scatter.p50_s || 1e-6) / 50), Math.max(...values, 1e-6)],
        xText: (value) => "+" + axisTime(value), yText: axisTime, log: true });
      values.forEach((value, place) => {
        const far = value > scatter.outlier_s;
        pen.fillStyle = outcomeColor(scatter.groups[scatter.group[place]]);
        pen.globalAlpha = far ? 1 : 0.55;
        pen.beginPath();
        pen.arc(axes.toX((times[place] - base) / 1e9), axes.toY(value), far ? 3.6 : 2.1, 0, 7);
        pen.fill();
        if (far) { pen.strokeStyle = css("--ink"); pen.stroke(); }
      });
      pen.globalAlpha = 1;
      pen.textAlign = "right";
      for (const [name, value] of [["p50", scatter.p50_s], ["p95", scatter.p95_s]]) {
        const at = axes.toY(value);
        pen.strokeStyle = css("--ink"); pen.setLineDash([5, 4]);
        pen.beginPath(); pen.moveTo(axes.left, at); pen.lineTo(width - axes.right, at); pen.stroke();
        pen.setLineDash([]);
        pen.strokeStyle = css("--card"); pen.lineWidth = 3;
        pen.strokeText(`${name} ${duration(value)}`, width - axes.right - 4, at - 8);
        pen.lineWidth = 1; pen.fillStyle = css("--ink");
        pen.fillText(`${name} ${duration(value)}`, width - axes.right - 4, at - 8);
      }
    });
    made.addEventListener("pointermove", (event) => {
      let nearest = -1, best = 144;
      values.forEach((value, place) => {
        const x = axes.toX((times[place] - base) / 1e9) - event.offsetX, y = axes.toY(value) - event.offsetY;
        if (x * x + y * y < best) { best = x * x + y * y; nearest = place; }
      });
      showTip(event, nearest < 0 ? "" : `${scatter.label[nearest]}\n${duration(values[nearest])}, ${scatter.groups[scatter.group[nearest]]}\n${moment(times[nearest])} UTC`);
    });
    made.addEventListener("pointerleave", (event) => showTip(event, ""));
    const far = values.filter((value) => value > scatter.outlier_s).length;
    const shown = scatter.total > values.length ? `${whole(values.length)} of ${whole(scatter.total)} shown, outliers first` : `${whole(scatter.total)} in all`;
    return element("div", {}, made, legend(scatter.groups, outcomeColor),
      element("p", { class: "note" }, `${shown}; ${whole(far)} beyond ${duration(scatter.outlier_s)} are outliers.`));
  }

  function latency() {
    if (!report.latency.length) return;
    const place = element("div", {}, scatterChart(report.latency[0]));
    const choice = element("select", { "aria-label": "Span name", onchange: (event) => place.replaceChildren(scatterChart(report.latency[event.target.value])) },
      ...report.latency.map((scatter, number) => element("option", { value: number }, scatter.name)));
    section("latency", "Latency", `${report.scope} · each point is a span`, element("div", { class: "tools" }, choice), place);
  }

  function histogram(spread) {
    return chartWithTip(190, (pen, width, height) => {
      const axes = frame(pen, width, height, { x: [Math.log10(spread.edges[0]), Math.log10(spread.edges[spread.edges.length - 1])],
        y: [0, Math.max(...spread.counts)], xText: (value) => axisTime(10 ** value), yText: (value) => Number.isInteger(value) ? whole(value) : "" });
      const regions = [];
      spread.counts.forEach((count, place) => {
        const begin = axes.toX(Math.log10(spread.edges[place])), end = axes.toX(Math.log10(spread.edges[place + 1]));
        pen.fillStyle = css("--accent");
        pen.fillRect(begin + 0.5, axes.toY(count), Math.max(end - begin - 1, 0.5), axes.toY(0) - axes.toY(count));
        regions.push([begin, end, `${duration(spread.edges[place])} to ${duration(spread.edges[place + 1])}\n${whole(count)}`]);
      });
      pen.textAlign = "left";
      for (const [name, value] of [["p50", spread.p50], ["p95", spread.p95]]) {
        const at = axes.toX(Math.log10(Math.max(value, spread.edges[0])));
        pen.strokeStyle = css("--ink"); pen.setLineDash([5, 4]);
        pen.beginPath(); pen.moveTo(at, axes.top); pen.lineTo(at, height - axes.bottom); pen.stroke();
        pen.setLineDash([]);
        pen.fillStyle = css("--ink");
        pen.fillText(name, at + 3, axes.top + 6);
      }
      return regions;
    });
  }

  // A chart whose drawing returns [from, to, text] stretches of x for the tip.
  function chartWithTip(height, draw) {
    let regions = [];
    const made = canvas(height, (pen, width, tall) => { regions = draw(pen, width, tall) || []; });
    made.addEventListener("pointermove", (event) => {
      const hit = regions.find(([from, to]) => event.offsetX >= from && event.offsetX < to);
      showTip(event, hit ? hit[2] : "");
    });
    made.addEventListener("pointerleave", (event) => showTip(event, ""));
    return made;
  }

  function perStep(steps) {
    return chartWithTip(190, (pen, width, height) => {
      const axes = frame(pen, width, height, { x: [steps[0].step - 0.5, steps[steps.length - 1].step + 0.5],
        y: [Math.min(...steps.map((step) => step.p50).filter((value) => value > 0), 1e9), Math.max(...steps.map((step) => step.max))],
        xText: (value) => Number.isInteger(value) ? String(value) : "", yText: axisTime, log: true });
      const wide = Math.max(2, Math.min(14, (axes.toX(1) - axes.toX(0)) * 0.6));
      return steps.map((step) => {
        const at = axes.toX(step.step);
        pen.strokeStyle = css("--faint");
        pen.beginPath(); pen.moveTo(at, axes.toY(step.p95)); pen.lineTo(at, axes.toY(step.max)); pen.stroke();
        pen.fillStyle = css("--accent");
        pen.globalAlpha = 0.5;
        pen.fillRect(at - wide / 2, axes.toY(step.p95), wide, Math.max(axes.toY(step.p50) - axes.toY(step.p95), 1));
        pen.globalAlpha = 1;
        pen.fillRect(at - wide / 2, axes.toY(step.p50) - 1, wide, 2);
        pen.fillStyle = step.failed ? css("--bad") : css("--faint");
        pen.fillRect(at - wide / 2, axes.toY(step.max) - 1, wide, 2);
        return [at - wide, at + wide, `step ${step.step}: ${whole(step.count)} sessions\np50 ${duration(step.p50)}, p95 ${duration(step.p95)}, max ${duration(step.max)}${step.failed ? `\n${step.failed} failed, lost or dropped` : ""}`];
      });
    });
  }

  function sessions() {
    const data = report.sessions;
    if (!data) return;
    const cards = [["sessions", whole(data.total)], ...Object.entries(data.by_status).map(([name, count]) => [name, whole(count), Boolean(OUTCOMES[name])])];
    if (data.durations) cards.push(["p50", duration(data.durations.p50)], ["p95", duration(data.durations.p95)], ["p99", duration(data.durations.p99)], ["max", duration(data.durations.max)]);
    const time = (name) => ({ value: (row) => row[name], text: (row) => duration(row[name]) });
    const most = Math.max(...data.phases.map((phase) => phase.total_s), 1e-9);
    const boxes = element("div", { class: "two" });
    if (data.durations) boxes.append(element("div", {}, element("h3", {}, "Durations"), histogram(data.durations)));
    if (data.steps.length) boxes.append(element("div", {}, element("h3", {}, "Durations of each step: p50, p95, max"), perStep(data.steps)));
    if (data.phases.length) {
      boxes.append(element("div", {}, element("h3", {}, "Where a session's time goes"), sortableTable([
        { title: "phase or wait", value: (row) => row.name }, { title: "total", ...time("total_s"), share: (row) => row.total_s / most },
        { title: "avg", ...time("average_s") }, { title: "p50", ...time("p50_s") }, { title: "p95", ...time("p95_s") }, { title: "max", ...time("max_s") },
      ], data.phases, 1).node));
    }
    if (data.latency) boxes.append(element("div", {}, element("h3", {}, "Latency of sessions"), scatterChart(data.latency)));
    section("sessions", "Sessions", report.scope,
      element("div", { class: "cards" }, ...cards.map(([name, value, bad]) => element("div", { class: bad ? "card bad" : "card" },
        element("div", { class: "value" }, value), element("div", { class: "name" }, name)))), element("p", { class: "note" }, ""), boxes);
    if (data.gantt.length) gantt(data.gantt);
  }

  function gantt(rows) {
    const low = Math.min(...rows.map((row) => row.start_ns));
    const ends = rows.flatMap((row) => [row.end_ns, ...row.bars.map((bar) => bar.end_ns)]).filter((end) => end !== null);
    const high = Math.max(...ends, low + 1);
    const ROW = 15, left = 170, axis = 22;
    const names = [...new Set(rows.flatMap((row) => row.bars.map((bar) => bar.name)))];
    const inner = new Set(names.filter((name) => name !== "execution" && !name.endsWith(" wait")));
    const toX = (ns, width) => left + ((ns - low) / (high - low)) * (width - left - 4);
    const made = canvas(rows.length * ROW + axis, (pen, width, height) => {
      pen.clearRect(0, 0, width, height);
      pen.fillStyle = css("--faint"); pen.strokeStyle = css("--line"); pen.textAlign = "center";
      for (const value of ticks(0, (high - low) / 1e9, width / 130)) {
        const at = toX(low + value * 1e9, width);
        pen.fillText("+" + axisTime(value), Math.max(at, left + 22), 9);
        pen.beginPath(); pen.moveTo(at, 16); pen.lineTo(at, height); pen.stroke();
      }
      pen.textAlign = "left";
      rows.forEach((row, place) => {
        const y = axis + place * ROW;
        pen.fillStyle = OUTCOMES[row.status] ? outcomeColor(row.status) : css("--faint");
        pen.fillText(fitEnd(pen, row.session_id, left - 10), 2, y + ROW / 2);
        for (const bar of row.bars) {
          const begin = toX(bar.start_ns, width), end = toX(bar.end_ns === null ? high : bar.end_ns, width);
          const thin = bar.outcome === "wait" || (bar.name === "execution" && inner.size);
          pen.fillStyle = bar.outcome === "error" ? css("--bad") : color(bar.name, bar.outcome === "wait" || bar.end_ns === null ? 0.45 : 1);
          pen.fillRect(begin, thin ? y + ROW - 5 : y + 1, Math.max(end - begin, 0.8), thin ? 3 : ROW - 6);
        }
      });
    });
    made.addEventListener("pointermove", (event) => {
      const row = rows[Math.floor((event.offsetY - axis) / ROW)];
      if (!row || event.offsetY < axis) { showTip(event, ""); return; }
      const at = low + ((event.offsetX - left) / (made.clientWidth - left - 4)) * (high - low);
      const here = row.bars.filter((bar) => at >= bar.start_ns && at <= (bar.end_ns === null ? high : bar.end_ns));
      showTip(event, [`${row.session_id} · ${row.status}`, row.task_id === null ? "" : `task ${row.task_id}`, row.step === null ? "" : `step ${row.step}`,
        ...here.map((bar) => `${bar.name}: ${bar.end_ns === null ? "open" : duration((bar.end_ns - bar.start_ns) / 1e9)}${bar.outcome === "ok" || bar.outcome === "wait" ? "" : " " + bar.outcome}`)].filter(Boolean).join("\n"));
    });
    made.addEventListener("pointerleave", (event) => showTip(event, ""));
    section("lifecycle", "Lifecycle", `the ${rows.length} longest sessions, by start`, element("div", { class: "lanes" }, made), legend(names, color));
  }

  function lineChart(chart) {
    const lines = chart.lines.map((line) => ({ ...line, points: line.time_ns.map((time, place) => [time, line.value[place]]).filter(([, value]) => value !== null) }))
      .filter((line) => line.points.length);
    if (!lines.length) return null;
    const all = lines.flatMap((line) => line.points.map(([, value]) => value));
    const low = run.start_ns, high = run.end_ns;
    let axes = null;
    const made = canvas(120, (pen, width, height) => {
      axes = frame(pen, width, height, { x: [0, (high - low) / 1e9], y: [Math.min(...all), Math.max(...all)], xText: (value) => "+" + axisTime(value), yText: compact });
      for (const line of lines) {
        pen.strokeStyle = color(line.label);
        pen.lineWidth = 1.5;
        pen.beginPath();
        line.points.forEach(([time, value], place) => {
          const x = axes.toX((time - low) / 1e9), y = axes.toY(value);
          if (place) pen.lineTo(x, y); else pen.moveTo(x, y);
        });
        pen.stroke();
        if (line.points.length === 1) { pen.fillStyle = color(line.label); pen.fillRect(axes.toX((line.points[0][0] - low) / 1e9) - 2, axes.toY(line.points[0][1]) - 2, 4, 4); }
      }
    });
    made.addEventListener("pointermove", (event) => {
      const at = low + axes.fromX(event.offsetX) * 1e9;
      const texts = lines.map((line) => {
        const nearest = line.points.reduce((best, point) => Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best);
        return `${line.label || chart.name}: ${compact(nearest[1])}`;
      });
      showTip(event, `+${duration((at - low) / 1e9)}\n` + texts.join("\n"));
    });
    made.addEventListener("pointerleave", (event) => showTip(event, ""));
    const kind = chart.kind === "counter" ? " /s" : chart.kind === "histogram" ? " quantiles" : "";
    return element("div", { title: chart.documentation }, element("h3", {}, chart.name + kind), made,
      lines.length > 1 ? legend(lines.map((line) => line.label), color) : null);
  }

  function charts(id, title, found) {
    if (!found.length) return;
    const grid = element("div", { class: "grid" });
    let wanted = "";
    const drawn = found.map((chart) => [chart.name.toLowerCase(), lineChart(chart)]).filter(([, node]) => node);
    const fill = () => grid.replaceChildren(...drawn.filter(([name]) => name.includes(wanted)).map(([, node]) => node));
    const search = element("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name",
      oninput: (event) => { wanted = event.target.value.toLowerCase(); fill(); } });
    section(id, title, "over the whole run", element("div", { class: "tools" }, search), grid);
    fill();
  }

  overview();
  hotspots();
  timeline();
  sessions();
  latency();
  charts("metrics", "Metrics", report.metrics);
  charts("hardware", "Hardware", report.hardware);
  root.append(element("p", { class: "note" }, `${report.generator} · ${new Date(report.generated_s * 1000).toISOString()}`));
  document.documentElement.dataset.ready = "true";
})();
