// The colours of joma's figures: the same in light and dark, apart for the common kinds of colour blindness.

const FEW_COLOURS = ["#026ed0", "#bb7e0f", "#099e6e", "#d22e2c", "#a26ef8", "#757575"];
const DEPTH = ["#3463e2", "#af4ac5", "#d74396", "#ed4a49", "#ab880e"]; // from the first layer to the last

/** @param {string} hex @returns {number[]} */
function channels(hex) { return [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16)); }

/** A colour between several, share from 0 to 1. @param {string[]} stops @param {number} share @returns {string} */
function between(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1), at = Math.min(Math.floor(place), stops.length - 2);
  const [from, to] = [channels(stops[at]), channels(stops[at + 1])];
  return `#${from.map((one, i) => Math.round(one + (to[i] - one) * (place - at)).toString(16).padStart(2, "0")).join("")}`;
}

/** Colours for so many curves: those of figures while they last, else along the depth. @param {number} count @returns {string[]} */
function coloursFor(count) {
  if (count <= FEW_COLOURS.length) return FEW_COLOURS.slice(0, count);
  return [...Array(count).keys()].map((at) => between(DEPTH, at / (count - 1)));
}

const SCALES = {
  light: { low: ["#f3efe2", "#8db8e3", "#026ed0", "#0a2a52"], both: ["#a01c1b", "#e89c92", "#f6f2e6", "#8db8e3", "#0b4f99"] },
  dark: { low: ["#22282f", "#1f4e8c", "#3f95e6", "#d6e9ff"], both: ["#ffb0a6", "#b23d3a", "#2b2f35", "#2a6cb8", "#b5d8ff"] },
};

/** From a number to a colour: one hue, or two around zero where numbers have both signs.
 * @param {[number, number]} range @param {boolean} dark @returns {(value: number) => string} */
function heat([low, high], dark) {
  const scale = SCALES[dark ? "dark" : "light"], both = low < 0 && high > 0, most = Math.max(-low, high);
  /** @type {string[]} */
  const table = []; // as many as eyes tell apart, and more
  return (value) => {
    if (!Number.isFinite(value)) return "transparent";
    const share = both ? 0.5 + value / most / 2 : high > low ? (value - low) / (high - low) : 0.5, at = Math.round(Math.min(Math.max(share, 0), 1) * 255);
    return (table[at] ??= between(both ? scale.both : scale.low, at / 255));
  };
}
