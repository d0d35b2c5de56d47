"use strict";
// The panels of the playground: what can be moved, what is drawn and said, and the Python that gives the same numbers.
// A panel is a function of its sliders. `jomaPlayground.start(box)` brings to life every empty [data-panel] inside a box.

/**
 * @typedef {{name: string, label: string, min: number, max: number, step: number, value: number, read?: (place: number) => number}} Slider
 * @typedef {{name: string, left: number | string, right: number | string}} Row
 * @typedef {{plots: Plot[], says: string, rows: Row[], python: string}} Shown
 * @typedef {{heads: [string, string], sliders: Slider[], show: (at: Object<string, number>) => Shown}} Panel
 */

const jomaPlayground = (() => {
  const F = jomaForms;
  const [BLUE, ORANGE, GREEN, RED, GREY] = ["#026ed0", "#bb7e0f", "#099e6e", "#d22e2c", "#757575"]; // of joma's figures

  /** In four digits. @param {number | string} value @returns {string} */
  function inDigits(value) {
    if (typeof value === "string") return value;
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    const size = Math.abs(value);
    const text = size !== 0 && (size < 1e-4 || size >= 1e7) ? value.toExponential(3) : String(Number(value.toPrecision(4)));
    return text.replace(/-/g, "−");
  }

  /** A number, or several, as Python writes floats. @param {number | number[]} value @returns {string} */
  function inPython(value) {
    if (Array.isArray(value)) return `[${value.map((one) => inPython(one)).join(", ")}]`;
    return Number.isInteger(value) ? `${value}.0` : String(value);
  }

  const upTo = (/** @type {number} */ count, /** @type {number} */ end) => Float64Array.from({ length: count + 1 }, (_, at) => end * at / count);
  const pairs = (/** @type {ArrayLike<number>} */ x, /** @type {ArrayLike<number>} */ y) => Array.from(x, (one, at) => /** @type {[number, number]} */ ([one, y[at]]));
  const slider = (/** @type {string} */ name, /** @type {string} */ label, /** @type {number[]} */ [min, max, step, value]) => ({ name, label, min, max, step, value });

  /** Theorem 2: three tokens. @type {Panel} */
  const winner = {
    heads: ["Printed", "Corrected"],
    sliders: [
      slider("delta2", "Saliency Δ₂ of token 2", [-1.5, 1.5, 0.05, 0.8]),
      slider("delta1", "Saliency Δ₁ of token 1", [0.5, 1.5, 0.05, 1]),
      slider("delta3", "Saliency Δ₃ of token 3", [-1.5, 1.5, 0.05, -0.5]),
      slider("z2", "Attention logit that token 2 starts with", [-2, 2, 0.1, 0]),
    ],
    show(at) {
      const delta = [at.delta1, at.delta2, at.delta3], z0 = [0, at.z2, 0], colours = [BLUE, ORANGE, GREEN];
      const ends = delta.map((one, l) => F.blowUpTime(one, z0[l])), end = Math.min(...ends), first = ends.indexOf(end);
      const most = Math.max(...delta.map(Math.abs)), salient = delta.findIndex((one) => Math.abs(one) === most);
      const infinite = (/** @type {number} */ l) => Math.sign(delta[l]) * Infinity;
      const stands = delta.map((one, l) => (ends[l] === end ? infinite(l) : F.linearTrajectory(one, end, z0[l])));
      const printed = delta.map((one, l) => (Math.abs(one) === most ? infinite(l) : Math.SQRT2 * Math.sign(one) * F.fromTail((1 - Math.abs(one) / most) / 2)));
      const t = upTo(240, 1).map((share) => end * (1 - (1 - share) ** 2.5)); // dense towards the end, where the winner races
      const paths = delta.map((one, l) => Array.from(t, (now) => F.linearTrajectory(one, now, z0[l])));
      // Where the printed invariant puts a token when the most salient one is where it is.
      const by = delta.map((one) => paths[salient].map((v) => Math.SQRT2 * Math.sign(one) * F.fromTail((1 - Math.abs(one) / most * Math.abs(F.erf(v / 2))) / 2)));
      const curves = delta.flatMap((_, l) => [
        { label: `token ${l + 1}`, colour: colours[l], points: pairs(t, paths[l]) },
        ...(l === salient ? [] : [{ label: `token ${l + 1}, printed`, colour: colours[l], dashed: true, points: pairs(t, by[l]) }]),
      ]);
      const says = `Token ${first + 1} wins. Its weight is infinite at t* = ${inDigits(end)}${first === salient ? "" : `, although token ${salient + 1} is more salient`}.`;
      return {
        says,
        plots: [{
          x: { label: "time t", range: [0, 2.6] }, y: { label: "weight v", range: [-4, 4] }, curves, at: { x: end, label: "t*" },
          alt: `Weights of three tokens over time. ${says} The others stop at ${stands.filter(Number.isFinite).map(inDigits).join(" and ")}.`,
        }],
        rows: [
          { name: "Winner", left: `token ${salient + 1}`, right: `token ${first + 1}` },
          { name: "Blow-up time t*", left: "not given", right: end },
          ...stands.map((right, l) => ({ name: `Token ${l + 1} at t*`, left: printed[l], right })),
        ],
        python: `import torch
from joma.theory import linear

delta = torch.tensor(${inPython(delta)}, dtype=torch.float64)  # saliencies
z0 = torch.tensor(${inPython(z0)}, dtype=torch.float64)  # logits at the start
times = linear.blow_up_time(delta, z0=z0)
end = times.min()
v = linear.trajectory(delta, [end], z0=z0)[0]
corrected = torch.where(times == end, delta.sign() * torch.inf, v)
printed = linear.limits(delta, kappa=0.5)  # erf(v/2) instead of erf(v/sqrt 2)
print("Winner", f"token {delta.abs().argmax() + 1}", f"token {times.argmin() + 1}", sep=" | ")
print("Blow-up time t*", "not given", end.item(), sep=" | ")
for token in range(3):
    print(f"Token {token + 1} at t*", printed[token].item(), corrected[token].item(), sep=" | ")
`,
      };
    },
  };

  /** Equation 6: three components. @type {Panel} */
  const rebound = {
    heads: ["Printed", "Corrected"],
    sliders: [
      slider("mu1", "Target μ₁ of component 1", [0.1, 4, 0.05, 3]),
      slider("mu2", "Target μ₂ of component 2", [0.1, 4, 0.05, 2]),
      slider("mu3", "Target μ₃ of component 3", [0.1, 4, 0.05, 1]),
    ],
    show(at) {
      const mu = [at.mu1, at.mu2, at.mu3], t = upTo(600, 6), colours = [ORANGE, GREEN, GREY];
      const [printed, corrected] = [1, 0.5].map((scale) => {
        const curve = F.entropyCurve(mu, t, scale), late = F.softmaxEntropy(mu.map((one) => scale * one * one));
        return { curve, late, lowest: Math.min(late, ...curve) };
      });
      const back = corrected.late - corrected.lowest, when = t[corrected.curve.indexOf(corrected.lowest)];
      const says = back > 5e-4 ? `Entropy falls to ${inDigits(corrected.lowest)} nats at t = ${inDigits(when)}, then comes back by ${inDigits(back)} nats.` : "Entropy does not come back.";
      const dots = back > 5e-4 ? [{ x: when, y: corrected.lowest, colour: BLUE }] : [];
      return {
        says,
        plots: [
          {
            x: { label: "time t", range: [0, 6] }, y: { label: "attention entropy, nats", range: [0, 1.2] }, dots,
            curves: [{ label: "corrected", colour: BLUE, points: pairs(t, corrected.curve) }, { label: "printed", colour: RED, dashed: true, points: pairs(t, printed.curve) }],
            alt: `Attention entropy over time. ${says}`,
          },
          {
            x: { label: "time t", range: [0, 6] }, y: { label: "v/μ", range: [0, 1] },
            curves: mu.map((one, l) => ({ label: `component ${l + 1}`, colour: colours[l], points: pairs(t, F.salienceTrajectory(one, t).map((v) => v / one)) })),
            alt: `How far each of three components has come: at t = 1 ${mu.map((one) => inDigits(F.salienceTrajectory(one, [1])[0] / one)).join(", ")} of its way.`,
          },
        ],
        rows: [
          { name: "Lowest entropy", left: printed.lowest, right: corrected.lowest },
          { name: "Entropy at the end", left: printed.late, right: corrected.late },
          { name: "Comes back by", left: printed.late - printed.lowest, right: back },
        ],
        python: `import torch
from joma.theory import salience

mu = torch.tensor(${inPython(mu)}, dtype=torch.float64)  # where the weights are going
t = torch.linspace(0, 6, 601, dtype=torch.float64)
found = []
for scale in (1.0, 0.5):  # softmax(v^2) as printed, softmax(v^2/2) as corrected
    late = torch.distributions.Categorical(logits=scale * mu**2).entropy()
    lowest = torch.minimum(salience.entropy_curve(mu, t, scale=scale).min(), late)
    found.append((lowest.item(), late.item(), (late - lowest).item()))
for name, printed, corrected in zip(("Lowest entropy", "Entropy at the end", "Comes back by"), *found):
    print(name, printed, corrected, sep=" | ")
`,
      };
    },
  };

  const VARIANCES = Float64Array.from({ length: 61 }, (_, at) => 10 ** (4 * at / 60 - 1));
  const exact = /** @type {Map<number, [number, number][]>} */ (new Map()); // a curve takes a tenth of a second: kept by number of keys

  /** @param {number} n */
  function exactCurve(n) {
    if (!exact.has(n)) exact.set(n, pairs(VARIANCES, VARIANCES.map((variance) => F.gaussianEntropy(variance, n))));
    return /** @type {[number, number][]} */ (exact.get(n));
  }

  /** Entropy against spread. @type {Panel} */
  const spread = {
    heads: ["Many keys", "Exact"],
    sliders: [
      { ...slider("variance", "Variance s² of the logits", [-1, 3, 0.02, 0.6]), read: (place) => Number((10 ** place).toPrecision(3)) },
      { ...slider("n", "Number of keys n", [1, 20, 1, 10]), read: (place) => 2 ** place },
    ],
    show({ variance, n }) {
      const entropy = F.gaussianEntropy(variance, n), limit = F.randomEnergyEntropy(variance, n), critical = F.criticalVariance(n), frozen = F.frozenEntropy(variance, n);
      const says = `${n.toLocaleString("en")} Gaussian logits of variance ${inDigits(variance)} leave ${inDigits(entropy)} of ln n = ${inDigits(Math.log(n))} nats: attention on about ${inDigits(Math.exp(entropy))} keys.`;
      return {
        says,
        plots: [{
          x: { label: "variance s² of the logits", range: [0.1, 1000], log: true }, y: { label: "entropy, nats", range: [0, Math.ceil(Math.log(n) * 1.05 + 0.05)] },
          curves: [
            { label: "exact", colour: BLUE, points: exactCurve(n) },
            { label: "many keys", colour: RED, dashed: true, points: pairs(VARIANCES, VARIANCES.map((one) => F.randomEnergyEntropy(one, n))) },
            { label: "many keys, frozen", colour: ORANGE, dashed: true, points: pairs(VARIANCES, VARIANCES.map((one) => F.frozenEntropy(one, n))) },
          ],
          at: { x: critical, label: "2 ln n" }, dots: [{ x: variance, y: entropy, colour: BLUE }],
          alt: `Entropy falls with the variance of the logits. ${says}`,
        }],
        rows: [
          { name: "Entropy", left: limit, right: entropy },
          { name: "Keys in use, e^H", left: Math.exp(limit), right: Math.exp(entropy) },
          { name: "Entropy where frozen", left: Number.isFinite(frozen) ? frozen : "not frozen", right: entropy },
        ],
        python: `import math
from joma.theory import spread

variance, n = ${inPython(variance)}, ${n}
exact = spread.gaussian_entropy(variance, n).item()
limit = spread.random_energy_entropy(variance, n).item()  # of many keys
frozen = spread.frozen_entropy(variance, n).item()  # beyond the variance 2 ln n
print("Entropy", limit, exact, sep=" | ")
print("Keys in use, e^H", math.exp(limit), math.exp(exact), sep=" | ")
print("Entropy where frozen", frozen if math.isfinite(frozen) else "not frozen", exact, sep=" | ")
`,
      };
    },
  };

  /** Theorem 5. @type {Panel} */
  const hierarchy = {
    heads: ["Printed", "Corrected"],
    sliders: [
      slider("rho", "Correlation ρ of a child with its parent", [-0.95, 0.99, 0.01, 0.9]),
      slider("depth", "Depth L of the tree", [2, 12, 1, 6]),
      slider("zero1", "P[y₁ = 0] in class 1", [0, 1, 0.05, 0.95]),
      slider("zero2", "P[y₁ = 0] in class 2", [0, 1, 0.05, 0.55]),
    ],
    show({ rho, depth, zero1, zero2 }) {
      const p0 = [0.5, 0.5], roots = [F.printedRootRho(p0, [zero1, zero2]), F.rootRho(p0, [zero1, zero2])];
      const heights = Array.from({ length: depth }, (_, at) => at);
      const [printed, corrected] = roots.map((root) => heights.map((height) => F.cooccurrence(rho, root, depth, height)));
      const appears = roots.map((root) => (1 - rho ** (depth - 1) * root) / 2), last = depth - 1;
      const says = `Tokens that meet at height ${last} of ${depth} appear together in ${inDigits(100 * corrected[last])} % of cases; the printed ρ₀ says ${inDigits(100 * printed[last])} %.`;
      return {
        says,
        plots: [{
          x: { label: "height H of the common ancestor", range: [0, last], whole: true }, y: { label: "P[l appears | m appears]", range: [Math.min(0, Math.floor(5 * Math.min(...printed)) / 5), 1] },
          curves: [{ label: "corrected", colour: BLUE, dots: true, points: pairs(heights, corrected) }, { label: "printed", colour: RED, dashed: true, dots: true, points: pairs(heights, printed) }],
          alt: `Co-occurrence falls with the height of the common ancestor. ${says}`,
        }],
        rows: [
          { name: "ρ₀ of the root", left: roots[0], right: roots[1] },
          { name: "A token appears", left: appears[0], right: appears[1] },
          { name: "Together, H = 1", left: printed[1], right: corrected[1] },
          { name: "Together, H = L − 1", left: printed[last], right: corrected[last] },
        ],
        python: `from joma.theory import hierarchy

rho, depth = ${inPython(rho)}, ${depth}
p0, p_zero = [0.5, 0.5], ${inPython([zero1, zero2])}  # of two classes
roots = [hierarchy.printed_root_rho(p0, p_zero).item(), hierarchy.root_rho(p0, p_zero).item()]
print("ρ₀ of the root", *roots, sep=" | ")
print("A token appears", *((1 - rho ** (depth - 1) * root) / 2 for root in roots), sep=" | ")
print("Together, H = 1", *(hierarchy.cooccurrence(rho, root, depth, 1).item() for root in roots), sep=" | ")
print("Together, H = L − 1", *(hierarchy.cooccurrence(rho, root, depth, depth - 1).item() for root in roots), sep=" | ")
`,
      };
    },
  };

  const PANELS = /** @type {Object<string, Panel>} */ ({ winner, rebound, spread, hierarchy });

  /** @param {string} tag @param {Object<string, any>} given @param {...(Node | string)} children @returns {any} */
  function h(tag, given, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  /** A slider with its name and its number. @param {Slider} one @param {() => void} moved */
  function control(one, moved) {
    const number = h("output", {}), input = h("input", { type: "range", min: one.min, max: one.max, step: one.step, value: one.value, name: one.name });
    const read = () => (one.read ? one.read(Number(input.value)) : Number(input.value));
    const tell = () => { number.textContent = inDigits(read()); input.setAttribute("aria-valuetext", number.textContent); };
    input.addEventListener("input", () => { tell(); moved(); });
    tell();
    return { name: one.name, read, element: h("label", {}, h("span", {}, one.label), number, input), reset() { input.value = String(one.value); tell(); } };
  }

  /** A line of the colour and kind of each curve. @param {Plot} plot */
  function legend(plot) {
    const key = (/** @type {Curve} */ { label, colour, dashed }) => h("li", {}, h("i", { style: `border-top: 2.5px ${dashed ? "dashed" : "solid"} ${colour}` }), label);
    return h("ul", { class: "keys" }, ...plot.curves.filter(({ points }) => points.some((one) => one.every(Number.isFinite))).map(key));
  }

  /** @param {Panel} panel @param {Row[]} rows */
  function table({ heads }, rows) {
    const cell = (/** @type {number | string} */ value) => h("td", { "data-value": value }, inDigits(value));
    const head = h("tr", {}, h("td", {}), ...heads.map((one) => h("th", { scope: "col" }, one)));
    return [h("thead", {}, head), h("tbody", {}, ...rows.map(({ name, left, right }) => h("tr", {}, h("th", { scope: "row" }, name), cell(left), cell(right))))];
  }

  /** Copies the snippet; where the page has no clipboard it is shown and selected. @param {HTMLElement} code @param {HTMLDetailsElement} fold */
  function copier(code, fold) {
    const words = "Copy as Python";
    const button = h("button", { type: "button", async onclick() {
      try { await navigator.clipboard.writeText(code.textContent ?? ""); button.textContent = "Copied"; } catch {
        fold.open = true;
        getSelection()?.selectAllChildren(code);
        button.textContent = "Selected: copy it";
      }
      setTimeout(() => { button.textContent = words; }, 1500);
    } }, words);
    return button;
  }

  /** A formula wider than the screen can be moved with the keyboard. @param {Element} box */
  function reachable(box) {
    if (box.scrollWidth > box.clientWidth) box.setAttribute("tabindex", "0");
    else box.removeAttribute("tabindex");
  }

  /** @param {HTMLElement} host */
  function mount(host) {
    const panel = PANELS[host.dataset.panel ?? ""];
    const charts = h("div", { class: "charts" }), says = h("p", { class: "says", role: "status" }), numbers = h("table", {}), code = h("code", {});
    const snippet = h("pre", { tabindex: 0, "aria-label": "Python" }, code), fold = h("details", { class: "python" }, h("summary", {}, "Python"), snippet);
    let waiting = 0;
    const later = () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(update); }; // one drawing per picture of the screen
    const controls = panel.sliders.map((one) => control(one, later)), [main, ...more] = controls.map((one) => one.element);
    const reset = h("button", { type: "button", onclick() { controls.forEach((one) => one.reset()); update(); } }, "Reset");
    /** @type {Shown} */
    let shown;
    const sketch = () => {
      const width = Math.max(charts.clientWidth, 240);
      charts.replaceChildren(...shown.plots.flatMap((plot, at) => [jomaChart.draw(plot, width, at ? 180 : Math.min(Math.max(width * 0.6, 230), 320)), legend(plot)]));
    };
    const update = () => {
      shown = panel.show(Object.fromEntries(controls.map(({ name, read }) => [name, read()])));
      if (says.textContent !== shown.says) says.textContent = shown.says;
      numbers.replaceChildren(...table(panel, shown.rows));
      code.textContent = shown.python;
      sketch();
    };
    const fewer = h("details", { class: "more" }, h("summary", {}, "More to move"), ...more);
    host.append(charts, h("div", { class: "side" }, main, fewer, says, numbers, h("div", { class: "buttons" }, copier(code, fold), reset)), fold);
    update();
    let width = charts.clientWidth;
    new ResizeObserver(() => {
      if (charts.clientWidth !== width) { width = charts.clientWidth; sketch(); }
      host.parentElement?.querySelectorAll(".forms dd").forEach(reachable);
    }).observe(charts);
  }

  /** @param {ParentNode} box */
  function start(box) {
    box.querySelectorAll("[data-panel]:empty").forEach((host) => mount(/** @type {HTMLElement} */ (host)));
  }

  if (typeof document !== "undefined") document.addEventListener("DOMContentLoaded", () => start(document)); // panels compute without a page
  return { start, panels: PANELS };
})();
