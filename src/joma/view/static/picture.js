// What is seen as a file: SVG, PNG made of it, and CSV. The axes are drawn here: uPlot draws on a canvas.

/**
 * What a chart draws.
 * @typedef {{curves: (Curve & {colour: string, dashes?: number[], hidden?: boolean})[], x: string, y: string, logX: boolean, logY: boolean, areas?: boolean, low?: number, high?: number, marks?: Marks[], live?: boolean, same?: string, span?: number[]}} Spec
 * live: more will come, so there is room for it. same: stays while nothing but new points behind the others comes.
 * span: the first and last x of charts above each other, which share one axis.
 */
/** Lines from the bottom to the top. tone: a colour of the page. @typedef {{tone: string, says: string, at: number[]}} Marks */

const PLOT = { width: 760, height: 420, left: 74, right: 18, top: 14, bottom: 52 }, COLUMNS = 2, MOST_KEYS = 24;

/** @param {string} text @returns {string} */
function escaped(text) { return text.replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`); }

/** @param {Spec} spec @param {Object<string, string>} colours of the page, by name @returns {string} */
function toSvg(spec, colours) {
  const shown = spec.curves.filter((curve) => !curve.hidden), inside = (/** @type {number} */ x) => x >= (spec.low ?? -Infinity) && x <= (spec.high ?? Infinity);
  const fits = (/** @type {number} */ x, /** @type {number} */ y) => inside(x) && Number.isFinite(y) && (!spec.logX || x > 0) && (!spec.logY || y > 0);
  const xs = [...(spec.span ?? []), ...spec.curves.flatMap((curve) => curve.x)].filter((x) => inside(x) && (!spec.logX || x > 0));
  const ys = shown.flatMap((curve) => [curve.y, curve.low ?? [], curve.high ?? []].flatMap((some) => some.filter((y, at) => fits(curve.x[at], y))));
  const [x0, x1] = seenRange(spec, xs), [y0, y1] = limitsOf(...rangeOf(ys.length ? ys : spec.logY ? [1, 10] : [0, 1]), spec.logY);
  const place = (/** @type {number} */ low, /** @type {number} */ high, /** @type {boolean} */ log, /** @type {number} */ from, /** @type {number} */ to) => {
    const line = log ? Math.log10 : (/** @type {number} */ v) => v, span = line(high) - line(low) || 1;
    return (/** @type {number} */ v) => from + (line(v) - line(low)) / span * (to - from);
  };
  const marks = (spec.marks ?? []).map((some) => ({ ...some, at: some.at.filter((x) => x >= x0 && x <= x1) })).filter((some) => some.at.length);
  const keys = keysOf(shown, marks, colours), tall = PLOT.height + (keys.length ? 16 + 18 * Math.ceil(keys.length / COLUMNS) : 0);
  const px = place(x0, x1, spec.logX, PLOT.left, PLOT.width - PLOT.right), py = place(y0, y1, spec.logY, PLOT.height - PLOT.bottom, PLOT.top);
  const path = (/** @type {number[]} */ x, /** @type {number[]} */ y) => {
    let text = "", pen = "M";
    x.forEach((one, at) => { if (fits(one, y[at])) { text += `${pen}${px(one).toFixed(1)} ${py(y[at]).toFixed(1)}`; pen = "L"; } else if (inside(one)) pen = "M"; });
    return text;
  };
  const parts = [];
  const yTicks = ticksOf(y0, y1, 6, spec.logY), xTicks = ticksOf(x0, x1, 7, spec.logX), yWords = inTicks(yTicks), xWords = inTicks(xTicks);
  for (const [at, y] of yTicks.entries()) {
    parts.push(`<path d="M${PLOT.left} ${py(y).toFixed(1)}H${PLOT.width - PLOT.right}" stroke="${colours.rule}"/>`, `<text x="${PLOT.left - 8}" y="${(py(y) + 4).toFixed(1)}" text-anchor="end">${escaped(yWords[at])}</text>`);
  }
  for (const [at, x] of xTicks.entries()) parts.push(`<text x="${px(x).toFixed(1)}" y="${PLOT.height - PLOT.bottom + 18}" text-anchor="middle">${escaped(xWords[at])}</text>`);
  for (const { tone, at } of marks) parts.push(`<path d="${[...new Set(at)].map((x) => `M${px(x).toFixed(1)} ${PLOT.top}V${PLOT.height - PLOT.bottom}`).join("")}" stroke="${colours[tone]}"/>`);
  for (const curve of shown) {
    if (curve.low && curve.high) {
      const { x, low, high } = curve, stretches = /** @type {number[][]} */ ([[]]); // a band ends where a gap begins
      x.forEach((one, at) => { if (fits(one, low[at]) && fits(one, high[at])) stretches[stretches.length - 1].push(at); else if (inside(one)) stretches.push([]); });
      for (const some of stretches.filter((one) => one.length)) {
        const edge = [...some.map((at) => [x[at], high[at]]), ...[...some].reverse().map((at) => [x[at], low[at]])];
        parts.push(`<path d="M${edge.map(([one, y]) => `${px(one).toFixed(1)} ${py(y).toFixed(1)}`).join("L")}Z" fill="${curve.colour}" fill-opacity="${spec.areas ? 0.75 : 0.15}"/>`);
      }
    }
    const stroke = curve.colour === "ink" ? colours.ink : curve.colour, seen = curve.x.map((x, at) => (inside(x) ? (fits(x, curve.y[at]) ? curve.y[at] : null) : undefined));
    if (!spec.areas || !curve.low) for (const at of lonely(seen)) parts.push(`<circle cx="${px(curve.x[at]).toFixed(1)}" cy="${py(curve.y[at]).toFixed(1)}" r="2.5" fill="${stroke}"/>`);
    if (!spec.areas || !curve.low) parts.push(`<path d="${path(curve.x, curve.y)}" fill="none" stroke="${stroke}" stroke-width="1.6" stroke-linejoin="round"${curve.dashes ? ` stroke-dasharray="${curve.dashes.join(" ")}"` : ""}/>`);
  }
  keys.forEach(([line, words], at) => {
    const x = PLOT.left + (at % COLUMNS) * (PLOT.width - PLOT.left) / COLUMNS, y = PLOT.height + 12 + 18 * Math.floor(at / COLUMNS);
    parts.push(`<path d="M${x} ${y - 4}${line}/>`, `<text x="${x + 28}" y="${y}">${escaped(words)}</text>`);
  });
  parts.push(`<path d="M${PLOT.left} ${PLOT.height - PLOT.bottom}H${PLOT.width - PLOT.right}" stroke="${colours.muted}"/>`,
    `<text x="${(PLOT.left + PLOT.width - PLOT.right) / 2}" y="${PLOT.height - 12}" text-anchor="middle">${escaped(spec.x)}</text>`,
    `<text transform="translate(16 ${(PLOT.height - PLOT.bottom) / 2}) rotate(-90)" text-anchor="middle">${escaped(spec.y)}</text>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${PLOT.width}" height="${tall}" viewBox="0 0 ${PLOT.width} ${tall}" font-family="sans-serif" font-size="12" fill="${colours.ink}"><rect width="100%" height="100%" fill="${colours.paper}"/>${parts.join("")}</svg>`;
}

/** Names of curves and marks, each behind the path that shows it. A curve that is alone has none, as on the page.
 * @param {Spec["curves"]} shown @param {Marks[]} marks @param {Object<string, string>} colours @returns {[string, string][]} */
function keysOf(shown, marks, colours) {
  const few = shown.length > 1 ? shown.slice(0, MOST_KEYS) : [], more = shown.length - MOST_KEYS;
  const short = (/** @type {string} */ words) => (words.length > 48 ? `${words.slice(0, 47)}…` : words);
  return [
    ...few.map((curve) => /** @type {[string, string]} */ ([`h22" stroke="${curve.colour === "ink" ? colours.ink : curve.colour}" stroke-width="3"`, short(curve.label)])),
    ...(more > 0 ? [/** @type {[string, string]} */ (['"', `and ${more} more`])] : []),
    ...marks.map(({ tone, says }) => /** @type {[string, string]} */ ([`m11 -6v13" stroke="${colours[tone]}"`, says])),
  ];
}

/** @param {string} svg @returns {Promise<Blob>} */
async function toPng(svg) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await picture.decode();
  const canvas = h("canvas", { width: picture.width * 2, height: picture.height * 2 });
  const context = canvas.getContext("2d");
  context.scale(2, 2);
  context.drawImage(picture, 0, 0);
  return new Promise((resolve, reject) => canvas.toBlob((/** @type {Blob | null} */ blob) => (blob ? resolve(blob) : reject(new Error("no picture came out"))), "image/png"));
}

/** One row per x that is seen. Names that a spreadsheet would take for a formula get an apostrophe. @param {Spec} spec @returns {string} */
function toCsv(spec) {
  const cell = (/** @type {string} */ text) => { const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text; return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe; };
  const shown = spec.curves.filter((curve) => !curve.hidden);
  const columns = shown.flatMap((curve) => [{ name: curve.label || spec.y, of: curve, values: curve.y }, ...(curve.low && curve.high && !spec.areas ? [{ name: `${curve.label} low`, of: curve, values: curve.low }, { name: `${curve.label} high`, of: curve, values: curve.high }] : [])]);
  const inside = (/** @type {number} */ x) => x >= (spec.low ?? -Infinity) && x <= (spec.high ?? Infinity);
  const xs = [...new Set(shown.flatMap((curve) => curve.x.filter(inside)))].sort((a, b) => a - b);
  const tables = columns.map((column) => new Map(column.of.x.map((x, at) => [x, column.values[at]])));
  const rows = xs.map((x) => [String(x), ...tables.map((table) => { const value = table.get(x); return value === undefined || Number.isNaN(value) ? "" : String(Number(value.toPrecision(8))); })].join(","));
  return `${[cell(spec.x), ...columns.map((column) => cell(column.name))].join(",")}\n${rows.join("\n")}\n`;
}
