// Screen "Heads": every layer and head at a glance, as a heat map with a slider over steps, or as small curves.

const LISTED = 40; // alarms, and checkpoints that were left out

/** @param {View} view */
function headsScreen(view) {
  const { seen, source } = view;
  const put = (/** @type {Object<string, any>} */ given) => { seen.put(given); update(); };
  const run = picker("Run", (id) => put({ run: [id], series: null, step: null })), series = picker("Series", (name) => put({ series: name }));
  const mode = picker("As", (how) => put({ heads: how === "map" ? null : how }));
  const scale = tick("colours of this step alone", (on) => put({ own: on }));
  const slider = h("input", { type: "range", min: 0, "aria-label": "Step", oninput: () => { const held = shown; if (held) put({ step: Number(slider.value) === held.steps.length - 1 ? null : held.steps[Number(slider.value)] }); } });
  const at = h("output", { class: "at" }), strip = h("canvas", { class: "strip", "aria-hidden": "true" });
  const canvas = h("canvas", {}), box = h("div", { class: "map", tabindex: 0, role: "group" }, canvas);
  const says = h("p", { class: "reading", role: "status" }), bar = h("div", { class: "scale", "aria-hidden": "true" }), events = h("div", { class: "events" });
  const notice = h("p", { class: "notice", hidden: true });
  const steps = h("div", { class: "steps" }, h("label", {}, h("span", {}, "Step"), slider), at, strip);
  const element = h("div", {}, h("div", { class: "controls" }, run.element, series.element, mode.element, scale.element), notice, steps, box, bar, says, events);
  /** @type {Held | null} */
  let shown = null;
  /** @type {RunEntry | null} */
  let entry = null;
  const paint = palette(view.root);
  /** @type {{sign: string, steps: number, range: [number, number]} | null} what small curves stand there */
  let stands = null;
  let asked = 0, focus = [0, 0], drawn = "";
  /** @type {{left: number, top: number, wide: number, tall: number, rows: number, columns: number}} */
  let grid = { left: 0, top: 0, wide: 1, tall: 1, rows: 0, columns: 0 };

  const gridded = (/** @type {RunEntry} */ one) => (one.series ?? []).filter((each) => each.dims.length >= 1 && each.dims.length <= 2);

  async function update() {
    const turn = ++asked, runs = source.runs.filter((one) => !one.fault && gridded(one).length);
    const wanted = view.chosenRuns(), id = runs.find((one) => wanted.includes(one.id))?.id ?? runs.find((one) => gridded(one).some((each) => each.dims.some((dim) => dim.name === "head")))?.id ?? runs[0]?.id ?? "";
    run.set(runs.map((one) => [one.id, one.id]), id);
    entry = source.run(id) ?? null;
    const known = entry ? gridded(entry).sort((a, b) => Number(isHeads(b)) - Number(isHeads(a)) || Number(b.steps > 1) - Number(a.steps > 1)) : [];
    const name = known.some((one) => one.name === seen.get("series")) ? seen.get("series") : known[0]?.name ?? "";
    series.set(known.map((one) => [one.name, one.name]), name);
    mode.set([["map", "heat map"], ["curves", "small curves"]], seen.get("heads", "map"));
    scale.set(seen.get("own") === "1");
    scale.element.hidden = seen.get("heads", "map") !== "map";
    if (!name) { say(source.runs.length ? "No run here has numbers by layer and head." : "There is no run here yet."); return; }
    try {
      const whole = seen.get("heads", "map") === "map" && (source.long(id, name) || (await source.series(id, name)).thinned);
      const held = await source.series(id, name, whole ? { whole: true } : {});
      if (turn !== asked) return;
      shown = held;
      say("");
      const same = JSON.stringify([String(seen.words), id, entry?.identity, name, held.order, entry?.alarm_count, entry?.left_out?.length, view.dark, source.title(name)]);
      const sign = JSON.stringify([same, held.steps.length, held.steps[held.steps.length - 1]]);
      if (sign === drawn) return; // the index changed, but nothing of what is seen
      drawn = sign;
      draw(name, same);
    } catch (error) { if (turn === asked) say(/** @type {Error} */ (error).message); }
  }

  /** @param {SeriesEntry} one */
  function isHeads(one) { return one.dims.some((dim) => dim.name === "head"); }

  function place() {
    const held = /** @type {Held} */ (shown), wanted = seen.get("step");
    if (wanted === "") return held.steps.length - 1;
    let best = 0;
    held.steps.forEach((step, i) => { if (Math.abs(step - Number(wanted)) < Math.abs(held.steps[best] - Number(wanted))) best = i; });
    return best;
  }

  /** @param {string} name @param {string} [same] stays while nothing but new steps comes */
  function draw(name, same = "") {
    const held = /** @type {Held} */ (shown), now = place(), curves = seen.get("heads", "map") === "curves";
    slider.max = String(held.steps.length - 1); slider.value = String(now);
    slider.setAttribute("aria-valuetext", `step ${held.steps[now]}`);
    at.textContent = `${held.steps[now].toLocaleString("en")} of ${held.steps[held.steps.length - 1].toLocaleString("en")}`;
    const [rows, columns] = held.dims.length === 2 ? held.dims : [held.dims[0], { name: "", size: 1, labels: [""] }];
    const range = rangeSoFar(held);
    if (curves && same && stands?.sign === same && held.steps.length - stands.steps < held.steps.length / grid.wide / 2 && range.every((one, at) => one === stands?.range[at])) return; // nothing would move by half a pixel
    stands = { sign: same, steps: held.steps.length, range };
    const width = box.clientWidth || 600, context = canvas.getContext("2d"), ratio = devicePixelRatio || 1;
    const names = rows.labels ? Math.min(Math.max(...rows.labels.map((label) => label.length)), 22) * 6.4 + 10 : 34;
    const left = Math.min(Math.max(names, 34), width * 0.34), wide = Math.min((width - left - 4) / columns.size, curves ? 400 : 64), tall = curves ? Math.max(26, Math.min(wide * 0.7, 60)) : Math.max(12, Math.min(wide, 26));
    grid = { left, top: 22, wide, tall, rows: rows.size, columns: columns.size };
    focus = [Math.min(focus[0], rows.size - 1), Math.min(focus[1], columns.size - 1)]; // another run may have fewer
    const high = grid.top + rows.size * tall + 4;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(high * ratio);
    canvas.style.width = `${width}px`; canvas.style.height = `${high}px`;
    context.scale(ratio, ratio);
    context.font = "11px system-ui, sans-serif"; context.textBaseline = "middle"; context.fillStyle = paint("muted");
    const every = Math.max(1, Math.ceil(26 / wide));
    for (let column = 0; column < columns.size; column += every) { context.textAlign = "center"; if (columns.size > 1 || columns.labels?.[0]) context.fillText(short(columns, column), left + (column + 0.5) * wide, 10, wide * every - 2); }
    for (let row = 0; row < rows.size; row++) { context.textAlign = "right"; context.fillText(short(rows, row), left - 6, grid.top + (row + 0.5) * tall, left - 8); }
    const cells = rows.size * columns.size, span = seen.get("own") === "1" && !curves ? rangeOf(held.values, now * cells, (now + 1) * cells) : range;
    if (curves) smallCurves(context, held, cells, range, now); else heatMap(context, held, cells, span, now, name);
    box.setAttribute("aria-label", `${source.title(name)}, ${counted(rows.size, rows.name || "row")} by ${counted(columns.size, columns.name || "column")}, at step ${held.steps[now]}. Arrow keys move, Enter opens the curve.`);
    legendBar(span, curves, name);
    markStrip(held);
    listEvents(name);
    readOut(name, false);
  }

  /** @param {Dim} dim @param {number} i */
  function short(dim, i) { const label = dim.labels ? dim.labels[i].replace(/^layer (?=\d)/, "") : String(i); return label.length > 22 ? `…${label.slice(-21)}` : label; }

  /** @param {CanvasRenderingContext2D} context @param {Held} held @param {number} cells @param {[number, number]} range @param {number} now @param {string} name */
  function heatMap(context, held, cells, range, now, name) {
    const tone = heat(range, view.dark), red = paint("fails"), none = paint("rule"), alarmed = alarmsUntil(held.steps[now], name);
    const gap = grid.wide > 8 ? 1 : 0;
    for (let cell = 0; cell < cells; cell++) {
      const row = Math.floor(cell / grid.columns), column = cell % grid.columns, value = held.values[now * cells + cell];
      const x = grid.left + column * grid.wide, y = grid.top + row * grid.tall;
      context.fillStyle = Number.isFinite(value) ? tone(value) : "transparent";
      context.fillRect(x, y, grid.wide - gap, grid.tall - gap);
      if (!Number.isFinite(value)) { context.strokeStyle = none; context.strokeRect(x + 0.5, y + 0.5, grid.wide - gap - 1, grid.tall - gap - 1); }
      if (alarmed.has(cell)) { context.strokeStyle = red; context.lineWidth = 2; context.strokeRect(x + 1, y + 1, grid.wide - gap - 2, grid.tall - gap - 2); context.lineWidth = 1; }
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Held} held @param {number} cells @param {[number, number]} range @param {number} now */
  function smallCurves(context, held, cells, range, now) {
    const [low, high] = range, span = high - low || 1, count = held.steps.length, first = held.steps[0], long = held.steps[count - 1] - first || 1;
    context.lineWidth = 1;
    for (let cell = 0; cell < cells; cell++) {
      const row = Math.floor(cell / grid.columns), x0 = grid.left + (cell % grid.columns) * grid.wide, y0 = grid.top + row * grid.tall, wide = grid.wide - 4, tall = grid.tall - 5;
      context.fillStyle = paint("panel"); context.fillRect(x0, y0, grid.wide - 2, grid.tall - 2);
      context.strokeStyle = between(DEPTH, grid.rows > 1 ? row / (grid.rows - 1) : 0);
      context.beginPath();
      let column = -1, least = 0, most = 0;
      const flush = () => { if (column >= 0) { context.lineTo(x0 + 1 + column, y0 + tall - (least - low) / span * (tall - 2)); context.lineTo(x0 + 1 + column, y0 + tall - (most - low) / span * (tall - 2)); } };
      for (let i = 0; i < count; i++) { // the smallest and the largest number of each pixel, so that spikes stay
        const value = held.values[i * cells + cell];
        if (!Number.isFinite(value)) continue;
        const pixel = Math.round((held.steps[i] - first) / long * wide);
        if (pixel !== column) { flush(); column = pixel; least = most = value; } else if (value < least) least = value; else if (value > most) most = value;
      }
      flush();
      context.stroke();
      context.fillStyle = paint("muted");
      context.fillRect(x0 + 1 + (held.steps[now] - first) / long * wide, y0 + 1, 1, tall);
    }
  }

  /** Cells of this measure that had an alarm until a step. @param {number} step @param {string} name @returns {Set<number>} */
  function alarmsUntil(step, name) {
    const held = /** @type {Held} */ (shown), labels = held.dims[0].labels ?? [], found = new Set();
    for (const alarm of entry?.alarms ?? []) {
      const row = labels.indexOf(alarm.layer);
      if (alarm.step <= step && alarm.measure === name && row >= 0) found.add(row * grid.columns + (alarm.head ?? 0));
    }
    return found;
  }

  /** @param {[number, number]} range @param {boolean} curves @param {string} name */
  function legendBar(range, curves, name) {
    const tone = heat(range, view.dark), now = JSON.stringify([range, curves, source.title(name), view.dark]);
    if (bar.dataset.now === now) return;
    bar.dataset.now = now;
    bar.replaceChildren(h("span", {}, source.title(name)), h("span", {}, inDigits(range[0])), ...(curves ? [h("span", {}, "to")] : [...Array(24).keys()].map((i) => h("i", { style: { background: tone(range[0] + (range[1] - range[0]) * i / 23) } }))), h("span", {}, inDigits(range[1])));
  }

  /** Where alarms and left-out checkpoints lie along the slider. @param {Held} held */
  function markStrip(held) {
    strip.hidden = !(entry?.alarms?.length || entry?.left_out?.length);
    if (strip.hidden) return;
    const width = strip.clientWidth || 300, context = strip.getContext("2d"), first = held.steps[0], long = held.steps[held.steps.length - 1] - first || 1;
    strip.width = width; strip.height = 8;
    const put = (/** @type {any[]} */ some, /** @type {string} */ name) => { context.fillStyle = paint(name); for (const one of some) context.fillRect(Math.round((one.step - first) / long * (width - 2)), 0, 2, 8); };
    put(entry?.alarms ?? [], "fails");
    put(entry?.left_out ?? [], "not-run");
  }

  /** How many of all are listed, and marked, where not all are. @param {number} told @param {number} all @returns {string} */
  function howMany(told, all) {
    const listed = Math.min(told, LISTED), words = (/** @type {number} */ count) => `the last ${count.toLocaleString("en")}`;
    return all > listed ? `: ${words(listed)} of ${all.toLocaleString("en")}${all > told && told > listed ? `; ${words(told)} are marked` : ""}` : "";
  }

  /** @param {string} name */
  function listEvents(name) {
    const now = JSON.stringify([name, entry?.id, entry?.identity, entry?.alarm_count, entry?.left_out]);
    if (events.dataset.now === now) return; // a keyboard stays where it is
    events.dataset.now = now;
    const list = (/** @type {string} */ title, /** @type {any[]} */ some, /** @type {number} */ all, /** @type {string} */ kind) => some.length && h("section", {}, h("h2", { class: "small" }, title, howMany(some.length, all)), h("ul", {}, ...some.slice(-LISTED).map((one) => h("li", { class: kind }, button(`step ${one.step.toLocaleString("en")}`, () => put({ step: one.step, series: one.measure && entry?.series?.some((each) => each.name === one.measure) ? one.measure : name }), { class: "link" }), ` ${one.says.replace(/^step \d+:? ?/, "")}`))));
    events.replaceChildren(...[list("Alarms", entry?.alarms ?? [], entry?.alarm_count, "v-fails"), list("Checkpoints that were left out", entry?.left_out ?? [], entry?.left_out?.length, "v-not-run")].filter(Boolean));
  }

  /** @param {string} name @param {boolean} loud */
  function readOut(name, loud) {
    if (!shown) return;
    const [row, column] = focus, held = shown, cells = grid.rows * grid.columns, value = held.values[place() * cells + row * grid.columns + column];
    const where = [placeName(held.dims[0], row), held.dims[1] && placeName(held.dims[1], column)].filter(Boolean).join(", ");
    if (loud || says.textContent) says.textContent = `${where}: ${inDigits(value)} at step ${held.steps[place()].toLocaleString("en")}`;
  }

  const nameNow = () => series.element.querySelector("select").value;
  const open = () => { if (shown) view.go({ screen: "curves", run: [/** @type {RunEntry} */ (entry).id], series: nameNow(), ...Object.fromEntries(shown.dims.map((dim, i) => [`by.${dim.name}`, String(focus[i])])) }); };
  const cellAt = (/** @type {PointerEvent} */ event) => { const area = canvas.getBoundingClientRect(); return [Math.floor((event.clientY - area.top - grid.top) / grid.tall), Math.floor((event.clientX - area.left - grid.left) / grid.wide)]; };
  const inGrid = ([row, column] = focus) => row >= 0 && column >= 0 && row < grid.rows && column < grid.columns;
  canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => { const cell = cellAt(event); if (inGrid(cell)) { focus = cell; readOut(nameNow(), true); } });
  canvas.addEventListener("click", (/** @type {PointerEvent} */ event) => { const cell = cellAt(event); if (inGrid(cell)) { focus = cell; open(); } });
  box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (move) { const next = [focus[0] + move[0], focus[1] + move[1]]; if (inGrid(next)) focus = next; readOut(nameNow(), true); } else if (event.key === "Enter") open(); else return;
    event.preventDefault();
  });
  const watch = new ResizeObserver(() => { if (shown && !box.hidden) draw(nameNow()); });
  watch.observe(box);

  /** @param {string} words */
  function say(words) {
    notice.textContent = words; notice.hidden = !words;
    for (const one of [box, steps, bar, events]) one.hidden = Boolean(words);
    if (words) says.textContent = "";
  }
  return { element, update, close() { watch.disconnect(); } };
}
