// Axes: where they begin and end, which places along them have a name, and how these are written.

const SAME = 1e-5; // as a share: numbers on a log axis that differ by less are one number

/** Where an axis begins and ends that shows numbers from low to high: a twentieth of their span is left free on either side,
 * and a number that is alone lies in the middle. @param {number} low @param {number} high @param {boolean} log @returns {[number, number]} */
function limitsOf(low, high, log) {
  if (log) {
    const [from, to] = [Math.log10(low), Math.log10(high)], room = to - from < SAME / Math.LN10 ? Math.log10(2) : (to - from) / 20;
    return [10 ** Math.max(from - room, -323), 10 ** Math.min(to + room, 308)];
  }
  const most = Math.max(Math.abs(low), Math.abs(high)), room = high - low > 1e-9 * most ? (high - low) / 20 : most / 10 || 1;
  return [low - room, high + room];
}

/** What is seen along x: what was asked for, else where the numbers lie. xs: those that the axis can show.
 * @param {{low?: number, high?: number, logX: boolean}} spec @param {number[]} xs @returns {[number, number]} */
function seenRange({ low, high, logX }, xs) {
  const [first, last] = xs.length ? rangeOf(xs) : [1, 2], real = (/** @type {number | undefined} */ one) => one !== undefined && (!logX || one > 0);
  const from = real(low) ? /** @type {number} */ (low) : first, to = real(high) ? /** @type {number} */ (high) : last;
  return [from, to > from ? to : from + 1];
}

/** Round places for ticks, about `count` of them, which is 5 or more. @param {number} low @param {number} high @param {number} count @param {boolean} [log] @returns {number[]} */
function ticksOf(low, high, count, log = false) {
  if (!(high > low)) return [low];
  const fine = log ? powersOf(low, high, [1, 2, 5]) : [];
  if (fine.length < 3) return evenTicks(low, high, count); // less than a decade: steps of one size say more
  if (fine.length <= count) return fine;
  const powers = powersOf(low, high, [1]), stride = Math.ceil(powers.length / count);
  return powers.filter((one) => Math.round(Math.log10(one)) % stride === 0);
}

/** Powers of ten times each factor, from low to high. @param {number} low @param {number} high @param {number[]} factors @returns {number[]} */
function powersOf(low, high, factors) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1e-9; power++) for (const factor of factors) found.push(Number(`${factor}e${power}`)); // 10 ** power is not always round
  return found.filter((one) => one >= low * (1 - 1e-9) && one <= high * (1 + 1e-9));
}

/** @param {number} low @param {number} high @param {number} count @returns {number[]} */
function evenTicks(low, high, count) {
  const rough = (high - low) / count, size = 10 ** Math.floor(Math.log10(rough));
  const stride = size * ([1, 2, 5, 10].find((one) => one * size >= rough) ?? 10);
  const found = [];
  for (let at = Math.ceil(low / stride - 1e-9); at * stride <= high + stride * 1e-9; at++) found.push(Number((at * stride).toPrecision(12)));
  return found;
}

/** Ticks in words, all with as many digits as their distance asks for: no two look the same. @param {number[]} ticks @returns {string[]} */
function inTicks(ticks) {
  const gaps = ticks.slice(1).map((tick, at) => Math.abs(tick - ticks[at])).filter((gap) => gap > 0), gap = Math.min(...gaps), most = Math.max(...ticks.map(Math.abs));
  const signed = (/** @type {string} */ text) => text.replace("e+", "e").replace(/-/g, "−");
  if (!gaps.length || Math.max(...gaps) > 1.5 * gap) return ticks.map((tick) => signed(inShort(tick)));
  if ((most >= 1e6 && !(most < 1e7 && ticks.every(Number.isInteger))) || (gap < 1e-6 && most < 1e-3)) {
    const size = (/** @type {number} */ value) => Math.floor(Math.log10(Math.abs(value)) + 1e-9);
    return ticks.map((tick) => (tick === 0 ? "0" : signed(tick.toExponential(Math.max(0, size(tick) - size(gap))))));
  }
  const digits = Math.min(Math.max(0, -Math.floor(Math.log10(gap) + 1e-9)), 20);
  return ticks.map((tick) => signed(tick.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })));
}

/** A round number in as few letters as it takes. @param {number} value @returns {string} */
function inShort(value) {
  const size = Math.abs(value);
  return Number.isInteger(value) && size < 1e7 ? value.toLocaleString("en") : size < 1e-3 || size >= 1e6 ? value.toExponential() : String(value);
}
