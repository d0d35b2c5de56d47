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
    const answer = await fetch(`${question.ask}?${queryOf(question)}`, { cache: "no-store" });
    if (answer.headers.get("content-type")?.startsWith("application/json")) return [await answer.json(), []];
    return unpacked(await answer.arrayBuffer());
  };

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
  // The first event has all runs; later ones what is new.
  events.addEventListener("runs", (event) => {
    const index = { runs: withNews(state.index.runs, JSON.parse(event.data)), claims: true };
    state.lost = state.reading = false;
    become("index", index);
  });
  events.addEventListener("error", () => become("lost", true));
  events.addEventListener("open", () => { if (state.lost) become("lost", false); });
  render({ model, el: /** @type {HTMLElement} */ (document.getElementById("joma")) });
}
