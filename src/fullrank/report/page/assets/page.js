// Draws the charts of a page as SVG, and makes its tables sort. Text is only ever set as text, never as markup.
"use strict";
const fullrank = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
  const SHAPES = ["circle", "square", "triangle", "diamond"];
  const CHAR = 6.6, MOST_POINTS_MARKED = 30;
  let charts = {}, printing = false;

  // Elements

  function node(tag, attributes = {}, ...children) {
    return filled(document.createElement(tag), attributes, children);
  }
  function shape(tag, attributes = {}, ...children) {
    return filled(document.createElementNS(SVG, tag), attributes, children);
  }
  function filled(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      element.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children) if (child !== null) element.append(child);
    return element;
  }

  // Numbers

  function known(value) { return typeof value === "number" && Number.isFinite(value); }
  function round(value) { return Math.round(value * 100) / 100; }
  function written(value, axis = {}) {
    if (!known(value)) return "not defined";
    const digits = axis.digits ?? null;
    let text;
    if (digits !== null) text = value.toFixed(digits);
    else if (Number.isInteger(value)) text = value.toLocaleString("en-US");
    else if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) text = value.toExponential(2);
    else text = Number(value.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 6 });
    return text.replace("-", "\u2212") + (axis.unit === "%" ? " %" : axis.unit ? " " + axis.unit : "");
  }
  function steps(low, high, count, whole) {
    const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
    let step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999) ?? raw;
    if (whole) step = Math.max(1, Math.round(step));
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    return found.map((v) => v || 0).map((v) => ({ v, text: v.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "\u2212") }));
  }
  function decades(low, high, count) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const multiples = last - first <= 2 ? [1, 2, 5] : [1];
    let found = [];
    for (let power = first; power <= last; power++)
      for (const m of multiples) { const v = m * 10 ** power; if (v >= low * 0.999 && v <= high * 1.001) found.push(v); }
    const every = Math.ceil(found.length / Math.max(2, count));
    found = found.filter((_, k) => k % every === 0);
    return found.map((v) => ({ v, text: v >= 1e-3 && v < 1e5 ? String(Number(v.toPrecision(3))) : v.toExponential(0) }));
  }
  function scaleOf(axis, values, from, to, count) {
    const log = axis.scale === "log";
    const usable = values.filter((v) => known(v) && (!log || v > 0));
    let low = usable.length ? Math.min(...usable) : log ? 1 : 0, high = usable.length ? Math.max(...usable) : log ? 10 : 1;
    if (known(axis.min)) low = axis.min;
    if (known(axis.max)) high = axis.max;
    if (low === high) { const pad = log ? 0 : axis.integer ? 1 : Math.abs(low) * 0.1 || 1; [low, high] = log ? [low / 2, high * 2] : [low - pad, high + pad]; }
    else if (!log && axis.pad !== 0) {
      const pad = (high - low) * (axis.pad ?? 0.05);
      if (!known(axis.min)) low = usable.every((v) => v >= 0) ? Math.max(0, low - pad) : low - pad;
      if (!known(axis.max)) high = axis.unit === "%" && high <= 100 ? Math.min(100, high + pad) : high + pad;
    } else if (log) { low /= 1.12; high *= 1.12; }
    const f = log ? Math.log10 : (v) => v, a = f(low), b = f(high);
    const at = (v) => from + (f(v) - a) / (b - a) * (to - from);
    const ticks = log ? decades(low, high, count) : steps(low, high, count, axis.integer);
    return { at, ticks, low, high, fits: (v) => known(v) && (!log || v > 0) };
  }

  // Colours

  function dark() { return !printing && document.documentElement.dataset.theme === "dark"; }
  function colourAt(share, reversed) {
    const place = Math.min(1, Math.max(0, reversed ? 1 - share : share)) * (CIVIDIS.length - 1);
    const k = Math.min(CIVIDIS.length - 2, Math.floor(place)), t = place - k;
    const parse = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    const [one, two] = [parse(CIVIDIS[k]), parse(CIVIDIS[k + 1])];
    return one.map((v, i) => Math.round(v + (two[i] - v) * t));
  }

  // The text that appears at the pointer, and is read out for the keyboard

  const tip = node("div", { class: "tip", role: "status", "aria-live": "polite", hidden: true });
  function showTip(text, x, y) {
    tip.textContent = text; tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 6))}px`;
    tip.style.top = `${y - box.height - 12 > 4 ? y - box.height - 12 : y + 18}px`;
  }
  function hideTip() { tip.hidden = true; }

  // Charts

  function mark(kind, x, y, size, attributes) {
    if (kind === "square") return shape("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, ...attributes });
    if (kind === "triangle") return shape("path", { d: `M${x} ${y - 1.25 * size}L${x + 1.2 * size} ${y + size}H${x - 1.2 * size}Z`, ...attributes });
    if (kind === "diamond") return shape("path", { d: `M${x} ${y - 1.35 * size}L${x + 1.35 * size} ${y}L${x} ${y + 1.35 * size}L${x - 1.35 * size} ${y}Z`, ...attributes });
    return shape("circle", { cx: x, cy: y, r: size, ...attributes });
  }
  function colourClass(series) { return series.colour === "grey" ? "grey" : `s${series.colour % 12}`; }
  function shortened(text, room) {
    const letters = Math.max(3, Math.floor(room / CHAR));
    return text.length <= letters ? text : `${text.slice(0, letters - 1)}\u2026`;
  }
  function firstFrame(spec) {
    // The last of what a slider moves through, and the first of what is chosen from a list.
    const rank = (at) => spec.dimensions.map(({ slides }, k) => (slides ? at[k] : -at[k]));
    let best = 0;
    spec.frames.forEach((frame, k) => {
      const one = rank(frame.at), other = rank(spec.frames[best].at), differ = one.findIndex((v, i) => v !== other[i]);
      if (differ >= 0 && one[differ] > other[differ]) best = k;
    });
    return best;
  }
  function framed(chart, k) { return chart.frames ? { ...chart, ...chart.frames[k] } : chart; }

  class Chart {
    constructor(host, spec) {
      this.host = host; this.spec = spec; this.id = host.dataset.chart;
      this.hidden = new Set(); this.place = -1; this.synchronise = [];
      this.frame = spec.frames ? firstFrame(spec) : 0;
      this.legend = node("ul", { class: "legend", "aria-label": "Series" });
      this.body = node("div", { class: "chart", tabindex: "0", role: "group", "aria-label": `${host.dataset.title}. Use the arrow keys to read the values.` });
      host.replaceChildren(...this.controls(), this.legend, this.body);
      this.drawLegend(); this.draw();
      this.body.addEventListener("pointermove", (event) => this.point(event));
      this.body.addEventListener("pointerdown", (event) => this.point(event));
      this.body.addEventListener("pointerleave", () => this.leave());
      this.body.addEventListener("blur", () => this.leave());
      this.body.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => { if (!printing && Math.abs(this.body.clientWidth - this.width) > 1) this.draw(); }).observe(this.body);
    }
    controls() {
      const dimensions = this.spec.dimensions || [];
      const found = dimensions.flatMap(({ name, values, slides }, place) => {
        const at = () => this.spec.frames[this.frame].at[place];
        const label = `${this.host.dataset.title}: ${name}`;
        if (values.length < 2) return values[0] && slides ? [node("span", {}, values[0])] : [];
        if (slides) {
          const shown = node("span", { class: "shown", "aria-hidden": "true" }, values[at()]);
          const input = node("input", { type: "range", min: 0, max: values.length - 1, step: 1, value: at(), "aria-label": label, "aria-valuetext": values[at()] });
          input.addEventListener("input", () => {
            this.move(place, Number(input.value)); shown.textContent = values[at()]; input.setAttribute("aria-valuetext", values[at()]);
          });
          this.synchronise.push(() => { input.value = at(); shown.textContent = values[at()]; });
          return [input, shown];
        }
        const choose = node("select", { "aria-label": label }, ...values.map((value, k) => node("option", { value: k, selected: k === at() }, value)));
        choose.addEventListener("change", () => this.move(place, Number(choose.value)));
        this.synchronise.push(() => { choose.value = at(); });
        return [choose];
      });
      return found.length ? [node("div", { class: "frame" }, ...found)] : [];
    }
    alike() {
      // The frames that share their axes with the present one.
      const now = this.spec.frames[this.frame].at;
      return this.spec.frames.filter((frame) => this.spec.dimensions.every(({ rescales }, k) => !rescales || frame.at[k] === now[k]));
    }
    move(place, to) {
      // The frame with this value that agrees with the present one in as many other respects as possible.
      const now = this.spec.frames[this.frame].at;
      const agrees = (frame) => frame.at.filter((v, k) => k !== place && v === now[k]).length;
      const having = this.spec.frames.map((frame, k) => [frame, k]).filter(([frame]) => frame.at[place] === to);
      if (!having.length) return;
      this.frame = having.reduce((best, one) => (agrees(one[0]) >= agrees(best[0]) ? one : best))[1];
      for (const one of this.synchronise) one();
      this.drawLegend(); this.draw();
    }
    drawLegend() {
      const chart = framed(this.spec, this.frame), entries = [];
      const named = new Map();
      for (const series of chart.series || []) if (series.legend !== false && !named.has(series.name)) named.set(series.name, series);
      const several = named.size > 1;
      for (const [name, series] of named) {
        const key = shape("svg", { width: 22, height: 10, "aria-hidden": "true", class: colourClass(series) });
        if (chart.kind === "lines") key.append(shape("path", { class: `line ${series.dash ? "dash" : ""}`, d: "M1 5H21" }));
        else key.append(chart.kind === "bars" ? shape("rect", { class: "bar-mark", x: 5, y: 0, width: 12, height: 10 }) : mark(SHAPES[(series.shape ?? 0) % 4], 11, 5, 3.6, { class: series.open ? "open" : "mark" }));
        if (!several) { entries.push(node("li", {}, node("span", { class: "plain" }, key, name))); continue; }
        const button = node("button", { type: "button", "aria-pressed": String(!this.hidden.has(name)), title: "Show or hide" }, key, name);
        button.addEventListener("click", () => {
          this.hidden.has(name) ? this.hidden.delete(name) : this.hidden.add(name);
          button.setAttribute("aria-pressed", String(!this.hidden.has(name))); this.draw();
        });
        entries.push(node("li", {}, button));
      }
      for (const note of chart.notes || []) {
        const key = shape("svg", { width: 22, height: 10, "aria-hidden": "true", class: "grey" });
        key.append(note.kind === "band" ? shape("rect", { class: "band", x: 1, y: 0, width: 20, height: 10 }) : note.kind === "interval" ? shape("path", { class: "whisker", d: "M1 5H21" }) : shape("path", { class: `line ${note.kind === "dash" ? "dash" : ""}`, d: "M1 5H21" }));
        entries.push(node("li", {}, node("span", { class: "plain" }, key, note.text)));
      }
      this.legend.replaceChildren(...entries);
      this.legend.hidden = !entries.length;
    }
    draw(width) {
      this.width = width ?? this.body.clientWidth;
      if (this.width < 40) return;
      const chart = framed(this.spec, this.frame);
      this.marks = []; this.place = -1;
      const drawn = chart.kind === "heatmap" ? this.heatmap(chart) : this.plane(chart);
      drawn.setAttribute("role", "img");
      drawn.setAttribute("aria-label", summary(this.host.dataset.title, chart));
      this.body.replaceChildren(drawn);
    }
    plane(chart) {
      const width = this.width, all = this.spec.frames ? this.alike().flatMap((f) => f.series) : chart.series;
      const series = chart.series.filter((s) => !this.hidden.has(s.name));
      const rows = chart.y.categories, height = rows ? 58 + Math.max(2, rows.length) * (rows.length > 40 ? 12 : rows.length > 15 ? 17 : rows.length > 6 ? 23 : 34) : chart.height || (width < 420 ? 235 : 275);
      const shownY = all.filter((s) => !this.hidden.has(s.name)), top = 24, bottom = height - 38;
      const valuesOf = (name) => shownY.flatMap((s) => [...(s[name] || []), ...(name === "y" ? [...(s.low || []), ...(s.high || [])] : [...(s.xlow || []), ...(s.xhigh || [])])]);
      const refs = chart.refs || [];
      const yValues = [...valuesOf("y"), ...refs.map((r) => r.y)];
      const y = rows ? { at: (v) => top + (v + 0.5) / rows.length * (bottom - top), ticks: [], fits: known } : scaleOf(chart.y, chart.kind === "bars" ? [...yValues, 0] : yValues, bottom, top, Math.max(2, Math.round((bottom - top) / 44)));
      const labels = rows ? rows.map((r) => shortened(r, Math.min(190, width * 0.38))) : y.ticks.map((t) => t.text);
      const left = 10 + CHAR * Math.max(1, ...labels.map((l) => l.length)), right = width - 12;
      const columns = chart.x.categories;
      const x = columns ? { at: (v) => left + (v + 0.5) / columns.length * (right - left), ticks: [], fits: known } : scaleOf({ pad: chart.kind === "lines" ? 0 : 0.06, ...chart.x }, [...valuesOf("x"), ...refs.map((r) => r.x)], left + (chart.kind === "lines" ? 3 : 0), right, Math.max(2, Math.floor((right - left) / 70)));
      const out = shape("svg", { viewBox: `0 0 ${round(width)} ${height}` });
      const grid = shape("g", { "aria-hidden": "true" });
      if (rows) {
        const every = Math.max(1, Math.ceil(rows.length * 13 / (bottom - top)));
        rows.forEach((_, k) => {
          grid.append(shape("line", { class: "gridline", x1: left, x2: right, y1: round(y.at(k)), y2: round(y.at(k)) }));
          if (k % every === 0) grid.append(shape("text", { x: left - 7, y: round(y.at(k)) + 4, "text-anchor": "end" }, labels[k], shape("title", {}, rows[k])));
        });
      } else for (const tick of y.ticks) {
        grid.append(shape("line", { class: "gridline", x1: left, x2: right, y1: round(y.at(tick.v)), y2: round(y.at(tick.v)) }));
        grid.append(shape("text", { x: left - 7, y: round(y.at(tick.v)) + 4, "text-anchor": "end" }, tick.text));
      }
      if (columns) {
        const room = (right - left) / columns.length, every = Math.max(1, Math.ceil(CHAR * (Math.min(14, Math.max(...columns.map((c) => c.length))) + 1) / room));
        columns.forEach((c, k) => { if (k % every === 0) grid.append(shape("text", { x: round(x.at(k)), y: bottom + 16, "text-anchor": "middle" }, shortened(c, 14 * CHAR), shape("title", {}, c))); });
      } else for (const tick of x.ticks) {
        if (rows || chart.kind === "points") grid.append(shape("line", { class: "gridline", x1: round(x.at(tick.v)), x2: round(x.at(tick.v)), y1: top, y2: bottom }));
        grid.append(shape("text", { x: round(x.at(tick.v)), y: bottom + 16, "text-anchor": "middle" }, tick.text));
      }
      grid.append(shape("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
      grid.append(shape("text", { class: "title", x: (left + right) / 2, y: height - 5, "text-anchor": "middle" }, shortened(chart.x.label, right - 10)));
      grid.append(shape("text", { class: "title", x: 2, y: 13 }, shortened(chart.y.label, width - 6)));
      out.append(grid);
      for (const ref of refs) {
        if (known(ref.y)) out.append(shape("line", { class: "ref", x1: left, x2: right, y1: y.at(ref.y), y2: y.at(ref.y) }), shape("text", { x: right, y: y.at(ref.y) - 4, "text-anchor": "end" }, ref.label || ""));
        if (known(ref.x)) out.append(shape("line", { class: "ref", x1: x.at(ref.x), x2: x.at(ref.x), y1: top, y2: bottom }));
        if (ref.diagonal) out.append(shape("line", { class: "ref", x1: x.at(x.low), y1: y.at(x.low), x2: x.at(x.high), y2: y.at(x.high) }));
      }
      if (!series.some((s) => s.y.some((v, k) => y.fits(v) && x.fits(s.x[k])))) out.append(shape("text", { x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle" }, "no defined values"));
      const draw = { lines: drawLines, points: drawPoints, bars: drawBars }[chart.kind];
      for (const [k, s] of series.entries()) draw(out, s, x, y, this.marks, chart, k, series.length);
      this.cursor = shape("g", { "aria-hidden": "true" });
      out.append(this.cursor);
      this.box = { left, right, top, bottom, chart, x, y };
      return out;
    }
    heatmap(chart) {
      const { values } = chart, rows = chart.y.categories, columns = chart.x.categories, width = this.width;
      const left = 12 + CHAR * Math.min(Math.max(...rows.map((r) => r.length)), Math.floor(Math.min(150, width * 0.3) / CHAR)), room = width - left - 12;
      const upright = Math.max(...columns.map((c) => c.length)) * CHAR > room / columns.length - 4 && !columns.every((c) => /^\d+$/.test(c));
      const under = upright ? 14 + CHAR * Math.min(14, Math.max(...columns.map((c) => c.length))) : 18;
      const cell = Math.min(chart.square ? 46 : 90, room / columns.length), tall = Math.max(rows.length > 60 ? 5 : 11, Math.min(chart.square ? cell : 26, 460 / rows.length, 40));
      const top = 22, bottom = top + tall * rows.length, height = bottom + under + 58, right = left + cell * columns.length;
      const flat = (this.spec.frames ? this.alike() : [chart]).flatMap((f) => f.values).flat().filter(known), low = chart.scale.min ?? Math.min(...flat, 0), high = chart.scale.max ?? Math.max(...flat, low + 1e-9);
      const share = (v) => chart.scale.root ? Math.sqrt(Math.max(0, (v - low) / (high - low))) : (v - low) / (high - low);
      const out = shape("svg", { viewBox: `0 0 ${round(width)} ${round(height)}` });
      out.append(shape("text", { class: "title", x: 2, y: 13 }, shortened(chart.y.label, width)));
      const longest = Math.max(...flat.map((v) => written(v, { ...chart.scale, unit: "" }).length), 1);
      const roomy = cell >= longest * CHAR + 3 && tall >= 15;
      values.forEach((line, r) => line.forEach((v, c) => {
        const px = left + c * cell, py = top + r * tall, text = `${chart.y.label} ${rows[r]}, ${chart.x.label} ${columns[c]}\n${chart.scale.label}: ${written(v, chart.scale)}`;
        this.marks.push({ px: px + cell / 2, py: py + tall / 2, text, box: [px, py, cell, tall] });
        if (!known(v) || (chart.scale.blank_zero && v === 0)) return;
        const [red, green, blue] = colourAt(share(v), !dark());
        const seam = cell > 6 && tall > 6 ? 0.5 : 0;
        out.append(shape("rect", { x: round(px + seam), y: round(py + seam), width: round(cell - 2 * seam), height: round(tall - 2 * seam), fill: `rgb(${red},${green},${blue})` }));
        if (roomy) out.append(shape("text", { x: round(px + cell / 2), y: round(py + tall / 2 + 4), "text-anchor": "middle", "font-size": 11, style: null, class: red * 0.3 + green * 0.59 + blue * 0.11 > 128 ? "on-light" : "on-dark" }, written(v, { ...chart.scale, unit: "" })));
      }));
      out.append(shape("rect", { x: left, y: top, width: round(right - left), height: round(bottom - top), fill: "none", class: "axis" }));
      const everyRow = Math.max(1, Math.ceil(13 / tall)), everyColumn = Math.max(1, Math.ceil((upright ? 13 : CHAR * (Math.max(...columns.map((c) => c.length)) + 1)) / cell));
      rows.forEach((r, k) => { if (k % everyRow === 0) out.append(shape("text", { x: left - 6, y: round(top + (k + 0.5) * tall + 4), "text-anchor": "end" }, shortened(r, left - 10), shape("title", {}, r))); });
      columns.forEach((c, k) => {
        if (k % everyColumn) return;
        const px = round(left + (k + 0.5) * cell);
        out.append(upright ? shape("text", { transform: `translate(${px + 4} ${bottom + 8}) rotate(90)` }, shortened(c, 14 * CHAR), shape("title", {}, c)) : shape("text", { x: px, y: bottom + 15, "text-anchor": "middle" }, c));
      });
      out.append(shape("text", { class: "title", x: round((left + right) / 2), y: bottom + under + 13, "text-anchor": "middle" }, shortened(chart.x.label, width)));
      const keyY = bottom + under + 26, keyWidth = Math.min(150, width * 0.4), first = 12;
      for (let k = 0; k < 40; k++) { const [red, green, blue] = colourAt(k / 39, !dark()); out.append(shape("rect", { x: round(first + k * keyWidth / 40), y: keyY, width: round(keyWidth / 40 + 0.5), height: 9, fill: `rgb(${red},${green},${blue})` })); }
      out.append(shape("text", { x: first, y: keyY + 23 }, written(low, { ...chart.scale, unit: "" })), shape("text", { x: first + keyWidth, y: keyY + 23, "text-anchor": "end" }, written(high, { ...chart.scale, unit: "" })));
      out.append(shape("text", { class: "title", x: first + keyWidth + 10, y: keyY + 9 }, shortened(chart.scale.label, width - keyWidth - 26)));
      this.cursor = shape("g", { "aria-hidden": "true" });
      out.append(this.cursor);
      this.box = { chart, columns: columns.length };
      return out;
    }
    // Reading values
    stops() {
      if (this.box.chart.kind !== "lines") return this.marks.map((m) => [m]);
      const by = new Map();
      for (const m of this.marks) { if (!by.has(m.x)) by.set(m.x, []); by.get(m.x).push(m); }
      return [...by.entries()].sort((a, b) => a[0] - b[0]).map(([, marks]) => marks);
    }
    show(stop, clientX, clientY) {
      const { chart, top, bottom } = this.box;
      this.cursor.replaceChildren();
      if (chart.kind === "lines") {
        this.cursor.append(shape("line", { class: "cursor", x1: stop[0].px, x2: stop[0].px, y1: top, y2: bottom }));
        for (const m of stop) this.cursor.append(shape("circle", { cx: m.px, cy: m.py, r: 4, class: `mark ${m.colour}` }));
        const lines = stop.slice(0, 14).map((m) => m.text);
        if (stop.length > 14) lines.push(`and ${stop.length - 14} more`);
        showTip([`${chart.x.label} ${written(stop[0].x)}`, ...lines].join("\n"), clientX, clientY);
      } else {
        const m = stop[0];
        this.cursor.append(m.box ? shape("rect", { x: m.box[0], y: m.box[1], width: m.box[2], height: m.box[3], class: "focus" }) : shape("circle", { cx: m.px, cy: m.py, r: 7, class: "focus" }));
        showTip(m.text, clientX, clientY);
      }
    }
    point(event) {
      const drawn = this.body.querySelector("svg");
      if (!drawn || !this.marks.length) return;
      const box = drawn.getBoundingClientRect(), zoom = this.width / box.width;
      const x = (event.clientX - box.left) * zoom, y = (event.clientY - box.top) * zoom;
      let best = null, least = Infinity;
      for (const stop of this.stops()) {
        const m = stop[0], far = this.box.chart.kind === "lines" ? Math.abs(m.px - x) : (m.px - x) ** 2 + (m.py - y) ** 2;
        if (far < least) [best, least] = [stop, far];
      }
      if (this.box.chart.kind === "heatmap" && best) { const [px, py, w, h] = best[0].box; if (x < px || x > px + w || y < py || y > py + h) return this.leave(); }
      if (best) this.show(best, event.clientX, event.clientY);
    }
    key(event) {
      const across = this.box?.columns ?? 1;
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -1e9, End: 1e9 }[event.key];
      if (event.key === "Escape") return this.leave();
      const stops = this.stops();
      if (by === undefined || !stops.length) return;
      event.preventDefault();
      this.place = this.place < 0 && by > 0 && by < 1e9 ? 0 : Math.max(0, Math.min(stops.length - 1, this.place + by));
      const box = this.body.getBoundingClientRect(), zoom = box.width / this.width, stop = stops[this.place];
      this.show(stop, box.left + stop[0].px * zoom, box.top + stop[0].py * zoom);
    }
    leave() { hideTip(); this.cursor?.replaceChildren(); this.place = -1; }
  }

  function drawLines(out, s, x, y, marks, chart) {
    const group = shape("g", { class: colourClass(s), "data-series": s.name });
    const fit = s.x.map((v, k) => x.fits(v) && y.fits(s.y[k]));
    if (s.low && s.high) {
      let run = [];
      const flush = () => {
        if (run.length > 1) group.append(shape("path", { class: "band", d: "M" + [...run.map((k) => [k, s.high]), ...run.slice().reverse().map((k) => [k, s.low])].map(([k, ends]) => `${round(x.at(s.x[k]))} ${round(y.at(y.fits(ends[k]) ? ends[k] : s.y[k]))}`).join("L") + "Z" }));
        else for (const k of run) group.append(shape("line", { class: "whisker", x1: x.at(s.x[k]), x2: x.at(s.x[k]), y1: y.at(s.low[k]), y2: y.at(s.high[k]) }));
        run = [];
      };
      s.x.forEach((_, k) => { fit[k] && known(s.low[k]) && known(s.high[k]) ? run.push(k) : flush(); });
      flush();
    }
    let path = "", pen = false;
    s.x.forEach((v, k) => {
      if (!fit[k]) { if (chart.gaps !== "bridge") pen = false; return; }
      path += `${pen ? "L" : "M"}${round(x.at(v))} ${round(y.at(s.y[k]))}`; pen = true;
    });
    if (path) group.append(shape("path", { class: `line ${s.dash ? "dash" : ""} ${s.thin ? "thin" : ""}`, d: path }));
    const count = fit.filter(Boolean).length;
    s.x.forEach((v, k) => {
      if (!fit[k]) return;
      const px = round(x.at(v)), py = round(y.at(s.y[k]));
      const isolated = !fit[k - 1] && !fit[k + 1];
      if ((s.markers && count <= MOST_POINTS_MARKED) || count < 3 || isolated) group.append(mark("circle", px, py, 3.2, { class: s.dash ? "open" : "mark" }));
      const band = s.low && known(s.low[k]) && s.high[k] !== s.low[k] ? ` (${written(s.low[k], chart.y)} to ${written(s.high[k], chart.y)})` : "";
      marks.push({ px, py, x: v, colour: colourClass(s), text: `${s.name}: ${written(s.y[k], chart.y)}${band}` });
    });
    out.append(group);
  }
  function drawPoints(out, s, x, y, marks, chart, number, of) {
    const group = shape("g", { class: colourClass(s), "data-series": s.name });
    const shift = chart.y.categories && of > 1 ? (number - (of - 1) / 2) * Math.min(7, 15 / of) : 0;
    s.x.forEach((v, k) => {
      if (!x.fits(v) || !y.fits(s.y[k])) return;
      const px = round(x.at(v)), py = round(y.at(s.y[k]) + shift);
      if (s.xlow && known(s.xlow[k])) group.append(shape("line", { class: "whisker", x1: round(x.at(s.xlow[k])), x2: round(x.at(s.xhigh[k])), y1: py, y2: py }));
      if (s.low && known(s.low[k])) group.append(shape("line", { class: "whisker", x1: px, x2: px, y1: round(y.at(s.low[k])), y2: round(y.at(s.high[k])) }));
      group.append(mark(SHAPES[(s.shape ?? 0) % 4], px, py, s.size ?? 4, { class: s.open ? "open" : "mark" }));
      const where = chart.y.categories ? chart.y.categories[s.y[k]] : chart.x.categories ? chart.x.categories[v] : "";
      const ends = s.xlow && known(s.xlow[k]) ? ` (${written(s.xlow[k], chart.x)} to ${written(s.xhigh[k], chart.x)})` : s.low && known(s.low[k]) ? ` (${written(s.low[k], chart.y)} to ${written(s.high[k], chart.y)})` : "";
      const value = chart.y.categories ? `${written(v, chart.x)}${ends}` : chart.x.categories ? `${written(s.y[k], chart.y)}${ends}` : `${chart.x.label} ${written(v, chart.x)}, ${chart.y.label} ${written(s.y[k], chart.y)}${ends}`;
      marks.push({ px, py, text: `${[where, s.name, s.labels ? s.labels[k] : ""].filter(Boolean).join(", ")}\n${chart.plain ? "" : value}` });
      if (s.write && s.labels) {
        const end = px > (x.at(x.high) + x.at(x.low)) / 2;
        group.append(shape("text", { x: px + (end ? -8 : 8), y: py - 7, "text-anchor": end ? "end" : "start" }, s.labels[k]));
      }
    });
    out.append(group);
  }
  function drawBars(out, s, x, y, marks, chart, number, of) {
    const group = shape("g", { class: colourClass(s), "data-series": s.name });
    const wide = chart.x.categories ? (x.at(1) - x.at(0)) * 0.72 / of : 12;
    s.x.forEach((v, k) => {
      if (!known(s.y[k])) return;
      const half = s.width ? (x.at(v + s.width / 2) - x.at(v - s.width / 2)) / 2 - 0.7 : wide / 2;
      const middle = round(x.at(v) + (s.width ? 0 : (number - (of - 1) / 2) * wide)), zero = y.at(Math.max(0, y.low)), high = y.at(s.y[k]);
      group.append(shape("rect", { class: "bar-mark", x: round(middle - half), width: round(Math.max(1, 2 * half)), y: round(Math.min(zero, high)), height: round(Math.abs(zero - high)) }));
      if (s.low && known(s.low[k])) group.append(shape("line", { class: "whisker", x1: middle, x2: middle, y1: y.at(s.low[k]), y2: y.at(s.high[k]) }));
      const name = chart.x.categories ? chart.x.categories[v] : `${chart.x.label} ${written(v, chart.x)}`;
      marks.push({ px: middle, py: high, text: `${name}\n${s.name}: ${written(s.y[k], chart.y)}${s.labels ? `\n${s.labels[k]}` : ""}` });
    });
    out.append(group);
  }

  function summary(title, chart) {
    if (chart.kind === "heatmap") return `${title}: ${chart.scale.label}, ${chart.y.categories.length} rows (${chart.y.label}) by ${chart.x.categories.length} columns (${chart.x.label}).`;
    const parts = chart.series.slice(0, 8).map((s) => {
      const values = (chart.y.categories ? s.x : s.y).filter(known), axis = chart.y.categories ? chart.x : chart.y;
      return values.length ? `${s.name}: ${values.length === 1 ? written(values[0], axis) : `${written(values[0], axis)} first, ${written(values[values.length - 1], axis)} last`}` : `${s.name}: no values`;
    });
    return `${title}: ${chart.y.label} by ${chart.x.label}. ${parts.join("; ")}.`;
  }

  // Data: the same rows as `fullrank report --csv` writes

  function rowsOf(chart) {
    const rows = [], frames = chart.frames || [{ at: [] }], dimensions = chart.dimensions || [], first = dimensions.map((d) => d.name);
    const named_at = (frame) => frame.at.map((v, k) => dimensions[k].values[v]);
    if (chart.kind === "heatmap") {
      rows.push([...first, chart.y.label, chart.x.label, chart.scale.label]);
      for (const frame of frames) { const c = { ...chart, ...frame }; c.values.forEach((line, r) => line.forEach((v, k) => rows.push([...named_at(frame), c.y.categories[r], c.x.categories[k], v]))); }
      return rows;
    }
    const across = (chart.frames || [chart]).some((f) => f.series.some((s) => s.xlow)), up = (chart.frames || [chart]).some((f) => f.series.some((s) => s.low)), named = (chart.frames || [chart]).some((f) => f.series.some((s) => s.labels));
    rows.push([...first, "series", chart.x.label, ...(across ? ["low", "high"] : []), chart.y.label, ...(up ? ["low", "high"] : []), ...(named ? ["label"] : [])]);
    for (const frame of frames) {
      const c = { ...chart, ...frame };
      for (const s of c.series) s.x.forEach((v, k) => rows.push([
        ...named_at(frame), s.name, c.x.categories ? c.x.categories[v] : v, ...(across ? [s.xlow?.[k] ?? null, s.xhigh?.[k] ?? null] : []),
        c.y.categories ? c.y.categories[s.y[k]] : s.y[k], ...(up ? [s.low?.[k] ?? null, s.high?.[k] ?? null] : []), ...(named ? [s.labels?.[k] ?? null] : []),
      ]));
    }
    return rows;
  }
  function csv(rows) {
    // An apostrophe comes before a text that a spreadsheet would take for a formula.
    const formula = (v) => typeof v === "string" && /^[=+\-@\t\r]/.test(v) && !/^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$/.test(v);
    const text = (v) => formula(v) ? `'${v}` : String(v);
    const cell = (v) => v === null || v === undefined ? "" : /[",\r\n]/.test(text(v)) ? `"${text(v).replaceAll('"', '""')}"` : text(v);
    return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
  }
  function download(name, text) {
    const link = node("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
    document.body.append(link); link.click(); link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  function tableOf(rows, title) {
    const body = node("tbody");
    for (const row of rows.slice(1, 2001)) body.append(node("tr", {}, ...row.map((v) => node("td", { class: typeof v === "number" ? "number" : "text" }, v === null ? "" : typeof v === "number" ? written(v) : String(v)))));
    const caption = rows.length > 2001 ? `${title}: the first 2,000 of ${rows.length - 1} rows; the CSV has all` : title;
    return node("table", {}, node("caption", { class: "visually-hidden" }, caption), node("thead", {}, node("tr", {}, ...rows[0].map((name) => node("th", { scope: "col" }, name)))), body);
  }

  // Wiring

  const drawn = new Map();
  function start(data, root = document) {
    charts = data;
    for (const host of root.querySelectorAll("[data-chart]")) {
      const spec = charts[host.dataset.chart];
      if (!spec || drawn.has(host)) continue;
      if (host.closest("[hidden]")) continue; // it has no width yet
      drawn.set(host, new Chart(host, spec));
    }
    for (const host of [...drawn.keys()]) if (!host.isConnected) drawn.delete(host);
    for (const button of root.querySelectorAll("[data-csv]")) once(button, () => download(`${button.dataset.csv}.csv`, csv(rowsOf(charts[button.dataset.csv]))));
    for (const button of root.querySelectorAll("[data-show]")) once(button, () => {
      const place = button.closest("figure").querySelector(".data"), open = button.getAttribute("aria-expanded") === "true";
      place.hidden = open; button.setAttribute("aria-expanded", String(!open));
      if (!open) place.replaceChildren(tableOf(rowsOf(charts[button.dataset.show]), button.dataset.title));
    });
    for (const button of root.querySelectorAll("[data-copy]")) once(button, () => {
      const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
      if (navigator.clipboard) navigator.clipboard.writeText(button.dataset.copy).then(done, () => select(button)); else select(button);
    });
    for (const table of root.querySelectorAll("table[data-sort]")) sortable(table);
    for (const button of root.querySelectorAll("[data-detail]")) once(button, () => {
      const row = document.getElementById(button.dataset.detail), open = button.getAttribute("aria-expanded") === "true";
      row.hidden = open; button.setAttribute("aria-expanded", String(!open));
      if (!open) start(charts, row);
    });
    for (const canvas of root.querySelectorAll("[data-spark]")) if (!canvas.firstChild) spark(canvas);
  }
  function select(button) {
    const range = document.createRange(); range.selectNodeContents(button.previousElementSibling);
    getSelection().removeAllRanges(); getSelection().addRange(range);
  }
  function once(element, action) { if (!element.dataset.wired) { element.dataset.wired = "1"; element.addEventListener("click", action); } }
  function spark(svg) {
    const values = JSON.parse(svg.dataset.spark), fine = values.filter(known);
    if (!fine.length) return;
    const low = Math.min(...fine), high = Math.max(...fine, low + 1e-9);
    let path = "", pen = false;
    values.forEach((v, k) => { if (!known(v)) { pen = false; return; } path += `${pen ? "L" : "M"}${round(2 + k / Math.max(1, values.length - 1) * 88)} ${round(19 - (v - low) / (high - low) * 16)}`; pen = true; });
    svg.append(shape("path", { class: "line", d: path }));
  }
  function sortable(table) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      once(button, () => {
        const now = head.getAttribute("aria-sort"), first = head.dataset.first || "ascending";
        const ascending = (now === null ? first : now === "ascending" ? "descending" : "ascending") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        const key = (body) => { const cell = body.rows[0].cells[column], text = cell.dataset.v ?? cell.textContent; return cell.classList.contains("number") ? (text === "" ? null : Number(text)) : text; };
        const bodies = [...table.tBodies].map((body) => [key(body), body]);
        bodies.sort(([a], [b]) => {
          if (a === null || b === null) return (a === null) - (b === null); // what has no value comes last in both orders
          const order = typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
          return ascending ? order : -order;
        });
        table.append(...bodies.map(([, body]) => body));
      });
    });
  }
  function redraw(width) { for (const chart of drawn.values()) chart.draw(width ? width(chart) : undefined); }
  function theme(choice) {
    const system = matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = choice === "auto" ? (system ? "dark" : "light") : choice;
    redraw();
  }
  function open() {
    document.body.append(tip);
    const choose = document.getElementById("theme");
    theme(choose ? choose.value : "auto");
    if (choose) choose.addEventListener("change", () => theme(choose.value));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(choose ? choose.value : "auto"));
    start(JSON.parse(document.getElementById("charts").textContent));
    const links = [...document.querySelectorAll(".bar nav a")];
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) for (const link of links) link.getAttribute("href") === `#${entry.target.id}` ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
    }, { rootMargin: "-15% 0px -75% 0px" });
    for (const section of document.querySelectorAll("main > section[id]")) seen.observe(section);
    let before = "light", folded = [];
    addEventListener("beforeprint", () => { printing = true; before = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; folded = [...document.querySelectorAll(".reading details:not([open])")]; for (const one of folded) one.open = true; redraw((chart) => chart.host.closest(".wide") || !chart.host.closest(".grid") ? 660 : 325); });
    addEventListener("afterprint", () => { printing = false; document.documentElement.dataset.theme = before; for (const one of folded) one.open = false; redraw(); });
    document.documentElement.dataset.ready = "true";
  }
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", open); else open();
  return { start, theme, rowsOf, csv };
})();
