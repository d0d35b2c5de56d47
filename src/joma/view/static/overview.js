// Screen "Overview": all series of a run as small charts, the loss first, alarms as red lines. A click enlarges one.

const MOST_CARDS = 60, MOST_LAYERS = 24, CARD = { width: 280, height: 92 };

/** The series of a run that have a course, losses before others. @param {RunEntry} run @returns {SeriesEntry[]} */
function cardsOf(run) {
  const later = (/** @type {SeriesEntry} */ one) => Number(!/(^|[/_])loss$/.test(one.name));
  return (run.series ?? []).filter((one) => one.steps > 1).sort((a, b) => later(a) - later(b));
}

/** Dimensions that a card takes the mean over: all but a few layers. @param {Dim[]} dims @returns {string[]} */
function meansOf(dims) {
  return dims.filter((dim) => dim.name !== "layer" || dim.size > MOST_LAYERS).map((dim) => dim.name);
}

/** A curve as a path: of each pixel the smallest and the largest number, so that spikes stay; a gap where there is none.
 * @param {number[]} x @param {number[]} y @param {[number, number]} across @param {[number, number]} up @param {{width: number, height: number}} size @returns {string} */
function smallPath(x, y, across, up, size) {
  const px = (/** @type {number} */ v) => Math.round((v - across[0]) / (across[1] - across[0] || 1) * size.width), py = (/** @type {number} */ v) => ((up[1] - v) / (up[1] - up[0] || 1) * size.height).toFixed(1);
  let path = "", pen = "M";
  for (let at = 0; at < x.length;) {
    const column = px(x[at]), values = [];
    let gap = false;
    for (; at < x.length && px(x[at]) === column; at++) if (Number.isFinite(y[at])) values.push(y[at]); else gap = true;
    if (values.length) {
      const [low, high] = rangeOf(values), ends = low === high ? [low] : values.indexOf(low) < values.indexOf(high) ? [low, high] : [high, low];
      for (const end of ends) { path += `${pen}${column} ${py(end)}`; pen = "L"; }
    }
    if (gap && !values.length) pen = "M";
  }
  return path;
}

/** @param {View} view */
function overviewScreen(view) {
  const { source } = view;
  const run = picker("Run", (id) => { view.seen.put({ run: [id] }); update(); });
  const notice = h("p", { class: "notice", hidden: true }), cards = h("div", { class: "cards" }), note = h("p", { class: "note" });
  const element = h("div", {}, h("div", { class: "controls" }, run.element), notice, cards, note);
  /** @type {Map<string, {element: any, sign: string}>} */
  const known = new Map();
  let shown = "";

  function update() {
    const readable = source.runs.filter((one) => !one.fault), id = view.chosenRuns()[0] ?? "", entry = source.run(id);
    run.set(readable.map((one) => [one.id, one.id]), id);
    const every = entry ? cardsOf(entry) : [], some = every.slice(0, MOST_CARDS), single = (entry?.series ?? []).length - every.length;
    notice.hidden = some.length > 0;
    notice.textContent = entry ? "This run has no series over steps yet." : "There is no run here yet.";
    note.textContent = [every.length > some.length ? `The first ${MOST_CARDS} of ${counted(every.length, "series", "series")}.` : "", single ? `${counted(single, "series", "series")} of one step: see Curves.` : "", some.length ? "One curve per layer, else the mean. Red lines are alarms." : ""].filter(Boolean).join(" ");
    const now = JSON.stringify([id, entry?.identity, some.map((one) => one.name), view.dark]);
    if (now !== shown) {
      shown = now;
      known.clear();
      for (const one of some) known.set(one.name, { element: card(id, one.name), sign: "" });
      cards.replaceChildren(...[...known.values()].map((one) => one.element));
    }
    for (const one of some) void fill(/** @type {RunEntry} */ (entry), one);
  }

  /** @param {string} id @param {string} name */
  function card(id, name) {
    return h("button", { type: "button", class: "card", "data-series": name, onclick: () => view.go({ screen: "curves", run: [id], series: name, and: null }) });
  }

  /** @param {RunEntry} entry @param {SeriesEntry} listed */
  async function fill(entry, listed) {
    const place = known.get(listed.name), alarms = (entry.alarms ?? []).filter((/** @type {any} */ one) => one.measure === listed.name).map((/** @type {any} */ one) => one.step);
    if (!place) return;
    try {
      const means = meansOf(listed.dims), held = await source.series(entry.id, listed.name, means.length ? { means } : {});
      const sign = JSON.stringify([shown, held.steps.length, held.steps[held.steps.length - 1], held.order, alarms.length, source.title(listed.name)]);
      if (known.get(listed.name) !== place || place.sign === sign) return;
      place.sign = sign;
      place.element.replaceChildren(...picture(listed.name, curvesOf(held, Object.fromEntries(held.dims.map((dim) => [dim.name, means.includes(dim.name) ? "mean" : "each"]))), alarms));
    } catch (error) { place.element.replaceChildren(h("b", {}, source.title(listed.name)), h("span", { class: "fault" }, /** @type {Error} */ (error).message)); }
  }

  /** @param {string} name @param {Curve[]} curves @param {number[]} alarms @returns {Element[]} */
  function picture(name, curves, alarms) {
    const x = curves[0].x, across = /** @type {[number, number]} */ ([x[0], x[x.length - 1]]), up = rangeOf(curves.flatMap((curve) => curve.y)), colours = coloursFor(curves.length);
    const last = curves.map((curve) => [...curve.y].reverse().find(Number.isFinite) ?? NaN).filter(Number.isFinite), mean = last.length ? last.reduce((sum, one) => sum + one, 0) / last.length : NaN;
    const svg = drawing("svg", { viewBox: `0 0 ${CARD.width} ${CARD.height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    const line = (/** @type {string} */ d, /** @type {string} */ stroke, /** @type {string} */ kind) => svg.append(drawing("path", { d, stroke, class: kind, fill: "none", "vector-effect": "non-scaling-stroke" }));
    for (const step of new Set(alarms.filter((one) => one >= across[0] && one <= across[1]))) line(`M${((step - across[0]) / (across[1] - across[0] || 1) * CARD.width).toFixed(1)} 0V${CARD.height}`, "var(--fails)", "alarm");
    curves.forEach((curve, at) => line(smallPath(curve.x, curve.y, across, up, CARD), colours[at], "course"));
    return [
      h("b", {}, source.title(name)), h("span", { class: "now" }, inDigits(mean)), svg,
      h("span", { class: "ends" }, `${inDigits(up[0])} to ${inDigits(up[1])}`), h("span", { class: "ends" }, `step ${inDigits(across[1])}`),
      ...(alarms.length ? [h("span", { class: "v-fails verdict" }, counted(alarms.length, "alarm"))] : []),
    ];
  }
  return { element, update, close() { known.clear(); } };
}
