// The host of a live page: a server on this machine answers, and tells of changes by server-sent events.

{
  /** @type {Map<string, Set<Function>>} */
  const listeners = new Map();
  /** @type {Object<string, any>} */
  const state = { index: { runs: [], claims: false }, address: true, about: "Live: this page follows the files while they are written. It only reads.", lost: false, reading: true };
  const tell = (/** @type {string} */ what, /** @type {any[]} */ ...given) => listeners.get(what)?.forEach((call) => call(...given));
  const become = (/** @type {string} */ name, /** @type {any} */ value) => { state[name] = value; tell(`change:${name}`); };

  /** @param {any} question @returns {Promise<[any, ArrayBuffer[]]>} */
  const fetched = async (question) => {
    const words = new URLSearchParams();
    for (const [name, value] of Object.entries(question)) {
      if (Array.isArray(value)) value.forEach((one) => words.append(name, one));
      else if (name !== "id" && name !== "ask" && value !== undefined) words.set(name, value === true ? "1" : String(value));
    }
    const answer = await fetch(`${question.ask}?${words}`, { cache: "no-store" });
    if (answer.headers.get("content-type")?.startsWith("application/json")) return [await answer.json(), []];
    const bytes = await answer.arrayBuffer(), long = Number(new DataView(bytes).getBigUint64(0, true));
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, long))), steps = 8 + long, values = steps + 8 * head.shape[0];
    return [head, [bytes.slice(steps, values), bytes.slice(values)]];
  };

  /** A run with what changed of it. @param {any} run @param {{now: Object<string, any>, series: Object<string, any>, alarms: {gone: number, more: any[]}}} change */
  const changed = (run, { now, series, alarms }) => ({
    ...run, ...now,
    series: run.series.map((/** @type {any} */ one) => ({ ...one, ...series[one.name] })),
    alarms: run.alarms.slice(alarms.gone).concat(alarms.more),
  });

  const model = {
    get: (/** @type {string} */ name) => state[name],
    set() { /* nothing changes there */ }, save_changes() { /* nothing is kept */ },
    on(/** @type {string} */ what, /** @type {Function} */ call) { listeners.set(what, (listeners.get(what) ?? new Set()).add(call)); },
    off(/** @type {string} */ what, /** @type {Function | undefined} */ call) { if (call) listeners.get(what)?.delete(call); },
    send(/** @type {any} */ question) {
      fetched(question).then(([head, buffers]) => tell("msg:custom", { ...head, id: question.id }, buffers))
        .catch(() => tell("msg:custom", { id: question.id, fault: "The server does not answer; is `joma view` still running?" }, []));
    },
  };

  const events = new EventSource("events");
  // The first event has all runs; later ones new runs, of others what changed, and the order of all (see news.py).
  events.addEventListener("runs", (event) => {
    const { order, runs, changes } = JSON.parse(event.data), known = new Map(state.index.runs.map((/** @type {any} */ run) => [run.id, run]));
    for (const run of runs) known.set(run.id, run);
    for (const { id, ...change } of changes) { const run = known.get(id); if (run) known.set(id, changed(run, change)); }
    const index = { runs: order.map((/** @type {string} */ id) => known.get(id)).filter(Boolean), claims: true };
    state.lost = state.reading = false;
    become("index", index);
  });
  events.addEventListener("error", () => become("lost", true));
  events.addEventListener("open", () => { if (state.lost) become("lost", false); });
  render({ model, el: /** @type {HTMLElement} */ (document.getElementById("joma")) });
}
