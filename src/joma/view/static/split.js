// Screen "Split": parts that add up, drawn as areas, beside the whole that was measured.

const PARTS_OF_SPREAD = ["shared", "specific", "cross"];
const NO_PARTS = ["change", "closing error", "error", "since"]; // columns of an allocation that are no groups of parameters

/** A way to split something. @typedef {{key: string, title: string, whole: string | null, parts: {series: string, label: string, place: number | null}[], dim: string | null}} Family */

/** What of a run adds up: the parts of spread, the groups of an allocation, or any series along one of its dimensions.
 * @param {RunEntry} run @returns {Family[]} */
function familiesOf(run) {
  const names = new Set((run.series ?? []).map((one) => one.name));
  /** @type {Family[]} */
  const found = [];
  for (const one of run.series ?? []) {
    const prefix = one.name.endsWith("/shared") ? one.name.slice(0, -"/shared".length) : null;
    if (prefix !== null && PARTS_OF_SPREAD.every((part) => names.has(`${prefix}/${part}`))) {
      found.push({ key: prefix, title: `${prefix}: shared, specific, cross`, whole: names.has(`${prefix}/variance`) ? `${prefix}/variance` : null, parts: PARTS_OF_SPREAD.map((part) => ({ series: `${prefix}/${part}`, label: part, place: null })), dim: null });
    }
  }
  for (const one of run.series ?? []) {
    const quantity = one.dims.find((dim) => dim.name === "quantity");
    if (!one.name.startsWith("allocation") || !quantity?.labels) continue;
    const parts = quantity.labels.map((label, place) => ({ series: one.name, label, place })).filter((part) => !NO_PARTS.includes(part.label));
    found.push({ key: one.name, title: `${one.name}: by parameters`, whole: null, parts, dim: "quantity" });
  }
  for (const one of run.series ?? []) {
    if (one.steps < 2) continue;
    for (const dim of one.dims) {
      if (dim.size < 2 || dim.size > 24 || dim.name === "quantity") continue;
      found.push({ key: `${one.name}|${dim.name}`, title: `${one.name}, along ${dim.name.replace(/^dim_/, "axis ")}`, whole: null, parts: [...Array(dim.size).keys()].map((place) => ({ series: one.name, label: placeName(dim, place), place })), dim: dim.name });
    }
  }
  return found;
}

/** Areas above and below zero: each part lies on those of its sign before it. Behind an unknown one nobody knows where. @param {{label: string, x: number[], y: number[]}[]} parts @returns {Curve[]} */
function stacked(parts) {
  const count = parts[0]?.x.length ?? 0, up = Array(count).fill(0), down = Array(count).fill(0);
  const known = Array(count).fill(true);
  return parts.map((part) => {
    const low = [], high = [];
    for (let at = 0; at < count; at++) {
      const value = part.y[at], base = value >= 0 ? up : down, from = base[at];
      known[at] &&= Number.isFinite(value);
      base[at] += value;
      low.push(known[at] ? Math.min(from, base[at]) : NaN);
      high.push(known[at] ? Math.max(from, base[at]) : NaN);
    }
    return { label: part.label, x: part.x, y: part.y, low, high };
  });
}

/** Parts at the steps that any of them has; NaN where one has none. @param {Curve[]} parts @returns {Curve[]} */
function alongside(parts) {
  const x = [...new Set(parts.flatMap((part) => part.x))].sort((a, b) => a - b);
  return parts.map((part) => { const at = new Map(part.x.map((one, i) => [one, part.y[i]])); return { ...part, x, y: x.map((one) => at.get(one) ?? NaN) }; });
}

/** The sum of parts that stand alongside; unknown where one of them is. @param {Curve[]} parts @returns {number[]} */
function sumOf(parts) {
  return (parts[0]?.x ?? []).map((_, at) => parts.reduce((all, part) => all + part.y[at], 0));
}

/** The share of the numbers behind each point of a curve that is known. @param {Recorded} array @param {Modes} modes @returns {Curve} */
function knownShare(array, modes) {
  return curvesOf({ ...array, values: Array.from(array.values, (value) => Number(Number.isFinite(value))) }, modes)[0];
}

/** A curve with NaN where it is the mean of fewer numbers than at other steps: a sum with it would be of other things.
 * @param {Curve} curve @param {Curve} share @returns {Curve} */
function whereAllKnown(curve, share) {
  const most = rangeOf(share.y)[1];
  return { ...curve, y: curve.y.map((value, at) => (share.y[at] < most ? NaN : value)) };
}

/** @param {View} view */
function splitScreen(view) {
  const { seen, source } = view;
  const put = (/** @type {Object<string, any>} */ given) => { seen.put(given); update(); };
  const run = picker("Run", (id) => put({ run: [id], split: null })), family = picker("Split", (key) => put({ split: key, low: null, high: null }));
  const layers = picker("Layer", (place) => put({ layer: place === "mean" ? null : place }));
  const chart = new Chart(view.root, (low, high) => put({ low, high }));
  const whole = button("Whole range", () => put({ low: null, high: null }));
  const notice = h("p", { class: "notice", hidden: true }), legend = h("ul", { class: "legend" }), note = h("p", { class: "note" });
  const element = h("div", {}, h("div", { class: "controls" }, run.element, family.element, layers.element, whole, savers(chart, () => `joma-split-${seen.get("split")}`)), notice, chart.element, legend, note);
  let asked = 0, drawn = "";

  async function update() {
    const turn = ++asked, runs = source.runs.filter((one) => !one.fault && familiesOf(one).length);
    const wanted = view.chosenRuns(), named = (/** @type {RunEntry} */ one) => familiesOf(one).some((each) => !each.key.includes("|"));
    const id = (runs.find((one) => wanted.includes(one.id) && (seen.all("run").length || named(one))) ?? runs.find(named) ?? runs[0])?.id ?? "";
    run.set(runs.map((one) => [one.id, one.id]), id);
    const entry = source.run(id), families = entry ? familiesOf(entry) : [], chosen = families.find((one) => one.key === seen.get("split")) ?? families[0];
    family.set(families.map((one) => [one.key, one.title]), chosen?.key ?? "");
    whole.hidden = seen.get("low") === "" && seen.get("high") === "";
    if (!entry || !chosen) { say("No run here has parts that add up. `joma scan --measures spread` and `allocation` make some, and so does a monitor with spread."); return; }
    const listed = /** @type {SeriesEntry} */ (entry.series?.find((one) => one.name === chosen.parts[0].series));
    const layer = listed.dims.find((dim) => dim.name === "layer" && dim.name !== chosen.dim);
    layers.set(layer ? [["mean", "mean of all"], ...[...Array(layer.size).keys()].map((at) => /** @type {[string, string]} */ ([String(at), placeName(layer, at)]))] : [], seen.get("layer", "mean"));
    try {
      const wantedSeries = [...new Set([...chosen.parts.map((part) => part.series), ...(chosen.whole ? [chosen.whole] : [])])];
      const held = new Map(await Promise.all(wantedSeries.map(async (name) => /** @type {[string, Held]} */ ([name, await wholeSteps(id, name)]))));
      if (turn !== asked) return;
      say("");
      const sign = JSON.stringify([String(seen.words), id, entry.identity, entry.state, chosen.key, [...held.values()].map((array) => [array.steps.length, array.steps[array.steps.length - 1], array.order]), view.dark, source.title(chosen.parts[0].series)]);
      if (sign === drawn) return; // the index changed, but nothing of what is seen
      drawn = sign;
      draw(chosen, held, layer ? seen.get("layer", "mean") : "mean");
    } catch (error) { if (turn === asked) say(/** @type {Error} */ (error).message); }
  }

  /** Parts add up at one step, so whole steps are wanted. @param {string} run @param {string} name */
  async function wholeSteps(run, name) {
    const thinned = source.long(run, name) || (await source.series(run, name)).thinned;
    return source.series(run, name, thinned ? { whole: true } : {});
  }

  /** @param {Family} chosen @param {Map<string, Held>} held @param {string} layer */
  function draw(chosen, held, layer) {
    const one = (/** @type {string} */ name, /** @type {number | null} */ place) => {
      const array = /** @type {Held} */ (held.get(name)), modes = Object.fromEntries(array.dims.map((dim) => [dim.name, dim.name === "layer" ? layer : "mean"]));
      if (chosen.dim && place !== null) modes[chosen.dim] = String(place);
      const [curve] = curvesOf(array, modes);
      return array.lost ? whereAllKnown(curve, knownShare(array, modes)) : curve;
    };
    const parts = alongside(chosen.parts.map((part) => ({ ...one(part.series, part.place), label: part.label }))), colours = coloursFor(parts.length);
    const areas = stacked(parts).map((area, at) => ({ ...area, colour: colours[at] }));
    const sum = sumOf(parts);
    /** @type {Spec["curves"]} */
    const lines = [{ label: "sum of the parts", x: parts[0].x, y: sum, colour: "ink" }];
    if (chosen.whole) lines.push({ ...one(chosen.whole, null), label: "measured whole", colour: "#d22e2c", dashes: [6, 4] });
    const [low, high] = [seen.get("low"), seen.get("high")].map((words) => (words === "" ? undefined : Number(words)));
    // What is drawn of an area are its edges, low and high; what is read off and saved is the part itself.
    chart.draw({ curves: [...areas, ...lines], x: "step", y: source.title(chosen.parts[0].series.replace(/\/shared$/, "")), logX: false, logY: false, areas: true, low, high });
    legend.replaceChildren(...[...areas, ...lines].map((curve) => h("li", {}, h("span", { class: "key" }, h("i", { style: { background: curve.colour === "ink" ? "currentColor" : curve.colour } }), h("span", {}, curve.label), h("b", {}, inDigits([...curve.y].reverse().find((value) => Number.isFinite(value))))))));
    const first = /** @type {Held} */ (held.get(chosen.parts[0].series)), gaps = gapsIn(lines[0], low, high);
    const thinned = first.thinned ? `Thinned to ${first.steps.length.toLocaleString("en")} of ${first.of.toLocaleString("en")} whole steps, evenly spread.` : "";
    note.textContent = ["Parts above zero lie on one another, and so do those below. The number beside each name is its last that is known.", gaps, thinned].filter(Boolean).join(" ");
  }

  /** Where a sum that is seen has gaps, in words. @param {Curve} sum @param {number | undefined} low @param {number | undefined} high @returns {string} */
  function gapsIn(sum, low = -Infinity, high = Infinity) {
    const seen = sum.y.filter((_, at) => sum.x[at] >= low && sum.x[at] <= high), unknown = seen.filter(Number.isNaN).length;
    return unknown ? `At ${unknown.toLocaleString("en")} of ${counted(seen.length, "step")} a part is unknown. The sum and the parts drawn after it are gaps there.` : "";
  }

  /** @param {string} words */
  function say(words) {
    notice.textContent = words; notice.hidden = !words; chart.element.hidden = Boolean(words); note.hidden = Boolean(words);
    if (words) { drawn = ""; legend.replaceChildren(); }
  }
  return { element, update, close() { chart.close(); } };
}
