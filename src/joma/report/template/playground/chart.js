"use strict";
// One chart as SVG: axes with labels, curves, bars across. It is drawn for the width it has, so letters keep their size.

/**
 * @typedef {{label: string, range: [number, number], log?: boolean, whole?: boolean}} Axis
 * @typedef {{label: string, colour: string, dashed?: boolean, dots?: boolean, points: [number, number][]}} Curve
 * @typedef {{x: Axis, y: Axis, curves: Curve[], at?: {x: number, label: string}, dots?: {x: number, y: number, colour: string}[], alt: string}} Plot
 */

const jomaChart = (() => {
  const LETTER = 12, LEFT = 50, RIGHT = 14, TOP = 12, BOTTOM = 44;

  /** @param {string} tag @param {Object<string, string | number>} given @param {...(Node | string)} children @returns {SVGElement} */
  function svg(tag, given, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(given)) element.setAttribute(name, String(typeof value === "number" ? Math.round(value * 100) / 100 : value));
    element.append(...children);
    return element;
  }

  /** Round numbers inside a range, about so many. @param {Axis} axis @param {number} many @returns {number[]} */
  function ticks({ range: [low, high], log, whole }, many) {
    if (log) {
      const powers = Array.from({ length: 40 }, (_, at) => 10 ** (at - 20));
      return powers.filter((one) => one >= low * 0.999 && one <= high * 1.001);
    }
    const rough = (high - low) / many, power = 10 ** Math.floor(Math.log10(rough));
    let step = power * ([1, 2, 5].find((one) => one * power >= rough) ?? 10);
    if (whole) step = Math.max(Math.round(step), 1);
    const first = Math.ceil(low / step - 1e-9);
    return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
  }

  /** From a number to a place. @param {Axis} axis @param {number} from @param {number} to @returns {(value: number) => number} */
  function placed({ range: [low, high], log }, from, to) {
    const scale = log ? Math.log : (/** @type {number} */ value) => value;
    return (value) => from + (to - from) * (scale(value) - scale(low)) / (scale(high) - scale(low));
  }

  const written = (/** @type {number} */ value) => String(value).replace("-", "−");

  /** @param {Plot} plot @param {number} width @param {number} height @returns {SVGElement} */
  function draw(plot, width, height) {
    const right = width - RIGHT, bottom = height - BOTTOM;
    const x = placed(plot.x, LEFT, right), y = placed(plot.y, bottom, TOP);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": plot.alt });
    for (const tick of ticks(plot.y, height / 45)) {
      picture.append(svg("line", { class: "grid", x1: LEFT, x2: right, y1: y(tick), y2: y(tick) }));
      picture.append(svg("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, written(tick)));
    }
    for (const tick of ticks(plot.x, width / 75)) {
      picture.append(svg("line", { class: "axis", x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4 }));
      picture.append(svg("text", { x: x(tick), y: bottom + 17, "text-anchor": "middle" }, written(tick)));
    }
    picture.append(svg("line", { class: "axis", x1: LEFT, x2: right, y1: bottom, y2: bottom }));
    picture.append(svg("text", { x: (LEFT + right) / 2, y: height - 8, "text-anchor": "middle" }, plot.x.label));
    picture.append(svg("text", { transform: `translate(${LETTER} ${(TOP + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, plot.y.label));
    // What leaves the range is cut off: an inner svg shows nothing outside itself.
    const inside = svg("svg", { x: LEFT, y: TOP, width: right - LEFT, height: bottom - TOP, viewBox: `${LEFT} ${TOP} ${right - LEFT} ${bottom - TOP}` });
    picture.append(inside);
    if (plot.at && plot.at.x < plot.x.range[1]) {
      const across = x(plot.at.x), late = across > (LEFT + right) / 2;
      inside.append(svg("line", { class: "at", x1: across, x2: across, y1: TOP, y2: bottom }));
      inside.append(svg("text", { x: across + (late ? -6 : 6), y: TOP + LETTER + 2, "text-anchor": late ? "end" : "start" }, plot.at.label));
    }
    for (const { points, colour, dashed, dots } of plot.curves) {
      const way = points.filter((one) => one.every(Number.isFinite)).map((one) => `${x(one[0]).toFixed(1)} ${y(one[1]).toFixed(1)}`);
      inside.append(svg("path", { class: "curve", d: way.length ? `M${way.join("L")}` : "", stroke: colour, "stroke-dasharray": dashed ? "6 4" : "none" }));
      if (dots) for (const one of points) picture.append(svg("circle", { cx: x(one[0]), cy: y(one[1]), r: 3, fill: colour }));
    }
    for (const dot of plot.dots ?? []) picture.append(svg("circle", { class: "dot", cx: x(dot.x), cy: y(dot.y), r: 5, fill: dot.colour }));
    return picture;
  }

  return { draw, ticks };
})();
