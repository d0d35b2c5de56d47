// The host of a page that has its data inside: answers come from the page itself.

{
  const data = JSON.parse(/** @type {HTMLElement} */ (document.getElementById("joma-data")).textContent ?? "{}");
  /** @type {Map<string, Set<Function>>} */
  const listeners = new Map();
  const bytes = (/** @type {string} */ text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
  const model = {
    get: (/** @type {string} */ name) => ({ index: data.index, address: true, about: data.about }[name]),
    set() { /* nothing changes */ }, save_changes() { /* nothing is kept */ },
    on(/** @type {string} */ what, /** @type {Function} */ call) { listeners.set(what, (listeners.get(what) ?? new Set()).add(call)); },
    off(/** @type {string} */ what, /** @type {Function | undefined} */ call) { if (call) listeners.get(what)?.delete(call); },
    send(/** @type {any} */ question) {
      const { buffers = [], ...head } = answerOf(data, question);
      queueMicrotask(() => listeners.get("msg:custom")?.forEach((call) => call({ id: question.id, ...head }, buffers.map(bytes))));
    },
  };
  render({ model, el: /** @type {HTMLElement} */ (document.getElementById("joma")) });
}
