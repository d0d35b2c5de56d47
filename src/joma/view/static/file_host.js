// The host of a page that has its data inside: answers come from the page itself.

{
  const data = JSON.parse(/** @type {HTMLElement} */ (document.getElementById("joma-data")).textContent ?? "{}");
  /** @type {Map<string, Set<Function>>} */
  const listeners = new Map();
  const bytes = (/** @type {string} */ text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
  const answerTo = (/** @type {any} */ question) => {
    if (question.ask === "titles") return { titles: data.titles };
    if (question.ask === "figures") return data.figures[question.run] ?? { figures: [] };
    if (question.ask === "claims") return { claims: data.claims };
    if (question.ask === "series") {
      const found = data.series[question.run]?.[question.series] ?? { fault: `${question.series} of ${question.run} is not in this page` };
      // Means over all steps are not in a page: whole steps are, and the reader takes the mean of those.
      return (question.whole || question.means?.length) && found.whole ? { ...found.whole, means: [] } : { ...found, means: [] };
    }
    return { fault: "a page with its data inside does not grow" };
  };
  const model = {
    get: (/** @type {string} */ name) => ({ index: data.index, address: true, about: data.about }[name]),
    set() { /* nothing changes */ }, save_changes() { /* nothing is kept */ },
    on(/** @type {string} */ what, /** @type {Function} */ call) { listeners.set(what, (listeners.get(what) ?? new Set()).add(call)); },
    off(/** @type {string} */ what, /** @type {Function | undefined} */ call) { if (call) listeners.get(what)?.delete(call); },
    send(/** @type {any} */ question) {
      const { buffers = [], ...head } = answerTo(question);
      queueMicrotask(() => listeners.get("msg:custom")?.forEach((call) => call({ id: question.id, ...head }, buffers.map(bytes))));
    },
  };
  render({ model, el: /** @type {HTMLElement} */ (document.getElementById("joma")) });
}
