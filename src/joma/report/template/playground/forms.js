"use strict";
// The closed forms of the playground, in double precision, without a page. Each is named as in joma.theory, which says
// where it comes from; a test holds them against it to 1e-9. Arguments are the page's own sliders, so
// nothing is refused here.

const jomaForms = (() => {
  const EULER = 0.5772156649015329;
  const times = (/** @type {number} */ count, /** @type {(at: number) => number} */ value) => Float64Array.from({ length: count }, (_, at) => value(at));

  /** The error function, by a series whose terms are all positive. @param {number} x @returns {number} */
  function erf(x) {
    if (Math.abs(x) > 2) return Math.sign(x) * (1 - erfc(Math.abs(x)));
    let term = x, sum = x;
    for (let k = 1; Math.abs(term) > 1e-17 * Math.abs(sum); k++) { term *= 2 * x * x / (2 * k + 1); sum += term; }
    return 2 / Math.sqrt(Math.PI) * Math.exp(-x * x) * sum;
  }

  /** 1 - erf, to its own relative precision: far out by a continued fraction. @param {number} x @returns {number} */
  function erfc(x) {
    if (x <= 2) return 1 - erf(x);
    let fraction = x;
    for (let k = 60; k > 0; k--) fraction = x + k / 2 / fraction;
    return Math.exp(-x * x) / Math.sqrt(Math.PI) / fraction;
  }

  /** P(z > x) of a standard normal. @param {number} x @returns {number} */
  const bellTail = (x) => erfc(x / Math.SQRT2) / 2;

  /** The x with P(z > x) = tail, 0 < tail <= 1/2. ln P is concave and the start lies beyond the root: Newton only falls.
   * @param {number} tail @returns {number} */
  function fromTail(tail) {
    let x = Math.sqrt(Math.max(-2 * Math.log(2 * tail), 0));
    for (let i = 0; i < 60; i++) {
      const now = bellTail(x), step = Math.log(now / tail) * now * Math.sqrt(2 * Math.PI) * Math.exp(x * x / 2);
      x += step;
      if (Math.abs(step) < 1e-15 * Math.max(x, 1)) break;
    }
    return Math.max(x, 0);
  }

  // Theorem 2, from v(0) = 0. kappa = 1 is the corrected form; a flow with kappa = 1/2 keeps the printed erf(v/2)/delta.

  /** How fast erf(v sqrt(kappa/2)) grows. */
  const speed = (/** @type {number} */ delta, /** @type {number} */ z0, /** @type {number} */ kappa) => Math.sqrt(2 * kappa / Math.PI) * Math.abs(delta) * Math.exp(z0);

  /** linear.trajectory of one token. @param {number} delta @param {number} t @param {number} [z0] @param {number} [kappa] @returns {number} */
  function linearTrajectory(delta, t, z0 = 0, kappa = 1) {
    const reached = speed(delta, z0, kappa) * t;
    return Math.sign(delta) * (reached >= 1 ? Infinity : fromTail((1 - reached) / 2) / Math.sqrt(kappa));
  }

  /** linear.blow_up_time of one token. @param {number} delta @param {number} [z0] @param {number} [kappa] @returns {number} */
  function blowUpTime(delta, z0 = 0, kappa = 1) { return 1 / speed(delta, z0, kappa); }

  // Equation 6, from v(0) = 0.

  /** Nodes and weights of Gauss and Legendre on [0, 1]. @param {number} count @returns {[number, number][]} */
  function gaussLegendre(count) {
    return Array.from({ length: count }, (_, at) => {
      let x = Math.cos(Math.PI * (at + 0.75) / (count + 0.5)), slope = 1;
      for (let i = 0; i < 8; i++) {
        let [before, now] = [1, x];
        for (let k = 2; k <= count; k++) [before, now] = [now, ((2 * k - 1) * x * now - (k - 1) * before) / k];
        slope = count * (x * now - before) / (x * x - 1);
        x -= now / slope;
      }
      return /** @type {[number, number]} */ ([(1 + x) / 2, 1 / ((1 - x * x) * slope * slope)]);
    });
  }
  const RULE = gaussLegendre(20);

  /** salience.time_to_depth: when ln 1/(1 - v/mu) = depth. @param {number} depth @param {number} mu @returns {number} */
  function timeToDepth(depth, mu) {
    const left = Math.exp(-depth), share = -Math.expm1(-depth), half = mu * mu / 2;
    let rest = 0;
    for (const [node, weight] of RULE) {
      const x = share * node, apart = left + share * (1 - node); // 1 - x, without cancelling
      rest += weight * Math.exp(-half * x * x) * -Math.expm1(-half * apart * (1 + x)) / apart;
    }
    return Math.exp(-half) * depth + share * rest;
  }

  /** salience.trajectory of one component at rising times. t(depth) is concave: Newton climbs from below.
   * @param {number} mu @param {ArrayLike<number>} at @returns {Float64Array} */
  function salienceTrajectory(mu, at) {
    const latest = timeToDepth(700, mu) - 700 * Math.exp(-mu * mu / 2); // R(1, mu)
    let depth = 0;
    return times(at.length, (i) => {
      depth = Math.max(depth, at[i], (at[i] - latest) * Math.exp(mu * mu / 2));
      for (let k = 0; k < 60 && mu * Math.exp(-depth) !== 0; k++) {
        const v = -mu * Math.expm1(-depth), step = (at[i] - timeToDepth(depth, mu)) * Math.exp(v * v / 2);
        depth = Math.max(depth + step, 0);
        if (Math.abs(step) < 1e-13 * Math.max(depth, 1)) break;
      }
      return -mu * Math.expm1(-depth);
    });
  }

  /** The entropy of softmax over logits, in nats. @param {number[]} logits @returns {number} */
  function softmaxEntropy(logits) {
    const most = Math.max(...logits), weights = logits.map((one) => Math.exp(one - most)), sum = weights.reduce((a, b) => a + b, 0);
    return Math.log(sum) - weights.reduce((mean, weight, at) => mean + weight * (logits[at] - most), 0) / sum;
  }

  /** salience.entropy_curve. @param {number[]} mu @param {ArrayLike<number>} at @param {number} scale @returns {Float64Array} */
  function entropyCurve(mu, at, scale) {
    const paths = mu.map((one) => salienceTrajectory(one, at));
    return times(at.length, (i) => softmaxEntropy(paths.map((path) => scale * path[i] * path[i])));
  }

  // Entropy of Gaussian logits: n (n - 1) int M q Q^(n-2) du, see joma.theory._logit_entropy.

  /** m(y) = E1(e^y) + (y + gamma) exp(-e^y). @param {number} y @returns {number} */
  function entropyKernel(y) {
    const x = Math.exp(y);
    if (x <= 2) {
      let series = 0;
      for (let k = 26; k > 0; k--) series = x / k * (1 / k - series);
      return series + Math.expm1(-x) * (y + EULER);
    }
    let fraction = x + 81;
    for (let k = 40; k > 0; k--) fraction = x + (2 * k - 1) - k * k / fraction;
    return Math.exp(-x) * (y + EULER + 1 / fraction);
  }

  /** Kernels smoothed by a Gaussian that is narrow beside them: [1 - Q, M, q] at u. @param {number} s @returns {(u: number) => number[]} */
  function onTheGaussian(s) {
    const nodes = Array.from({ length: 27 }, (_, at) => 0.6 * (at - 13)), weights = nodes.map((g) => 0.6 * Math.exp(-g * g / 2) / Math.sqrt(2 * Math.PI));
    return (u) => {
      const sums = [0, 0, 0];
      nodes.forEach((g, at) => {
        const y = u + s * g, x = Math.exp(y);
        sums[0] -= weights[at] * Math.expm1(-x);
        sums[1] += weights[at] * entropyKernel(y);
        sums[2] += weights[at] * Math.exp(y - x);
      });
      return sums;
    };
  }

  /** The same with nodes where the kernels live, for a wide one; M and q come times s. @param {number} s @param {number} n @returns {(u: number) => number[]} */
  function onTheKernels(s, n) {
    const step = 0.3, first = -step * Math.ceil((Math.log(n) + 36) / step), count = Math.ceil((6 - first) / step);
    const y = times(count, (at) => first + step * at), m = y.map(entropyKernel), q = y.map((one) => Math.exp(one - Math.exp(one)));
    const rest = y.map((one) => -Math.expm1(-Math.exp(one)) - bellTail(-one));
    return (u) => {
      const sums = [bellTail(-u / Math.hypot(s, 1)), 0, 0];
      // Beyond nine standard deviations a node adds nothing that could be seen.
      const from = Math.max(Math.ceil((u - 9 * s - first) / step), 0), to = Math.min((u + 9 * s - first) / step, count - 1);
      for (let at = from; at <= to; at++) {
        const apart = (y[at] - u) / s, weight = step / Math.sqrt(2 * Math.PI) * Math.exp(-apart * apart / 2);
        sums[0] += weight * rest[at] / s;
        sums[1] += weight * m[at];
        sums[2] += weight * q[at];
      }
      return sums;
    };
  }

  /** spread.gaussian_entropy of n > 1 keys. @param {number} variance @param {number} n @returns {number} */
  function gaussianEntropy(variance, n) {
    if (variance === 0) return Math.log(n);
    const s = Math.sqrt(variance), log = Math.log(n), narrow = s < 0.4;
    const smoothed = narrow ? onTheGaussian(s) : onTheKernels(s, n), unit = narrow ? 1 : s;
    const value = (/** @type {number} */ u) => {
      const [below, m, q] = smoothed(u);
      return n * m * (n - 1) * q * Math.exp((n - 2) * Math.log1p(-Math.min(Math.max(below, 0), 1 - 1e-16)));
    };
    // First where the integrand lives, on few nodes, then the trapezoidal sum.
    const typical = variance < 2 * log ? log + variance / 2 : s * Math.sqrt(2 * log);
    const start = -typical - 30 - 9 * s, coarse = (5 + 9 * s - start) / 63;
    const heights = times(64, (at) => value(start + coarse * at)), seen = Math.max(...heights) * Math.exp(-36);
    const low = start + coarse * Math.max(heights.findIndex((height) => height > seen) - 1, 0);
    const high = start + coarse * Math.min(heights.findLastIndex((height) => height > seen) + 1, 63);
    const fine = (high - low) / 95;
    let sum = 0;
    for (let at = 0; at < 96; at++) sum += value(low + fine * at);
    return sum * fine / unit / unit;
  }

  /** spread.critical_variance. @param {number} n @returns {number} */
  const criticalVariance = (n) => 2 * Math.log(n);

  /** spread.random_energy_entropy. @param {number} variance @param {number} n @returns {number} */
  const randomEnergyEntropy = (variance, n) => Math.max(Math.log(n) - variance / 2, 0);

  /** @param {number} x positive @returns {number} */
  function digamma(x) {
    let below = 0, at = x;
    while (at < 12) below += 1 / at++;
    const z = 1 / (at * at);
    return Math.log(at) - 1 / (2 * at) - z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z * (1 / 132 - z * 691 / 32760))))) - below;
  }

  /** spread.frozen_entropy: infinite at and below the critical variance. @param {number} variance @param {number} n @returns {number} */
  function frozenEntropy(variance, n) {
    const m = Math.sqrt(criticalVariance(n) / variance);
    return m < 1 ? -EULER - digamma(1 - m) : Infinity;
  }

  // Theorem 5.

  /** hierarchy.root_rho. @param {number[]} p0 @param {number[]} pZero @returns {number} */
  const rootRho = (p0, pZero) => p0.reduce((sum, p, k) => sum + p * (2 * pZero[k] - 1), 0);

  /** hierarchy.printed_root_rho. @param {number[]} p0 @param {number[]} pZero @returns {number} */
  const printedRootRho = (p0, pZero) => p0.reduce((sum, p, k) => sum + p * pZero[k], 0);

  /** hierarchy.cooccurrence. @param {number} rho @param {number} rho0 @param {number} depth @param {number} ancestor @returns {number} */
  const cooccurrence = (rho, rho0, depth, ancestor) => 1 - (1 - rho ** (2 * ancestor)) / (2 * (1 - rho ** (depth - 1) * rho0));

  return {
    erf, erfc, fromTail, linearTrajectory, blowUpTime, timeToDepth, salienceTrajectory, softmaxEntropy, entropyCurve,
    gaussianEntropy, criticalVariance, randomEnergyEntropy, frozenEntropy, rootRho, printedRootRho, cooccurrence,
  };
})();
