// What the page knows: the index of runs, and arrays that were asked for. A host answers questions through anywidget's
// model: `send` asks, "msg:custom" answers, with numbers as buffers beside the words.

/** @typedef {{name: string, dims: Dim[], steps: number, first: number, last: number, cursor: number}} SeriesEntry */
/** @typedef {Object<string, any> & {id: string, name: string, series?: SeriesEntry[], fault?: string, identity?: string}} RunEntry */
/** @typedef {Recorded & {thinned: boolean, of: number, cursor: number, lost: number, means: string[]}} Held */
/** How numbers are wanted: whole steps instead of each curve's extremes, or means over dimensions, taken before thinning.
 * @typedef {{whole?: boolean, means?: string[]}} Way */
/** @typedef {{get: (name: string) => any, set: (name: string, value: any) => void, save_changes: () => void, on: (what: string, call: Function) => void, off: (what: string, call?: Function) => void, send: (content: any) => void}} Model */

const MOST_POINTS = 2000; // of a curve that a host sends at a time, see feed.py

class Source {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    /** @type {Map<number, {resolve: Function, reject: Function}>} */
    this.open = new Map();
    this.asked = 0;
    /** @type {Map<string, {promise: Promise<Held>, held: Held | null, run: string, series: string, identity: string, growing: boolean}>} */
    this.arrays = new Map();
    /** @type {Set<() => void>} */
    this.listeners = new Set();
    /** @type {Object<string, string>} */
    this.titles = {};
    this.answer = (/** @type {any} */ head, /** @type {any[]} */ buffers) => this.answered(head, buffers ?? []);
    this.changed = () => this.grow();
    model.on("msg:custom", this.answer);
    model.on("change:index", this.changed);
    this.ask({ ask: "titles" }).then(({ head }) => { this.titles = head.titles ?? {}; this.tell(); }).catch(() => { /* names do */ });
  }

  /** @returns {RunEntry[]} */
  get runs() { return this.model.get("index")?.runs ?? []; }

  /** @param {string} id @returns {RunEntry | undefined} */
  run(id) { return this.runs.find((run) => run.id === id); }

  /** What an axis is called that shows a series. @param {string} series @returns {string} */
  title(series) {
    const [measure, ...rest] = series.split("/");
    const title = Object.hasOwn(this.titles, measure) ? this.titles[measure] : null;
    return title === null ? series.replace(/_/g, " ") : rest.length ? `${title}: ${rest.join("/").replace(/_/g, " ")}` : title;
  }

  /** @param {Object<string, any>} question @returns {Promise<{head: any, buffers: any[]}>} */
  ask(question) {
    const id = ++this.asked;
    return new Promise((resolve, reject) => {
      this.open.set(id, { resolve, reject });
      this.model.send({ id, ...question });
    });
  }

  /** @param {any} head @param {any[]} buffers */
  answered(head, buffers) {
    const waiting = this.open.get(head?.id);
    if (!waiting) return;
    this.open.delete(head.id);
    if (head.fault) waiting.reject(new Error(head.fault)); else waiting.resolve({ head, buffers });
  }

  /** A series, asked for once. @param {string} run @param {string} series @param {Way} [way] @returns {Promise<Held>} */
  series(run, series, way = {}) {
    const entry = this.run(run), listed = entry?.series?.find((one) => one.name === series);
    if (!entry || !listed) return Promise.reject(new Error(entry?.fault ?? `there is no ${series} in ${run}`));
    const key = JSON.stringify([run, series, way]), identity = entry.identity ?? "", known = this.arrays.get(key);
    if (known && known.identity === identity) return known.promise;
    const promise = this.ask({ ask: "series", run, series, ...way }).then(({ head, buffers }) => readArray(head, buffers, listed.dims));
    const kept = { promise, held: /** @type {Held | null} */ (null), run, series, identity, growing: false };
    promise.then((held) => { kept.held = held; this.grow(); }).catch(() => { if (this.arrays.get(key) === kept) this.arrays.delete(key); });
    this.arrays.set(key, kept);
    return promise;
  }

  /** Whether a series is surely thinned, before anything is asked for: no host sends more steps at a time.
   * @param {string} run @param {string} series @returns {boolean} */
  long(run, series) { return (this.run(run)?.series?.find((one) => one.name === series)?.steps ?? 0) > MOST_POINTS; }

  /** A part of a series, finer than all of it. @param {string} run @param {string} series @param {Way} way @param {number} low @param {number} high */
  async part(run, series, way, low, high) {
    const { head, buffers } = await this.ask({ ask: "series", run, series, ...way, low, high });
    const listed = this.run(run)?.series?.find((one) => one.name === series);
    return readArray(head, buffers, listed?.dims ?? []);
  }

  /** Ask for the rows behind what is known of every series that was asked for, and tell the page. */
  async grow() {
    this.tell();
    const behind = [...this.arrays.values()].filter((one) => {
      const entry = this.run(one.run), listed = entry?.series?.find((each) => each.name === one.series);
      return one.held && !one.growing && listed && entry?.identity === one.identity && listed.cursor > one.held.cursor;
    });
    await Promise.all(behind.map(async (one) => {
      one.growing = true;
      try {
        const held = /** @type {Held} */ (one.held);
        const { head, buffers } = await this.ask({ ask: "after", run: one.run, series: one.series, cursor: held.cursor });
        const listed = this.run(one.run)?.series?.find((each) => each.name === one.series);
        withRows(held, meanRows(readArray(head, buffers, listed?.dims ?? []), held.means));
        held.cursor = head.cursor;
      } catch { /* the next look tries again, and the run says what is wrong with it */ } finally { one.growing = false; }
    }));
    if (behind.length) this.tell();
  }

  tell() { for (const listener of [...this.listeners]) listener(); }

  close() {
    this.model.off("msg:custom", this.answer);
    this.model.off("change:index", this.changed);
    this.listeners.clear();
  }
}

/** @param {any} head @param {any[]} buffers @param {Dim[]} dims all dimensions of the series @returns {Held} */
function readArray(head, buffers, dims) {
  const bytes = buffers.map((one) => (one instanceof ArrayBuffer ? one : one.buffer.slice(one.byteOffset, one.byteOffset + one.byteLength)));
  const values = head.kind === "f4" ? new Float32Array(bytes[1]) : new Float64Array(bytes[1]), means = head.means ?? [];
  return { steps: [...new Float64Array(bytes[0])], values, dims: dims.filter((dim) => !means.includes(dim.name)), thinned: Boolean(head.thinned), of: head.of ?? 0, cursor: head.cursor ?? 0, lost: head.lost ?? 0, means };
}

/** New rows as their means over dimensions. @param {Held} rows @param {string[]} means @returns {Held} */
function meanRows(rows, means) {
  if (!means.length || !rows.steps.length) return rows;
  const modes = Object.fromEntries(rows.dims.map((dim) => [dim.name, means.includes(dim.name) ? "mean" : "each"])), curves = curvesOf(rows, modes);
  return { ...rows, values: Float64Array.from(rows.steps.flatMap((_, at) => curves.map((curve) => curve.y[at]))), dims: rows.dims.filter((dim) => !means.includes(dim.name)) };
}
