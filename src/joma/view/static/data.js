// What the page knows: the index of runs, and arrays that were asked for. A host answers questions through anywidget's
// model: `send` asks, "msg:custom" answers, with numbers as buffers beside the words.

/** @typedef {{name: string, dims: Dim[], steps: number, first: number, last: number, cursor: number}} SeriesEntry */
/** @typedef {Object<string, any> & {id: string, name: string, series?: SeriesEntry[], fault?: string, identity?: string}} RunEntry */
/** @typedef {Recorded & {thinned: boolean, of: number, cursor: number, lost: number, means: string[]}} Held */
/** A series that was asked for. @typedef {{promise: Promise<Held>, held: Held | null, run: string, series: string, identity: string, growing: boolean, added: number}} Known */
/** How numbers are wanted: whole steps instead of each curve's extremes, or means over dimensions, taken before thinning.
 * @typedef {{whole?: boolean, means?: string[]}} Way */
/** @typedef {{get: (name: string) => any, set: (name: string, value: any) => void, save_changes: () => void, on: (what: string, call: Function) => void, off: (what: string, call?: Function) => void, send: (content: any) => void}} Model */

const MOST_POINTS = 2000; // of a curve that a host sends at a time, see feed.py; further behind, all is asked for anew

class Source {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    /** @type {Map<number, {resolve: Function, reject: Function}>} */
    this.open = new Map();
    this.asked = 0;
    /** @type {Map<string, Known>} */
    this.arrays = new Map();
    /** @type {Set<() => void>} */
    this.listeners = new Set();
    /** @type {Object<string, string>} */
    this.titles = {};
    this.answer = (/** @type {any} */ head, /** @type {any[]} */ buffers) => this.answered(head, buffers ?? []);
    this.changed = () => this.tell();
    model.on("msg:custom", this.answer);
    model.on("change:index", this.changed);
    this.ask({ ask: "titles" }).then(({ head }) => { this.titles = head.titles ?? {}; this.tell(); }).catch(() => { /* names do */ });
  }

  /** @returns {RunEntry[]} */
  get runs() { return this.model.get("index")?.runs ?? []; }

  /** @param {string} id @returns {RunEntry | undefined} */
  run(id) { return this.runs.find((run) => run.id === id); }

  /** @param {string} run @param {string} series @returns {SeriesEntry | undefined} */
  listed(run, series) { return this.run(run)?.series?.find((one) => one.name === series); }

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
    if (head?.pushed) { this.pushed(head, buffers); return; }
    const waiting = this.open.get(head?.id);
    if (!waiting) return;
    this.open.delete(head.id);
    if (head.fault) waiting.reject(new Error(head.fault)); else waiting.resolve({ head, buffers });
  }

  /** A series, asked for once; what was written since is asked for too, and told when it is there. A series that no
   * screen asks for any more does not grow. @param {string} run @param {string} series @param {Way} [way] @returns {Promise<Held>} */
  series(run, series, way = {}) {
    const entry = this.run(run), listed = this.listed(run, series);
    if (!entry || !listed) return Promise.reject(new Error(entry?.fault ?? `there is no ${series} in ${run}`));
    const key = JSON.stringify([run, series, way]), identity = entry.identity ?? "", known = this.arrays.get(key);
    if (known && known.identity === identity && !this.farBehind(known, listed)) { this.grow(known, listed); return known.promise; }
    const promise = this.ask({ ask: "series", run, series, ...way }).then(({ head, buffers }) => readArray(head, buffers, listed.dims));
    const kept = /** @type {Known} */ ({ promise, held: null, run, series, identity, growing: false, added: 0 });
    promise.then((held) => { kept.held = held; const now = this.listed(run, series); if (now) this.grow(kept, now); }).catch(() => { if (this.arrays.get(key) === kept) this.arrays.delete(key); });
    this.arrays.set(key, kept);
    return promise;
  }

  /** Whether a series is surely thinned, before anything is asked for: no host sends more steps at a time.
   * @param {string} run @param {string} series @returns {boolean} */
  long(run, series) { return (this.listed(run, series)?.steps ?? 0) > MOST_POINTS; }

  /** A part of a series, finer than all of it. @param {string} run @param {string} series @param {Way} way @param {number} low @param {number} high */
  async part(run, series, way, low, high) {
    const { head, buffers } = await this.ask({ ask: "series", run, series, ...way, low, high });
    return readArray(head, buffers, this.listed(run, series)?.dims ?? []);
  }

  /** Whether so much is new that to thin all of it again is cheaper than to send it. @param {Known} known @param {SeriesEntry} listed @returns {boolean} */
  farBehind(known, listed) { return !known.growing && known.held !== null && (known.added > MOST_POINTS || listed.steps - known.held.of > MOST_POINTS); }

  /** Ask for the rows behind what is known of a series. @param {Known} known @param {SeriesEntry} listed */
  async grow(known, listed) {
    const held = known.held;
    if (!held || known.growing || listed.cursor <= held.cursor) return;
    known.growing = true;
    try {
      const { head, buffers } = await this.ask({ ask: "after", run: known.run, series: known.series, cursor: held.cursor, means: held.means });
      this.add(known, held, head, readArray(head, buffers, listed.dims));
    } catch { /* the next look tries again, and the run says what is wrong with it */ } finally { known.growing = false; }
  }

  /** Rows that nobody asked for: a notebook sends them while its kernel is too busy to answer. @param {any} head @param {any[]} buffers */
  pushed(head, buffers) {
    for (const known of this.arrays.values()) {
      const held = known.held, listed = this.listed(known.run, known.series);
      if (held && listed && known.run === head.run && known.series === head.series && String(held.means) === String(head.means) && held.cursor >= head.after && held.cursor < head.cursor) this.add(known, held, head, readArray(head, buffers, listed.dims));
    }
  }

  /** @param {Known} known @param {Held} held @param {any} head @param {Held} more */
  add(known, held, head, more) {
    const added = withRows(held, more);
    held.cursor = Math.max(held.cursor, head.cursor); held.of += added; known.added += added;
    if (added === more.steps.length) held.lost += more.lost; // of a scan all rows come again
    this.tell();
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
