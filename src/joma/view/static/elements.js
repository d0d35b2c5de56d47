// Small pieces of a page. Text is always set as text: names come from files that anybody may have written.

/** An element with attributes, listeners (on...) and children.
 * @param {string} tag @param {Object<string, any>} [given] @param {...(Node | string | null | undefined | false)} children @returns {any} */
function h(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : String(value));
  }
  element.append(.../** @type {(Node | string)[]} */ (children.filter((child) => child !== null && child !== undefined && child !== false)));
  return element;
}

/** An element of a drawing. @param {string} tag @param {Object<string, string>} given @returns {SVGElement} */
function drawing(tag, given) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
  return element;
}

/** A select with its label, whose options change only where they differ: a keyboard stays where it is.
 * @param {string} label @param {(value: string) => void} chosen */
function picker(label, chosen) {
  const select = h("select", { "aria-label": label, onchange: () => chosen(select.value) });
  const element = h("label", { class: "pick" }, h("span", {}, label), select);
  let known = "";
  return {
    element,
    /** @param {[string, string][]} options @param {string} value */
    set(options, value) {
      const now = JSON.stringify(options);
      if (now !== known) { known = now; select.replaceChildren(...options.map(([one, words]) => h("option", { value: one }, words))); }
      select.value = value;
      element.hidden = options.length < 2;
    },
  };
}

/** A checkbox with its label. @param {string} label @param {(on: boolean) => void} changed */
function tick(label, changed) {
  const box = h("input", { type: "checkbox", onchange: () => changed(box.checked) });
  return { element: h("label", { class: "tick" }, box, h("span", {}, label)), set(/** @type {boolean} */ on) { box.checked = on; } };
}

/** A button. @param {string} words @param {() => void} pressed @param {Object<string, any>} [given] */
function button(words, pressed, given = {}) {
  return h("button", { type: "button", onclick: pressed, ...given }, words);
}

/** A command line to copy. @param {string} line */
function command(line) {
  const copy = button("Copy", async () => {
    try { await navigator.clipboard.writeText(line); copy.textContent = "Copied"; } catch { copy.textContent = "Select it and copy"; }
  });
  return h("div", { class: "command" }, h("pre", {}, h("code", {}, line)), copy);
}

/** Give the reader a file. @param {string} name @param {Blob} blob */
function download(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = h("a", { href: address, download: name.replace(/[^\w.-]+/g, "-") });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** The colours of the page by name, each worked out once: a screen is made anew when the page turns dark.
 * @param {Element} root @returns {(name: string) => string} */
function palette(root) {
  const known = /** @type {Map<string, string>} */ (new Map());
  return (name) => { const found = known.get(name) ?? colour(root, name); known.set(name, found); return found; };
}

/** A colour of the page, as the browser works it out. @param {Element} element @param {string} name @returns {string} */
function colour(element, name) {
  const probe = h("span", { style: { color: `var(--${name})` }, hidden: true });
  element.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
