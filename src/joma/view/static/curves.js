// Screen "Curves": any recorded array by member, layer and head; several runs on one axis, and another series below.

/** Numbers of all chosen runs, and how they were wanted. @typedef {{arrays: Held[], way: Way}} Loaded */

/** @param {View} view */
function curvesScreen(view) {
  const { seen, source } = view;
  const put = (/** @type {Object<string, any>} */ given) => { seen.put(given); update(); };
  const runs = h("div", { class: "choices" }), runsBox = h("details", { class: "runs-box" }, h("summary", {}, "Runs"), runs);
  const series = picker("Series", (name) => put({ series: name, x: null, low: null, high: null, ...Object.fromEntries([...seen.words.keys()].filter((key) => key.startsWith("by.")).map((key) => [key, null])) }));
  const below = picker("And below", (name) => put({ and: name }));
  const along = picker("Along", (x) => put({ x: x === "step" ? null : x, low: null, high: null }));
  const dims = h("div", { class: "dims" });
  /** @type {Map<string, ReturnType<typeof picker>>} */
  const dimPickers = new Map();
  const logX = tick("log x", (on) => put({ logx: on })), logY = tick("log y", (on) => put({ logy: on }));
  const together = tick("mean and interval over runs", (on) => put({ together: on }));
  const smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, "aria-label": "Smoothing", oninput: () => put({ smooth: smooth.value === "0" ? null : smooth.value }) });
  const smoothSays = h("output");
  const whole = button("Whole range", () => put({ low: null, high: null }));
  const zoom = (/** @type {number | null} */ low, /** @type {number | null} */ high) => put({ low: low === null ? null : Number(low.toPrecision(7)), high: high === null ? null : Number(high.toPrecision(7)) });
  const chart = new Chart(view.root, zoom), second = new Chart(view.root, zoom), secondKeys = new Keys(() => update());
  const secondLog = tick("log y", (on) => put({ logy2: on }));
  const secondBox = h("section", { class: "second" }), secondParts = [second.element, secondKeys.element, h("div", { class: "controls" }, secondLog.element, savers(second, () => `joma-${seen.get("and")}`))];
  const notice = h("p", { class: "notice", hidden: true }), keys = new Keys(() => update()), legend = keys.element, hidden = keys.hidden, note = h("p", { class: "note" });
  const element = h("div", {},
    h("div", { class: "controls" }, runsBox, series.element, below.element, along.element, dims),
    h("div", { class: "controls" }, logX.element, logY.element, h("label", { class: "pick" }, h("span", {}, "Smoothing"), smooth, smoothSays), together.element, whole, savers(chart, () => `joma-${seen.get("series") || "curves"}`)),
    notice, chart.element, legend, secondBox, note);
  let asked = 0, drawn = "";
  /** @type {Map<string, {key: string, parts: Held[]}>} */
  const fine = new Map();

  /** Names of the series that all chosen runs have; those over several steps first. @param {RunEntry[]} chosen */
  function names(chosen) {
    const every = chosen.map((run) => run.series ?? []), first = every[0] ?? [];
    const common = first.filter((one) => every.every((some) => some.some((other) => other.name === one.name)));
    return [...common].sort((a, b) => Number(b.steps > 1) - Number(a.steps > 1));
  }

  async function update() {
    const turn = ++asked, ids = view.chosenRuns(), chosen = ids.map((id) => source.run(id)).filter((run) => run && !run.fault).map((run) => /** @type {RunEntry} */ (run));
    listRuns(ids);
    const known = names(chosen);
    const name = known.some((one) => one.name === seen.get("series")) ? seen.get("series") : (known.find((one) => one.name === "entropy") ?? known[0])?.name ?? "";
    const listed = known.find((one) => one.name === name);
    series.set(known.map((one) => [one.name, `${one.name}${one.steps > 1 ? "" : " (one step)"}`]), name);
    const usualX = listed && listed.steps < 2 && listed.dims.length ? listed.dims.reduce((a, b) => (b.size > a.size ? b : a)).name : "step";
    const x = ["step", ...(listed?.dims ?? []).map((dim) => dim.name)].includes(seen.get("x")) ? seen.get("x") : usualX;
    along.set([["step", "steps"], .../** @type {[string, string][]} */ ((listed?.dims ?? []).filter((dim) => dim.size > 1).map((dim) => [dim.name, dim.name.replace(/^dim_/, "axis ")]))], x);
    const modes = dimControls(listed, x);
    const others = x === "step" ? known.filter((one) => one.name !== name && one.steps > 1) : [], other = others.find((one) => one.name === seen.get("and"));
    below.set(others.length ? [["", "nothing"], .../** @type {[string, string][]} */ (others.map((one) => [one.name, one.name]))] : [], other?.name ?? "");
    if (Boolean(other) !== secondBox.children.length > 0) secondBox.replaceChildren(...(other ? secondParts : []));
    secondLog.set(seen.get("logy2") === "1");
    logX.set(seen.get("logx") === "1"); logY.set(seen.get("logy") === "1"); together.set(seen.get("together") === "1");
    together.element.hidden = chosen.length < 2;
    smooth.value = seen.get("smooth", "0"); smoothSays.textContent = smooth.value === "0" ? "off" : smooth.value;
    const low = number("low"), high = number("high");
    whole.hidden = low === undefined && high === undefined;
    if (!listed) { drawn = ""; say(source.runs.length ? "Choose a run that can be read." : "There is no run here yet."); chart.element.hidden = true; legend.replaceChildren(); return; }
    try {
      const otherModes = other ? chosenModes(other.dims, x) : {};
      const [first, more] = await Promise.all([load(chosen, name, modes, x, low, high), other ? load(chosen, other.name, otherModes, x, low, high) : null]);
      if (turn !== asked) return;
      const shown = first.arrays, both = [...shown, ...(more?.arrays ?? [])];
      say("");
      chart.element.hidden = false;
      const same = JSON.stringify([String(seen.words), name, chosen.map((run) => [run.id, run.identity, run.state, run.alarm_count, run.left_out?.length]), both.map((array) => array.order), [...hidden], [...secondKeys.hidden], view.dark, source.title(name)]);
      const sign = JSON.stringify([same, both.map((array) => [array.steps.length, array.steps[array.steps.length - 1]])]);
      if (sign === drawn) return; // the index changed, but nothing of what is seen
      drawn = sign;
      const span = more ? [Math.min(...both.map((array) => array.steps[0])), Math.max(...both.map((array) => array.steps[array.steps.length - 1]))] : undefined;
      draw(chart, keys, chosen, first, modes, x, name, { low, high, same, span, logY: seen.get("logy") === "1" });
      if (other && more) draw(second, secondKeys, chosen, more, otherModes, x, other.name, { low, high, same, span, logY: seen.get("logy2") === "1" });
    } catch (error) {
      if (turn !== asked) return;
      say(/** @type {Error} */ (error).message);
      drawn = "";
      chart.element.hidden = true;
      legend.replaceChildren();
    }
  }

  /** @param {string} key @returns {number | undefined} */
  function number(key) { const value = seen.get(key); return value === "" || Number.isNaN(Number(value)) ? undefined : Number(value); }

  /** The numbers of all chosen runs, and how they were wanted.
   * @param {RunEntry[]} chosen @param {string} name @param {Modes} modes @param {string} x @param {number | undefined} low @param {number | undefined} high @returns {Promise<Loaded>} */
  async function load(chosen, name, modes, x, low, high) {
    const ways = await Promise.all(chosen.map((run) => wayOf(run.id, name, modes, x))), way = ways.find((one) => Object.keys(one).length) ?? {};
    const arrays = await Promise.all(chosen.map((run, at) => source.series(run.id, name, ways[at])));
    return { way, arrays: await finer(chosen, name, arrays, x, low, high, way) };
  }

  /** How numbers are wanted: where they are thinned, means come from all steps, and intervals from whole steps.
   * @param {string} run @param {string} name @param {Modes} modes @param {string} x @returns {Promise<Way>} */
  async function wayOf(run, name, modes, x) {
    const dims = source.run(run)?.series?.find((one) => one.name === name)?.dims ?? [], ways = dims.filter((dim) => dim.name !== x && dim.size > 1).map((dim) => [dim.name, modes[dim.name]]);
    if (!(source.long(run, name) || (await source.series(run, name)).thinned)) return {};
    const means = ways.filter(([, mode]) => mode === "mean").map(([dim]) => dim);
    return x !== "step" || ways.some(([, mode]) => mode === "interval") ? { whole: true } : means.length ? { means } : {};
  }

  /** More points of what is zoomed into, where the whole was thinned.
   * @param {RunEntry[]} chosen @param {string} name @param {Held[]} arrays @param {string} x @param {number | undefined} low @param {number | undefined} high @param {Way} way */
  async function finer(chosen, name, arrays, x, low, high, way) {
    if (x !== "step" || low === undefined || high === undefined || !arrays.some((array) => array.thinned)) return arrays;
    const grown = (/** @type {RunEntry} */ run) => { const listed = source.listed(run.id, name); return listed && listed.last <= high ? listed.cursor : null; }; // new steps may lie inside
    const key = JSON.stringify([chosen.map((run) => [run.id, run.identity, grown(run)]), name, low, high, way]);
    if (fine.get(name)?.key !== key) fine.set(name, { key, parts: await Promise.all(chosen.map((run) => source.part(run.id, name, way, low, high))) });
    return fine.get(name)?.parts ?? arrays;
  }

  /** @param {SeriesEntry | undefined} listed @param {string} x @returns {Modes} */
  function dimControls(listed, x) {
    /** @type {Dim[]} */
    const axes = listed ? [...(x === "step" ? [] : [{ name: "step", size: listed.steps, labels: null }]), ...listed.dims.filter((dim) => dim.name !== x)] : [];
    const usual = chosenModes(listed?.dims ?? [], x); // one step is shown, so steps take no room from others
    if (x !== "step" && listed) usual.step = String(listed.steps - 1);
    const wanted = axes.filter((dim) => dim.size > 1), now = new Set(wanted.map((dim) => dim.name));
    for (const [name, one] of dimPickers) if (!now.has(name)) { one.element.remove(); dimPickers.delete(name); }
    for (const dim of wanted) {
      const known = dimPickers.get(dim.name) ?? picker(dim.name.replace(/^dim_/, "axis "), (mode) => put({ [`by.${dim.name}`]: mode }));
      if (!dimPickers.has(dim.name)) { dimPickers.set(dim.name, known); dims.append(known.element); }
      const at = seen.get("by.step");
      if (dim.name === "step" && (["each", "mean", "interval"].includes(at) || (at && Number(at) < Infinity))) usual.step = at;
      const ways = /** @type {[string, string][]} */ ([["each", `each of ${dim.size}`], ["mean", "mean"], ["interval", "mean and interval"]]);
      const places = dim.name === "step" ? /** @type {[string, string][]} */ ([[String(/** @type {SeriesEntry} */ (listed).steps - 1), "the last"]]) : [...Array(Math.min(dim.size, 512)).keys()].map((at) => /** @type {[string, string]} */ ([String(at), placeName(dim, at)]));
      known.set([...ways, ...places], usual[dim.name]);
    }
    return usual;
  }

  /** What is done with each dimension: what somebody chose, else what is usual. @param {Dim[]} all @param {string} x @returns {Modes} */
  function chosenModes(all, x) {
    const usual = usualModes(all, x);
    for (const { name, size } of all) {
      const chosen = seen.get(`by.${name}`);
      if (chosen && name !== x && (["each", "mean", "interval"].includes(chosen) || Number(chosen) < size)) usual[name] = chosen;
    }
    return usual;
  }

  /** @param {string[]} ids */
  function listRuns(ids) {
    const now = JSON.stringify([ids, source.runs.map((run) => [run.id, Boolean(run.fault)])]);
    runsBox.querySelector("summary").textContent = ids.length === 1 ? `Run: ${ids[0]}` : `${ids.length} runs`;
    if (runs.dataset.now === now) return;
    runs.dataset.now = now;
    const focused = document.activeElement?.getAttribute("data-run");
    runs.replaceChildren(...source.runs.filter((run) => !run.fault).map((run) => {
      const box = h("input", { type: "checkbox", "data-run": run.id, onchange: () => { const after = new Set(view.chosenRuns()); if (box.checked) after.add(run.id); else after.delete(run.id); put({ run: [...after] }); } });
      box.checked = ids.includes(run.id);
      return h("label", { class: "tick" }, box, h("span", {}, run.id));
    }));
    if (focused) [...runs.querySelectorAll("input")].find((one) => one.getAttribute("data-run") === focused)?.focus();
  }

  /** @param {Chart} place @param {Keys} names @param {RunEntry[]} chosen @param {Loaded} loaded @param {Modes} modes @param {string} x @param {string} name @param {{low?: number, high?: number, same: string, span?: number[], logY: boolean}} range */
  function draw(place, names, chosen, loaded, modes, x, name, { low, high, same, span, logY }) {
    const { arrays } = loaded, hidden = names.hidden;
    const weight = Number(seen.get("smooth", "0")) || 0, over = seen.get("together") === "1" && chosen.length > 1;
    const found = arrays.map((array) => (x === "step" ? growingCurves(array, modes) : curvesOf(array, modes, x)));
    const several = chosen.length > 1 && !over;
    const curves = (over ? overRuns(found) : found.flatMap((some, at) => some.map((curve) => ({ ...curve, label: several ? [chosen[at].id, curve.label].filter(Boolean).join(" · ") : curve.label }))))
      .map((curve) => ({ ...curve, y: smoothed(curve.y, weight), low: weight ? curve.low && smoothed(curve.low, weight) : curve.low, high: weight ? curve.high && smoothed(curve.high, weight) : curve.high }));
    const colours = coloursFor(curves.length);
    const spec = { curves: curves.map((curve, at) => ({ ...curve, colour: colours[at], hidden: hidden.has(curve.label) })), x: x === "step" ? "step" : x.replace(/^dim_/, "axis "), y: source.title(name), logX: seen.get("logx") === "1", logY, low, high, span, marks: x === "step" ? marksOf(chosen, name) : [], live: x === "step" && chosen.some((run) => run.state === "being written"), same: x === "step" && arrays.length === 1 ? same : undefined };
    place.draw(spec);
    names.set(spec.curves);
    if (place === chart) remarks(loaded, spec, over ? chosen.length : 0, modes);
  }

  /** Alarms of a measure, and checkpoints that were left out. @param {RunEntry[]} chosen @param {string} name @returns {(Marks & {named: string})[]} */
  function marksOf(chosen, name) {
    const told = chosen.flatMap((run) => run.alarms ?? []), all = chosen.reduce((sum, run) => sum + (run.alarm_count ?? 0), 0);
    const steps = (/** @type {any[]} */ some) => some.map((one) => one.step);
    return [
      { named: "Red", tone: "fails", says: all > told.length ? `alarms among the last ${told.length.toLocaleString("en")} of ${all.toLocaleString("en")}` : "alarms", at: steps(told.filter((one) => one.measure === name)) },
      { named: "Grey", tone: "not-run", says: "checkpoints that were left out", at: steps(chosen.flatMap((run) => run.left_out ?? [])) },
    ].filter((some) => some.at.length);
  }

  /** @param {Loaded} loaded @param {Spec & {marks: {named: string, says: string}[]}} spec @param {number} over @param {Modes} modes */
  function remarks({ arrays, way }, spec, over, modes) {
    const said = [], lost = arrays.reduce((sum, array) => sum + array.lost, 0), thinned = arrays.filter((array) => array.thinned);
    if (thinned.length) {
      const made = way.whole || arrays[0].dims.some((dim) => ["mean", "interval"].includes(modes[dim.name]) && dim.size > 1); // here, of several curves
      said.push(`Thinned to ${Math.max(...thinned.map((array) => array.steps.length)).toLocaleString("en")} of ${Math.max(...thinned.map((array) => array.of)).toLocaleString("en")} steps: ${made ? "whole steps, evenly spread." : "of each stretch the smallest and the largest number, so spikes stay."}`);
    }
    if (lost) said.push(`${counted(lost, "number")} recorded as NaN or infinite: gaps.`);
    const repeated = arrays[0]?.dims.filter((dim) => modes[dim.name] === "interval").reduce((size, dim) => size * dim.size, 1) ?? 1;
    if (over || repeated > 1) { const n = over || repeated; said.push(`Band: ${n <= FEW ? 99 : 95} % interval of the mean over ${n} ${over ? "runs" : "repetitions"}, were they Gaussian.`); }
    if (spec.curves.length >= MOST_CURVES) said.push(`The first ${MOST_CURVES} curves are drawn.`);
    for (const { named, says } of spec.marks) said.push(`${named} lines: ${says}.`);
    const unseen = notOnLog(spec);
    if (unseen) said.push(`A log axis cannot show ${counted(unseen, "point")} at 0 or below.`);
    note.textContent = said.join(" ");
  }

  /** @param {string} words */
  function say(words) { notice.textContent = words; notice.hidden = !words; }
  return { element, update, close() { chart.close(); second.close(); } };
}
