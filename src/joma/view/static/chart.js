// A chart of curves or areas: uPlot draws, we read off. Dragging zooms, arrow keys read, + and - zoom, 0 shows all again.

/** Data as uPlot wants it: one x for all; null where a curve has a gap, undefined where it only has no point there.
 * @param {Spec} spec @returns {any[][]} */
function aligned(spec) {
  const good = (/** @type {number | undefined} */ value) => (value === undefined ? undefined : !Number.isFinite(value) || (spec.logY && value <= 0) ? null : value);
  const first = spec.curves[0]?.x ?? [], same = spec.curves.every((curve) => curve.x === first || (curve.x.length === first.length && curve.x.every((x, at) => x === first[at])));
  const every = (same ? first : [...new Set(spec.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b)).filter((x) => !spec.logX || x > 0);
  const skipped = same ? first.length - every.length : 0; // steps come in order: what a log axis cannot show comes first
  const columns = spec.curves.flatMap((curve) => {
    const at = same ? null : new Map(curve.x.map((x, i) => [x, i]));
    const along = (/** @type {number[]} */ values) => every.map((x, i) => { const place = at ? at.get(x) : i + skipped; return good(place === undefined ? undefined : values[place]); });
    return curve.low && curve.high ? [along(curve.y), along(curve.low), along(curve.high)] : [along(curve.y)];
  });
  return [every, ...columns];
}

/** How many points of what is seen a log axis has no place for. @param {Spec} spec @returns {number} */
function notOnLog(spec) {
  const inside = (/** @type {number} */ x) => x >= (spec.low ?? -Infinity) && x <= (spec.high ?? Infinity);
  const out = (/** @type {Curve} */ curve) => curve.x.filter((x, at) => inside(x) && Number.isFinite(curve.y[at]) && ((spec.logX && x <= 0) || (spec.logY && curve.y[at] <= 0))).length;
  return spec.logX || spec.logY ? spec.curves.reduce((sum, curve) => sum + (curve.hidden ? 0 : out(curve)), 0) : 0;
}

const SHARED = 86; // pixels left of charts above each other
const ROOM = 0.05; // of the axis is left free for what comes, while a run is being written

/** So many points are drawn thin: without a GPU a line wider than a pixel takes thirty times as long. @param {Spec} spec */
function isDense(spec) { return spec.curves.reduce((points, curve) => points + curve.x.length, 0) > 4000; }

class Chart {
  /** @param {HTMLElement} root whose style gives the colours @param {(low: number | null, high: number | null) => void} zoomed */
  constructor(root, zoomed) {
    this.colour = palette(root);
    this.zoomed = zoomed;
    this.box = h("div", { class: "chart", tabindex: 0, role: "group" });
    this.says = h("p", { class: "reading", role: "status" });
    this.element = h("div", {}, this.box, this.says);
    /** @type {any} */
    this.plot = null;
    /** @type {Spec | null} */
    this.spec = null;
    this.shape = "";
    this.behind = false; // whether curves have tails that uPlot did not draw itself
    this.box.addEventListener("pointerenter", () => this.settle());
    this.box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.key(event));
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(this.box);
  }

  /** @param {Spec} spec */
  draw(spec) {
    if (this.grow(spec)) return;
    const data = aligned(spec), width = this.box.clientWidth || 600;
    const shape = JSON.stringify([spec.curves.map((curve) => [curve.label, curve.colour, curve.hidden, Boolean(curve.low), curve.dashes]), spec.x, spec.y, spec.logX, spec.logY, spec.areas, isDense(spec), Boolean(spec.span)]);
    this.spec = spec;
    this.behind = false;
    this.box.setAttribute("aria-label", `${spec.y} by ${spec.x}, ${counted(spec.curves.length, "curve")}. Arrow keys read values, plus and minus zoom, 0 shows everything.`);
    if (this.plot && shape === this.shape) { this.plot.batch(() => { this.plot.setData(data, false); this.range(data); }); return; }
    this.plot?.destroy();
    this.shape = shape;
    // @ts-ignore uPlot stands before this file
    this.plot = new uPlot(this.options(spec, width), data, this.box);
    this.range(data);
  }

  /** Draw only the tails of curves that grew, where they fit into what is seen: what stands there stays as it is.
   * @param {Spec} spec @returns {boolean} whether that was enough */
  grow(spec) {
    const plot = this.plot, old = this.spec, x = spec.curves[0]?.x;
    if (!plot || !old || !x || spec.same === undefined || spec.same !== old.same || spec.areas || spec.logX || isDense(spec) !== isDense(old)) return false;
    if (plot.cursor.left >= 0 || spec.curves.some((curve) => curve.low || curve.x !== x)) return false; // somebody reads: uPlot has to know all points
    const known = plot.data[0].length, { x: across, y: up } = plot.scales, fits = (/** @type {number} */ y) => !Number.isFinite(y) || (y >= up.min && y <= up.max);
    if (!known || x.length < known || x[known - 1] !== plot.data[0][known - 1] || up.min === null || (spec.high === undefined && x[x.length - 1] > across.max)) return false;
    if (!spec.curves.every((curve) => curve.hidden || curve.y.slice(known).every((y, at) => x[known + at] > across.max || fits(y)))) return false;
    const [steps, ...columns] = aligned({ ...spec, curves: spec.curves.map((curve) => ({ ...curve, x: x.slice(known), y: curve.y.slice(known) })) });
    plot.data[0].push(...steps);
    columns.forEach((column, at) => plot.data[at + 1].push(...column));
    plot.setData(plot.data, false);
    this.spec = spec;
    this.behind = true;
    spec.curves.forEach((curve, at) => { if (!curve.hidden) this.tail(plot, at + 1, known); });
    return true;
  }

  /** @param {any} plot @param {number} column @param {number} known points that stand there already */
  tail(plot, column, known) {
    const { ctx, bbox, data } = plot, series = plot.series[column], pen = Math.round(series.width * devicePixelRatio * 1000) / 1000, shift = (pen % 2) / 2;
    ctx.save();
    ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
    ctx.translate(shift, shift); // as uPlot does
    ctx.strokeStyle = this.spec?.curves[column - 1].colour; ctx.globalAlpha = series.alpha ?? 1; ctx.lineWidth = pen; ctx.lineJoin = "round"; ctx.setLineDash((series.dash ?? []).map((/** @type {number} */ one) => one * devicePixelRatio));
    ctx.beginPath();
    let down = false;
    for (let at = known - 1; at < data[0].length; at++) {
      const y = data[column][at];
      if (y === null) { down = false; continue; }
      ctx[down ? "lineTo" : "moveTo"](plot.valToPos(data[0][at], "x", true), plot.valToPos(y, "y", true));
      down = true;
    }
    ctx.stroke();
    ctx.restore();
  }

  /** Let uPlot know and draw all points. */
  settle() { if (this.behind && this.plot) { this.behind = false; this.range(this.plot.data); } }

  /** @param {Spec} spec @param {number} width */
  options(spec, width) {
    const [ink, muted, rule] = ["ink", "muted", "rule"].map(this.colour);
    const font = "12px system-ui, sans-serif", narrow = width < 500;
    const pen = isDense(spec) ? 1 : 1.6;
    /** @type {any[]} */
    const series = [{}], bands = [];
    for (const curve of spec.curves) {
      const stroke = curve.colour === "ink" ? ink : curve.colour, at = series.length, area = spec.areas && curve.low;
      series.push({ label: curve.label, show: !curve.hidden, stroke, width: area ? 0 : pen, dash: curve.dashes, points: { show: false, size: 6, fill: stroke, filter: (/** @type {any} */ plot) => (area ? null : lonely(plot.data[at])) } });
      if (curve.low && curve.high) {
        series.push({ show: !curve.hidden, width: 0, points: { show: false } }, { show: !curve.hidden, width: 0, points: { show: false } });
        bands.push({ series: [at + 2, at + 1], fill: `${curve.colour === "ink" ? "#757575" : curve.colour}${area ? "c0" : "26"}` });
      }
    }
    const axis = { stroke: muted, font, labelFont: font, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1, size: 4 } };
    const values = (/** @type {any} */ _, /** @type {number[]} */ ticks) => inTicks(ticks);
    const wide = (/** @type {any} */ _, /** @type {string[] | null} */ words) => Math.max(narrow ? 52 : 64, 14 + 7 * Math.max(0, ...(words ?? []).map((one) => one.length))); // long numbers would lie on the title
    // On a log axis uPlot would begin and end at whole decades, and leave names out.
    const named = (/** @type {any} */ plot, /** @type {number} */ side, /** @type {number} */ from, /** @type {number} */ to) => ticksOf(from, to, Math.max(5, Math.floor(side ? plot.height / 50 : plot.width / 90)), true);
    const log = { splits: named, filter: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks };
    const around = (/** @type {any} */ _, /** @type {number | null} */ from, /** @type {number | null} */ to) => (from === null || to === null ? [null, null] : limitsOf(from, to, true));
    return {
      width, height: narrow ? 300 : 400, legend: { show: false }, series, bands,
      scales: { x: spec.logX ? { time: false, distr: 3, range: (/** @type {any} */ _, /** @type {number} */ from, /** @type {number} */ to) => [from, to] } : { time: false }, y: spec.logY ? { distr: 3, range: around } : {} },
      axes: [{ ...axis, label: spec.x, labelSize: 18, labelGap: 0, size: 30, gap: 4, values, space: 60, ...(spec.logX ? log : {}) }, { ...axis, label: spec.y, labelSize: 20, size: spec.span ? SHARED : wide, values, ...(spec.logY ? log : {}) }],
      cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false }, focus: { prox: 30 }, ...(spec.span ? { sync: { key: "joma", scales: ["x", null] } } : {}) },
      focus: { alpha: spec.curves.length > 1 ? 0.3 : 1 },
      hooks: {
        setSelect: [(/** @type {any} */ plot) => { if (plot.select.width > 4) { this.zoomed(plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")); plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false); } }],
        setCursor: [(/** @type {any} */ plot) => this.read(plot)],
        drawAxes: [(/** @type {any} */ plot) => this.marks(plot)], // after the grid, which would hide those at round steps
        ready: [(/** @type {any} */ plot) => plot.over.addEventListener("dblclick", () => this.zoomed(null, null))],
      },
    };
  }

  /** Show the range that the address asks for; all of it where it asks for none. @param {any[][]} data */
  range(data) {
    const x = data[0], spec = /** @type {Spec} */ (this.spec);
    if (!x.length) return;
    const [first, last] = spec.span ?? [x[0], x[x.length - 1]], span = last - first, now = this.plot.scales.x.max;
    const room = spec.live && !spec.logX && span > 0, free = now > last && now <= last + 2 * ROOM * span ? now : last + ROOM * span;
    const [min, max] = seenRange(spec, [first, room ? free : last]);
    this.plot.setScale("x", { min, max });
  }

  /** Lines behind the curves, such as alarms. @param {any} plot */
  marks(plot) {
    for (const { tone, at } of this.spec?.marks ?? []) {
      plot.ctx.fillStyle = this.colour(tone);
      for (const one of at) {
        const place = plot.valToPos(one, "x", true);
        if (place >= plot.bbox.left && place <= plot.bbox.left + plot.bbox.width) plot.ctx.fillRect(Math.round(place), plot.bbox.top, devicePixelRatio, plot.bbox.height);
      }
    }
  }

  /** The curve nearest to the pointer, in words. @param {any} plot */
  read(plot) {
    const at = plot.cursor.idx, spec = this.spec;
    if (at === null || at === undefined || !spec) return;
    const x = plot.data[0][at];
    let best = "", nearest = Infinity, column = 1;
    for (const curve of spec.curves) {
      const value = plot.data[column][at], low = curve.low ? plot.data[column + 1][at] : null, high = curve.high ? plot.data[column + 2][at] : null;
      column += curve.low ? 3 : 1;
      if (curve.hidden || value === null || value === undefined) continue;
      const top = plot.cursor.top ?? 0, edges = (spec.areas && low !== null ? [low, high] : [value]).map((one) => plot.valToPos(one, "y"));
      const away = edges.length > 1 && (edges[0] - top) * (edges[1] - top) <= 0 ? 0 : Math.min(...edges.map((edge) => Math.abs(edge - top))); // within an area is at it
      if (away < nearest) { nearest = away; best = `${curve.label ? `${curve.label}: ` : ""}${inDigits(value)}${low !== null && !spec.areas ? ` [${inDigits(low)}, ${inDigits(high)}]` : ""}`; }
    }
    this.says.textContent = best ? `${spec.x} ${inDigits(x)} · ${best}` : "";
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const plot = this.plot, spec = this.spec;
    if (!plot || !spec) return;
    this.settle();
    const x = plot.data[0], { min, max } = plot.scales.x, move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
    if (move !== undefined) {
      const at = Math.min(Math.max((plot.cursor.idx ?? 0) + move, 0), x.length - 1);
      plot.setCursor({ left: plot.valToPos(x[at], "x"), top: plot.cursor.top >= 0 ? plot.cursor.top : plot.over.clientHeight / 2 });
    } else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      plot.setCursor({ left: plot.cursor.left >= 0 ? plot.cursor.left : 0, top: Math.min(Math.max((plot.cursor.top ?? 0) + (event.key === "ArrowUp" ? -8 : 8), 0), plot.over.clientHeight) });
    } else if (event.key === "+" || event.key === "-") {
      const middle = (min + max) / 2, half = (max - min) / 2 * (event.key === "+" ? 0.5 : 2);
      this.zoomed(Math.max(middle - half, x[0]), Math.min(middle + half, x[x.length - 1]));
    } else if (event.key === "0" || event.key === "Escape") this.zoomed(null, null);
    else return;
    event.preventDefault();
  }

  resize() {
    const width = this.box.clientWidth;
    if (this.plot && width && Math.abs(width - this.plot.width) > 1) { this.settle(); this.plot.setSize({ width, height: width < 500 ? 300 : 400 }); }
  }

  /** PNG, SVG or CSV of what is seen. @param {string} kind @param {string} name */
  async save(kind, name) {
    if (!this.spec) return;
    if (kind === "csv") { download(`${name}.csv`, new Blob([toCsv(this.spec)], { type: "text/csv" })); return; }
    const tones = ["ink", "muted", "paper", "rule", ...(this.spec.marks ?? []).map((some) => some.tone)];
    const svg = toSvg(this.spec, Object.fromEntries(tones.map((tone) => [tone, this.colour(tone)])));
    download(`${name}.${kind}`, kind === "svg" ? new Blob([svg], { type: "image/svg+xml" }) : await toPng(svg));
  }

  close() { this.watch.disconnect(); this.plot?.destroy(); this.plot = null; }
}

/** Names of curves with their last numbers, as buttons that hide them. */
class Keys {
  /** @param {() => void} changed */
  constructor(changed) {
    this.changed = changed;
    this.element = h("ul", { class: "legend" });
    /** @type {Set<string>} */
    this.hidden = new Set();
  }

  /** @param {Spec["curves"]} curves */
  set(curves) {
    const few = curves.slice(0, 60), buttons = [...this.element.querySelectorAll(".key")];
    const last = (/** @type {Curve} */ curve) => { for (let at = curve.y.length - 1; at >= 0; at--) if (Number.isFinite(curve.y[at])) return inDigits(curve.y[at]); return "–"; };
    const now = JSON.stringify(few.map((curve) => [curve.label, curve.colour, curve.hidden]));
    if (now === this.element.dataset.now && buttons.length === few.length) { few.forEach((curve, at) => { const says = buttons[at].lastElementChild, words = last(curve); if (says.textContent !== words) says.textContent = words; }); return; } // only the numbers move
    this.element.dataset.now = now;
    const focused = document.activeElement?.getAttribute("data-curve");
    this.element.replaceChildren(...(curves.length > 1 ? few : []).map((curve) => {
      return h("li", {}, h("button", { type: "button", class: "key", "data-curve": curve.label, "aria-pressed": !curve.hidden, onclick: () => { if (!this.hidden.delete(curve.label)) this.hidden.add(curve.label); this.changed(); } },
        h("i", { style: { background: curve.colour === "ink" ? "currentColor" : curve.colour } }), h("span", {}, curve.label), h("b", {}, last(curve))));
    }), ...(curves.length > few.length ? [h("li", { class: "none" }, `and ${curves.length - few.length} more`)] : []));
    if (focused) [...this.element.querySelectorAll("[data-curve]")].find((one) => one.getAttribute("data-curve") === focused)?.focus();
  }
}

/** Buttons that save what a chart shows. @param {Chart} chart @param {() => string} name */
function savers(chart, name) {
  return h("div", { class: "savers", role: "group", "aria-label": "Save what is seen" }, ...["png", "svg", "csv"].map((kind) => button(kind.toUpperCase(), () => chart.save(kind, name()))));
}
