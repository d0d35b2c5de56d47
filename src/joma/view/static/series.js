// Recorded arrays and what is made of them: curves, means and intervals, smoothing, rows that come. No page is touched here.

/**
 * A dimension of a series: labels are null where places are counted from 0.
 * @typedef {{name: string, size: number, labels: string[] | null}} Dim
 */
/**
 * A recorded array: values lie in C order, (steps, ...dims).
 * order counts how often rows had to be put between others.
 * @typedef {{steps: number[], values: number[] | Float32Array | Float64Array, dims: Dim[], order?: number}} Recorded
 */
/**
 * A curve: NaN where there is no number; low and high bound a band around it.
 * @typedef {{label: string, x: number[], y: number[], low?: number[], high?: number[], places?: Object<string, number>}} Curve
 */

const FEW = 4; // so many or fewer repetitions get an interval of 99 %, as everywhere in joma

/** What a place along a dimension is called. @param {Dim} dim @param {number} at @returns {string} */
function placeName(dim, at) {
  return dim.labels ? dim.labels[at] : /^dim_/.test(dim.name) ? `${dim.name.replace(/^dim_/, "axis ")} = ${at}` : `${dim.name} ${at}`;
}

/** The t below which |T| stays with this probability, by bisection on the finite sums of Abramowitz & Stegun 26.7.3-4.
 * @param {number} level @param {number} freedom @returns {number} */
function tQuantile(level, freedom) {
  const n = Math.min(freedom, 2000);
  const within = (/** @type {number} */ angle) => {
    const cos = Math.cos(angle), odd = n % 2 === 1;
    let term = odd ? cos : 1, sum = n === 1 ? 0 : term;
    for (let k = odd ? 3 : 2; k <= n - 2; k += 2) { term *= cos * cos * (k - 1) / k; sum += term; }
    return odd ? (2 / Math.PI) * (angle + Math.sin(angle) * sum) : Math.sin(angle) * sum;
  };
  let low = 0, high = Math.PI / 2;
  for (let i = 0; i < 60; i++) { const middle = (low + high) / 2; if (within(middle) < level) low = middle; else high = middle; }
  return Math.sqrt(n) * Math.tan((low + high) / 2);
}

const _quantiles = /** @type {Map<number, number>} */ (new Map());

/** Mean of the numbers among `values`, and half the width of its t interval (95 %; 99 % of four or fewer).
 * @param {number[]} values @returns {{mean: number, half: number, count: number}} */
function meanInterval(values) {
  let sum = 0, count = 0;
  for (const value of values) if (Number.isFinite(value)) { sum += value; count++; }
  if (!count) return { mean: NaN, half: NaN, count };
  const mean = sum / count;
  if (count < 2) return { mean, half: NaN, count };
  let squares = 0;
  for (const value of values) if (Number.isFinite(value)) squares += (value - mean) ** 2;
  if (!_quantiles.has(count)) _quantiles.set(count, tQuantile(count <= FEW ? 0.99 : 0.95, count - 1));
  return { mean, half: /** @type {number} */ (_quantiles.get(count)) * Math.sqrt(squares / (count - 1) / count), count };
}

/** An exponential mean that forgets where it began; gaps stay gaps. @param {number[]} values @param {number} weight @returns {number[]} */
function smoothed(values, weight) {
  if (!weight) return values;
  let mean = 0, share = 1;
  return values.map((value) => {
    if (!Number.isFinite(value)) return NaN;
    mean = weight * mean + (1 - weight) * value;
    share *= weight;
    return mean / (1 - share);
  });
}

/** What to do with each dimension: "each", "mean", "interval", or a place as digits.
 * @typedef {Object<string, string>} Modes */

/** The axes of an array: its steps, then its dimensions. @param {Recorded} array @returns {Dim[]} */
function axesOf(array) {
  return [{ name: "step", size: array.steps.length, labels: array.steps.map((step) => `step ${step.toLocaleString("en")}`) }, ...array.dims];
}

/** What is shown unless somebody asks otherwise: layers apart, heads as their mean, seeds as mean with interval.
 * @param {Dim[]} dims @param {string} x @returns {Modes} */
function usualModes(dims, x) {
  /** @type {Modes} */
  const modes = {};
  let drawn = 1;
  for (const dim of dims) {
    if (dim.name === x) continue;
    const seeds = ["member", "seed", "network"].includes(dim.name);
    const apart = !seeds && dim.name !== "head" && drawn * dim.size <= 64;
    modes[dim.name] = dim.size === 1 ? "0" : seeds ? "interval" : apart ? "each" : "mean";
    if (modes[dim.name] === "each") drawn *= dim.size;
  }
  return modes;
}

const MOST_CURVES = 1024;

/** The curves of an array. x: "step" or the name of a dimension; then steps are places like others, the last one unless asked.
 * @param {Recorded} array @param {Modes} modes @param {string} [x] @returns {Curve[]} */
function curvesOf(array, modes, x = "step") {
  const axes = axesOf(array), along = Math.max(axes.findIndex((axis) => axis.name === x), 0);
  const strides = axes.map((_, at) => axes.slice(at + 1).reduce((size, axis) => size * axis.size, 1));
  const modeOf = (/** @type {number} */ at) => modes[axes[at].name] ?? (at === 0 ? String(axes[0].size - 1) : "mean");
  /** @type {{offset: number, names: string[], places: Object<string, number>}[]} */
  let starts = [{ offset: 0, names: [], places: {} }];
  /** @type {number[]} */
  let inner = [0], outer = [0]; // offsets that a mean goes over, and those that an interval goes over
  axes.forEach((axis, at) => {
    if (at === along) return;
    const mode = modeOf(at), every = [...Array(axis.size).keys()].map((place) => place * strides[at]);
    if (mode === "mean") inner = inner.flatMap((offset) => every.map((more) => offset + more));
    else if (mode === "interval") outer = outer.flatMap((offset) => every.map((more) => offset + more));
    else if (mode === "each") {
      starts = starts.flatMap((start) => every.map((more, place) => ({ offset: start.offset + more, names: [...start.names, placeName(axis, place)], places: { ...start.places, [axis.name]: place } }))).slice(0, MOST_CURVES);
    } else {
      const place = Math.min(Math.max(Number.parseInt(mode, 10) || 0, 0), axis.size - 1);
      starts = starts.map((start) => ({ offset: start.offset + place * strides[at], names: axis.size > 1 ? [...start.names, placeName(axis, place)] : start.names, places: { ...start.places, [axis.name]: place } }));
    }
  });
  const x0 = along === 0 ? array.steps : [...Array(axes[along].size).keys()];
  const stride = strides[along], count = x0.length, values = array.values;
  return starts.map(({ offset, names, places }) => {
    /** @type {Curve} */
    const curve = { label: names.join(", "), x: x0, y: Array(count), places };
    if (outer.length === 1) {
      for (let at = 0; at < count; at++) curve.y[at] = inner.length === 1 ? values[offset + at * stride] : meanAt(values, offset + at * stride, inner);
      return curve;
    }
    curve.low = Array(count); curve.high = Array(count);
    for (let at = 0; at < count; at++) {
      const { mean, half } = meanInterval(outer.map((from) => meanAt(values, offset + at * stride + from, inner)));
      curve.y[at] = mean; curve.low[at] = mean - half; curve.high[at] = mean + half;
    }
    return curve;
  });
}

/** The mean of the numbers that lie at offsets from a place. @param {ArrayLike<number>} values @param {number} from @param {number[]} offsets @returns {number} */
function meanAt(values, from, offsets) {
  let sum = 0, count = 0;
  for (let i = 0; i < offsets.length; i++) { const value = values[from + offsets[i]]; if (Number.isFinite(value)) { sum += value; count++; } }
  return count ? sum / count : NaN;
}

const _made = /** @type {WeakMap<Recorded, {key: string, count: number, curves: Curve[]}>} */ (new WeakMap());

/** As `curvesOf` over steps, but what was made of earlier steps is kept: a new step costs what one step costs.
 * @param {Recorded} array @param {Modes} modes @returns {Curve[]} */
function growingCurves(array, modes) {
  const key = JSON.stringify([modes, array.order ?? 0]), known = _made.get(array);
  if (!known || known.key !== key || known.count > array.steps.length) {
    const curves = curvesOf(array, modes);
    _made.set(array, { key, count: array.steps.length, curves });
    return curves;
  }
  if (known.count < array.steps.length) {
    const width = array.dims.reduce((size, dim) => size * dim.size, 1);
    const tail = curvesOf({ steps: array.steps.slice(known.count), values: array.values.slice(known.count * width), dims: array.dims }, modes);
    known.curves = known.curves.map((curve, at) => ({ ...curve, x: array.steps, y: curve.y.concat(tail[at].y), low: curve.low?.concat(tail[at].low ?? []), high: curve.high?.concat(tail[at].high ?? []) }));
    known.count = array.steps.length;
  }
  return known.curves;
}

/** Curves of the same label in several runs as their mean, with its interval at steps that at least two have. Runs may
 * have other layers and heads than the first: labels tell what belongs together, places do not.
 * @param {Curve[][]} runs @returns {Curve[]} */
function overRuns(runs) {
  const named = runs.map((curves) => new Map(curves.map((curve) => [curve.label, curve])));
  return [...new Set(named.flatMap((some) => [...some.keys()]))].map((label) => {
    const tables = named.flatMap((some) => some.get(label) ?? []).map((curve) => new Map(curve.x.map((x, i) => [x, curve.y[i]])));
    const x = [...new Set(tables.flatMap((table) => [...table.keys()]))].sort((a, b) => a - b);
    const found = x.map((one) => meanInterval(tables.map((table) => table.get(one) ?? NaN)));
    return { label, x, y: found.map((one) => one.mean), low: found.map((one) => one.mean - one.half), high: found.map((one) => one.mean + one.half) };
  });
}

/** New rows of a recorded array in their place: steps come in any order, each once. @param {Recorded} array @param {Recorded} more @returns {number} how many were new */
function withRows(array, more) {
  const width = array.dims.reduce((size, dim) => size * dim.size, 1);
  let last = array.steps[array.steps.length - 1] ?? -Infinity;
  if (more.steps.every((step) => { const later = step > last; last = step; return later; })) { // as training writes them
    array.values = withRoom(array.values, more.values);
    array.steps = array.steps.concat(more.steps);
    return more.steps.length;
  }
  const known = new Set(array.steps);
  const fresh = more.steps.map((step, at) => ({ step, row: Array.from(more.values.slice(at * width, (at + 1) * width)) })).filter((one) => !known.has(one.step));
  if (!fresh.length) return 0;
  const rows = array.steps.map((step, at) => ({ step, row: Array.from(array.values.slice(at * width, (at + 1) * width)) })).concat(fresh);
  rows.sort((a, b) => a.step - b.step);
  array.order = (array.order ?? 0) + 1;
  array.steps = rows.map((one) => one.step);
  array.values = Float64Array.from(rows.flatMap((one) => one.row));
  return fresh.length;
}

/** Numbers with more behind them, in memory that has room for half as many again: a row costs what a row costs, however
 * many there are. @param {ArrayLike<number>} values @param {ArrayLike<number>} more @returns {Float32Array | Float64Array} */
function withRoom(values, more) {
  const Kind = values instanceof Float32Array && more instanceof Float32Array ? Float32Array : Float64Array, count = values.length + more.length;
  let room = values instanceof Kind ? values.buffer : new ArrayBuffer(0);
  if (room.byteLength < count * Kind.BYTES_PER_ELEMENT) {
    room = new ArrayBuffer(Math.ceil(count * 1.5) * Kind.BYTES_PER_ELEMENT);
    new Kind(room).set(values);
  }
  const found = new Kind(room, 0, count);
  found.set(more, values.length);
  return found;
}

const _ranges = /** @type {WeakMap<Recorded, {order: number, count: number, range: [number, number]}>} */ (new WeakMap());

/** Smallest and largest number of an array that grows: what was looked at is not looked at again.
 * @param {Recorded} array @returns {[number, number]} */
function rangeSoFar(array) {
  const order = array.order ?? 0, known = _ranges.get(array), count = array.values.length, old = known && known.order === order && known.count <= count ? known : null;
  const [low, high] = bounds(array.values, old?.count ?? 0, count), range = /** @type {[number, number]} */ ([Math.min(low, old?.range[0] ?? Infinity), Math.max(high, old?.range[1] ?? -Infinity)]);
  _ranges.set(array, { order, count, range });
  return range[0] <= range[1] ? range : [0, 1];
}
