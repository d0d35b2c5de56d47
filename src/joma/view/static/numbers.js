// Numbers as words, and their smallest and largest. No page is touched here.

/** A number in a few digits. @param {number | null | undefined} value @returns {string} */
function inDigits(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en").replace("-", "−");
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return text.replace("e+", "e").replace(/-/g, "−");
}

/** Seconds in their largest unit. @param {number} seconds @returns {string} */
function inTime(seconds) {
  for (const [unit, size, most] of /** @type {[string, number, number][]} */ ([["s", 1, 120], ["min", 60, 120], ["h", 3600, 48]])) {
    if (seconds < most * size) return `${Math.round(Math.max(seconds, 0) / size)} ${unit}`;
  }
  return `${Math.round(seconds / 86400)} days`;
}

/** A number with its noun. @param {number} count @param {string} noun @param {string} [plural] @returns {string} */
function counted(count, noun, plural) {
  return `${count.toLocaleString("en")} ${count === 1 ? noun : plural ?? `${noun}s`}`;
}

/** Smallest and largest number; Infinity and -Infinity where there is none. @param {ArrayLike<number>} values @param {number} from @param {number} to @returns {[number, number]} */
function bounds(values, from, to) {
  let low = Infinity, high = -Infinity;
  for (let i = from; i < to; i++) { const value = values[i]; if (Number.isFinite(value)) { if (value < low) low = value; if (value > high) high = value; } }
  return [low, high];
}

/** Smallest and largest number. @param {ArrayLike<number>} values @param {number} [from] @param {number} [to] @returns {[number, number]} */
function rangeOf(values, from = 0, to = values.length) {
  const [low, high] = bounds(values, from, to);
  return low <= high ? [low, high] : [0, 1];
}

/** Places of numbers between gaps, to which no line leads. null is a gap; undefined is no point at all.
 * @param {(number | null | undefined)[]} column @returns {number[]} */
function lonely(column) {
  /** @type {number[]} */
  const found = [];
  let last = -1, length = 0;
  column.forEach((value, at) => {
    if (value === undefined) return;
    if (value !== null) { last = at; length++; return; }
    if (length === 1) found.push(last);
    length = 0;
  });
  return length === 1 ? [...found, last] : found;
}
