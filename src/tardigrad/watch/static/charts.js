"use strict";
/* Charts of numbers, drawn by uPlot, for the live page and for reports.
 *
 * const chart = charts.draw(element, spec);   chart.update(spec);   chart.destroy();
 *
 * spec: { kind: "lines" | "bars" | "trips", x, y: labels of the axes, percent, whole, zero, top, stepped, wide, height,
 *   lines: [{ label, x: [], y: [], low: [], high: [], colour: 0, dash: [] }],   // low, high: a band
 *   levels: [{ value, text, right }],                                           // horizontal lines
 *   trips: [{ trip, client, start, end, from, fate, staleness }], steps: [[time, version]] }
 * Hover or arrow keys show values, dragging or + and - zoom, a double click or Escape shows all again. */
const charts = (() => {
  const HEIGHT = 230;
  const FRESH = [42, 134, 200], MIDDLE = [154, 143, 179], STALE = [224, 106, 28];

  function colours() {
    const probe = document.body.appendChild(document.createElement("span"));
    const get = (name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    const found = { ink: get("--ink"), muted: get("--muted"), grid: get("--grid"),
      lines: [0, 1, 2, 3, 4, 5, 6].map((number) => get(`--c${number}`)) };
    probe.remove();
    return found;
  }

  const transparent = (colour, alpha) => colour.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);

  function number(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e9 || size < 1e-3)) return value.toExponential(2);
    const digits = size >= 1000 || Number.isInteger(value) ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 4;
    return value.toLocaleString("en-US", { maximumFractionDigits: digits });
  }

  const percent = (value) =>
    value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`;

  function staleColour(share) {
    const [a, b, t] = share < 0.5 ? [FRESH, MIDDLE, 2 * share] : [MIDDLE, STALE, 2 * share - 1];
    return `rgb(${a.map((from, i) => Math.round(from + (b[i] - from) * t)).join(",")})`;
  }

  // -- data ---------------------------------------------------------------------------------------

  function columns(spec) {
    if (spec.kind === "trips") return [spec.trips.map((one) => one.end), spec.trips.map((_, row) => row)];
    const tables = spec.lines.map((line) =>
      line.low ? [line.x, line.y, line.low, line.high] : [line.x, line.y]);
    if (!tables.length) return [[]];
    return tables.length === 1 ? tables[0] : uPlot.join(tables);
  }

  function csv(spec) {
    const quoted = (value) => {
      if (typeof value !== "string") return value === null || value === undefined ? "" : String(value);
      const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value; // never a formula of a spreadsheet
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    let rows;
    if (spec.kind === "trips") {
      const names = ["trip", "client", "start", "end", "from", "fate", "staleness"];
      rows = [names, ...spec.trips.map((one) => names.map((name) => one[name]))];
    } else {
      const named = spec.lines.flatMap((line) =>
        line.low ? [line.label, `${line.label}, lowest`, `${line.label}, highest`] : [line.label]);
      const data = columns(spec);
      rows = [[spec.x, ...named], ...data[0].map((_, row) => data.map((column) => column[row]))];
    }
    return rows.map((row) => row.map(quoted).join(",")).join("\n") + "\n";
  }

  function download(name, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // -- options of uPlot ---------------------------------------------------------------------------

  function series(spec, look) {
    const shown = spec.percent ? percent : number;
    const first = { label: spec.x, value: (_, value) => number(value) };
    if (spec.kind === "trips") {
      const told = (_, row) => {
        const one = spec.trips[row];
        if (!one) return "–";
        const stale = one.staleness === null ? "" : `, ${one.staleness} behind`;
        const trip = one.trip === null ? "" : ` ${one.trip}`;
        return `${one.client}: trip${trip} from version ${one.from}, ${one.fate}${stale}`;
      };
      return [first, { label: "trip", value: told, paths: () => null, points: { show: false } }];
    }
    const all = [first];
    for (const line of spec.lines) {
      const stroke = look.lines[(line.colour || 0) % look.lines.length];
      if (spec.kind === "bars") {
        all.push({ label: line.label, fill: stroke, width: 0, value: (_, value) => shown(value),
          paths: uPlot.paths.bars({ size: [0.86, 60] }), points: { show: false } });
        continue;
      }
      all.push({ label: line.label, stroke, width: 1.8, dash: line.dash || [], spanGaps: true,
        paths: spec.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
        value: (_, value) => shown(value), points: { show: line.x.length < 2, size: 6, fill: stroke } });
      for (const edge of line.low ? ["lowest", "highest"] : []) {
        all.push({ label: `${line.label}, ${edge}`, stroke: "transparent", width: 0, spanGaps: true,
          value: (_, value) => shown(value), points: { show: false }, class: "edge" });
      }
    }
    return all;
  }

  function bands(spec, look) {
    const found = [];
    let at = 1;
    for (const line of spec.lines || []) {
      if (line.low) {
        const fill = transparent(look.lines[(line.colour || 0) % look.lines.length], 0.15);
        found.push({ series: [at + 2, at + 1], fill });
      }
      at += line.low ? 3 : 1;
    }
    return found;
  }

  function range(spec) {
    if (spec.kind === "trips") return () => [-1, Math.max(spec.trips.length, 1)];
    return (_, low, high) => {
      if (low === null || high === null) return [0, 1];
      const levels = (spec.levels || []).map((level) => level.value);
      let from = spec.kind === "bars" || spec.zero ? Math.min(0, low) : low, to = Math.max(high, ...levels);
      if (spec.top !== undefined) to = Math.min(to, spec.top);
      if (from === to) [from, to] = [from === 0 ? 0 : from * 0.9, to === 0 ? 1 : to * 1.1];
      const pad = 0.06 * (to - from);
      return [from === 0 ? 0 : from - pad, to + pad];
    };
  }

  function sides(spec) {
    return (_, low, high) => {
      if (low === null || high === null) return [0, 1];
      if (spec.kind === "trips") {
        const ended = spec.trips.filter((one) => one.fate !== "under way"); // a silent client's would be too long
        const begin = Math.min(...(ended.length ? ended : spec.trips).map((one) => one.start));
        return [begin, Math.max(high, begin + 1e-9)];
      }
      const wide = spec.kind === "bars" ? (spec.wide || 1) / 2 : 0;
      return high > low ? [low - wide, high + wide] : [low - (wide || 0.5), high + (wide || 0.5)];
    };
  }

  function drawLevels(plot, spec, look) {
    for (const level of spec.levels || []) {
      const y = Math.round(plot.valToPos(level.value, "y", true));
      const { left, top, width, height } = plot.bbox;
      if (y < top || y > top + height) continue;
      plot.ctx.save();
      plot.ctx.strokeStyle = plot.ctx.fillStyle = look.muted;
      plot.ctx.lineWidth = devicePixelRatio;
      plot.ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      plot.ctx.beginPath();
      plot.ctx.moveTo(left, y);
      plot.ctx.lineTo(left + width, y);
      plot.ctx.stroke();
      plot.ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      const right = level.right || spec.top !== undefined; // at the end that is farther from the curves
      plot.ctx.textAlign = right ? "right" : "left";
      plot.ctx.textBaseline = "bottom";
      plot.ctx.fillText(level.text, right ? left + width - 4 : left + 4, y - 2);
      plot.ctx.restore();
    }
  }

  function drawTrips(plot, spec, look) {
    const { ctx, bbox } = plot, pixel = devicePixelRatio;
    const most = Math.max(1, ...spec.trips.map((one) => (one.fate === "under way" ? 0 : one.staleness || 0)));
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.lineWidth = pixel;
    ctx.strokeStyle = transparent(look.muted, 0.5);
    for (const [time] of spec.steps) {
      const x = Math.round(plot.valToPos(time, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    spec.trips.forEach((one, row) => {
      const y = plot.valToPos(row, "y", true);
      const from = plot.valToPos(one.start, "x", true), to = plot.valToPos(one.end, "x", true);
      const flying = one.fate === "under way", counted = flying || one.fate === "counted";
      ctx.strokeStyle = ctx.fillStyle = counted ? staleColour(Math.min(1, (one.staleness || 0) / most)) : look.ink;
      ctx.lineWidth = (counted ? 2.2 : 1.2) * pixel;
      ctx.setLineDash(counted ? [] : [2 * pixel, 3 * pixel]);
      ctx.beginPath();
      ctx.moveTo(from, y);
      ctx.lineTo(to, y);
      ctx.stroke();
      if (flying) return;
      ctx.beginPath();
      ctx.arc(to, y, (counted ? 2.6 : 3.2) * pixel, 0, 7);
      if (counted) ctx.fill(); else { ctx.setLineDash([]); ctx.stroke(); }
    });
    ctx.restore();
  }

  function options(spec, look, width, hooks) {
    const font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
    const axis = { stroke: look.muted, font, labelFont: font, grid: { stroke: look.grid, width: 1 },
      ticks: { stroke: look.grid, width: 1 } };
    const short = (value) => (spec.percent ? `${+(100 * value).toFixed(1)} %` : number(value));
    return {
      width, height: spec.height || HEIGHT, pxAlign: 1, series: series(spec, look), bands: bands(spec, look),
      scales: { x: { time: false, range: sides(spec) }, y: { range: range(spec), dir: spec.kind === "trips" ? -1 : 1 } },
      axes: [
        { ...axis, label: spec.x, labelSize: 20, size: 30, space: 60,
          incrs: spec.whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 1e7] : undefined,
          values: (_, ticks) => ticks.map(number) },
        { ...axis, label: spec.y, labelSize: 20, size: spec.kind === "trips" ? 12 : 58,
          show: true, values: (_, ticks) => ticks.map((tick) => (spec.kind === "trips" ? "" : short(tick))),
          grid: { show: spec.kind !== "trips", stroke: look.grid, width: 1 } },
      ],
      cursor: { drag: { x: true, y: false }, points: { size: 7 } },
      legend: { live: true },
      hooks,
    };
  }

  // -- one chart ----------------------------------------------------------------------------------

  function draw(element, first) {
    let spec = first, plot = null, zoomed = false, width = 0, look = colours();
    const figure = element.closest("figure");
    const reset = figure && figure.querySelector(".reset");
    const setZoomed = (value) => {
      zoomed = value;
      if (reset) reset.classList.toggle("off", !value);
    };
    const shape = (one) => JSON.stringify([one.kind, one.x, one.y, one.percent, one.stepped, one.height,
      (one.lines || []).map((line) => [line.label, line.colour, line.dash, Boolean(line.low), line.x.length < 2])]);

    function build() {
      if (plot) plot.destroy();
      look = colours();
      width = Math.max(120, Math.floor(element.clientWidth));
      const live = { // uPlot keeps these functions, and the spec changes
        get kind() { return spec.kind; }, get trips() { return spec.trips; }, get steps() { return spec.steps; },
        get lines() { return spec.lines; }, get levels() { return spec.levels; }, get wide() { return spec.wide; },
        x: spec.x, y: spec.y, percent: spec.percent, whole: spec.whole, stepped: spec.stepped, zero: spec.zero, top: spec.top,
        height: spec.height };
      plot = new uPlot(options(live, look, width, {
        drawClear: [(one) => { if (spec.kind === "trips") drawTrips(one, spec, look); }],
        draw: [(one) => drawLevels(one, spec, look)],
        setLegend: [(one) => { if (one.cursor.left < 0) newest(one); }],
        setSelect: [(one) => { if (one.select.width > 0) setZoomed(true); }],
      }), columns(spec), element);
      plot.over.addEventListener("dblclick", () => setZoomed(false));
      newest(plot);
    }

    function newest(one) { // without a cursor the legend has the newest value of each line
      const last = (column) => column.findLastIndex((value) => value !== null && value !== undefined);
      if (one.data[0].length) one.setLegend({ idxs: one.data.map(last) }, false);
    }

    function update(next) {
      const same = shape(next) === shape(spec);
      spec = next;
      if (!same) { setZoomed(false); build(); return; }
      const { left, top, idx } = plot.cursor;
      plot.setData(columns(spec), !zoomed);
      if (zoomed) plot.redraw();
      if (idx !== null && left >= 0) plot.setCursor({ left, top }, false);
      else newest(plot);
    }

    function zoom(factor) {
      const { min, max } = plot.scales.x, at = plot.cursor.idx === null ? (min + max) / 2 : plot.data[0][plot.cursor.idx];
      if (!(max > min)) return;
      plot.setScale("x", { min: at - (at - min) * factor, max: at + (max - at) * factor });
      setZoomed(true);
    }

    function all() {
      setZoomed(false);
      plot.setData(plot.data, true);
    }

    function keys(event) {
      const last = plot.data[0].length - 1;
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
      if (move !== undefined && last >= 0) {
        const now = plot.cursor.idx === null || plot.cursor.idx === undefined ? last : plot.cursor.idx;
        const idx = Math.min(last, Math.max(0, now + move));
        const y = plot.data[1] && plot.data[1][idx];
        plot.setCursor({ left: plot.valToPos(plot.data[0][idx], "x"),
          top: Number.isFinite(y) ? plot.valToPos(y, "y") : 10 });
      } else if (event.key === "+" || event.key === "=") zoom(0.6);
      else if (event.key === "-") zoom(1 / 0.6);
      else if (event.key === "Escape") all();
      else return;
      event.preventDefault();
    }

    element.tabIndex = 0;
    element.setAttribute("role", "application");
    element.addEventListener("keydown", keys);
    if (reset) reset.addEventListener("click", all);
    const save = figure && figure.querySelector(".csv");
    if (save) save.addEventListener("click", () => download(figure.id || "data", csv(spec)));
    const observer = new ResizeObserver(() => {
      const now = Math.max(120, Math.floor(element.clientWidth));
      if (element.clientWidth && now !== width) {
        width = now;
        plot.setSize({ width, height: spec.height || HEIGHT });
      }
    });
    build();
    observer.observe(element);
    return { update, repaint: build, spec: () => spec, csv: () => csv(spec),
      destroy: () => { observer.disconnect(); plot.destroy(); } };
  }

  return { draw, number, percent };
})();
