// A few curves in a window of their own, to zoom into and to read off: the cards of the report open it.

/**
 * Curves as a card of the report has them. scale: whose numbers these are. A colour may be "ink", that of text.
 * @typedef {{scale: string, y: string, x: string, about: string, log_x: boolean, log_y: boolean, lines: {label: string, colour: string, x: number[], y: number[], low: number[], high: number[], dashes: string}[]}} Panel
 */

const DASHES = /** @type {Object<string, number[]>} */ ({ dashed: [7, 4], dotted: [2, 4] });

/** @param {string} title @param {Panel[]} panels @param {string | undefined} theme light, dark, or as the system has it */
function showPanels(title, panels, theme) {
  const close = button("Close", () => dialog.close());
  const dialog = h("dialog", { class: "joma-view opened", "aria-label": title, onclose: () => { chart.close(); dialog.remove(); } });
  if (theme) dialog.dataset.theme = theme;
  document.body.append(dialog); // before the chart, which takes its colours from there
  let chosen = 0;
  /** @type {{low?: number, high?: number}} */
  let range = {};
  const chart = new Chart(dialog, (low, high) => { range = low === null || high === null ? {} : { low, high }; draw(); });
  const keys = new Keys(() => draw()), about = h("p", { class: "note" });
  const scale = picker("Scale", (at) => { chosen = Number(at); fresh(); });
  const logX = tick("log x", (on) => { logs.x = on; range = {}; draw(); }), logY = tick("log y", (on) => { logs.y = on; draw(); }), logs = { x: false, y: false };
  const whole = button("Whole range", () => { range = {}; draw(); });
  dialog.append(h("header", {}, h("h2", {}, title), close), h("div", { class: "controls" }, scale.element, logX.element, logY.element, whole, savers(chart, () => `joma-${title}`)), chart.element, keys.element, about);
  const fresh = () => { range = {}; logs.x = panels[chosen].log_x; logs.y = panels[chosen].log_y; draw(); };

  function draw() {
    const panel = panels[chosen];
    scale.set(panels.map((one, at) => /** @type {[string, string]} */ ([String(at), one.scale])), String(chosen));
    logX.set(logs.x); logY.set(logs.y);
    whole.hidden = range.low === undefined;
    const curves = panel.lines.map((line) => ({ label: line.label, x: line.x, y: line.y, colour: line.colour, dashes: DASHES[line.dashes], hidden: keys.hidden.has(line.label), ...(line.low.length ? { low: line.low, high: line.high } : {}) }));
    chart.draw({ curves, x: panel.x, y: panel.y, logX: logs.x, logY: logs.y, ...range });
    keys.set(curves);
    about.textContent = `${panel.scale}: ${panel.about}. Drag to zoom, arrow keys read.`;
  }
  dialog.showModal();
  fresh();
}
