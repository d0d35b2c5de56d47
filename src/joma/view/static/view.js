// The module: `render({model, el})`, as anywidget has it. A host gives the model, we draw into the element.

/** @typedef {{root: HTMLElement, source: Source, seen: Seen, dark: boolean, chosenRuns: () => string[], go: (given: Object<string, any>) => void}} View */

const SCREENS = /** @type {Object<string, [string, (view: View) => {element: HTMLElement, update: () => any, close: () => void}]>} */ ({
  runs: ["Runs", runsScreen], overview: ["Overview", overviewScreen], curves: ["Curves", curvesScreen], heads: ["Heads", headsScreen], split: ["Split", splitScreen], claims: ["Claims", claimsScreen],
});

/** Some browsers refuse storage to files; the choice then lasts as long as the page. */
const theme = {
  /** @returns {string | null} */
  get() { try { return localStorage.getItem("joma-theme"); } catch { return null; } },
  /** @param {string} name */
  set(name) { try { localStorage.setItem("joma-theme", name); } catch { /* not kept */ } },
};

/** @param {{model: Model, el: HTMLElement}} given @returns {() => void} what takes everything away again */
function render({ model, el }) {
  const source = new Source(model), inAddress = Boolean(model.get("address"));
  const tabs = /** @type {Map<string, HTMLButtonElement>} */ (new Map());
  const place = h("main", { tabindex: -1 }), status = h("p", { class: "live", role: "status" });
  const night = button("Dark page", () => { root.dataset.theme = isDark() ? "light" : "dark"; theme.set(root.dataset.theme); label(); screen?.close(); name = ""; show(); });
  const nav = h("nav", { "aria-label": "Screens" }, h("ul", {}, ...Object.entries(SCREENS).map(([key, [words]]) => { const tab = button(words, () => go({ screen: key })); tabs.set(key, tab); return h("li", {}, tab); })));
  const root = h("div", { class: "joma-view" }, h("header", {}, h("p", { class: "name" }, "joma view"), nav, status, night), place, h("footer", {}, h("p", {}, model.get("about") ?? "")));
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => { night.textContent = isDark() ? "Light page" : "Dark page"; };
  if (inAddress && ["light", "dark"].includes(theme.get() ?? "")) root.dataset.theme = theme.get() ?? "";
  night.hidden = !inAddress; // a notebook has its own
  label();
  const seen = new Seen(inAddress, () => show());
  if (model.get("screen") && !seen.get("screen")) seen.words.set("screen", model.get("screen"));

  /** @type {{element: HTMLElement, update: () => any, close: () => void} | null} */
  let screen = null;
  let name = "";
  /** @type {View} */
  const view = {
    root, source, seen,
    get dark() { return isDark(); },
    chosenRuns() {
      const known = new Set(source.runs.filter((run) => !run.fault).map((run) => run.id)), chosen = seen.all("run").filter((id) => known.has(id));
      return chosen.length ? chosen : source.runs.filter((run) => !run.fault && run.series?.length).slice(0, 1).map((run) => run.id);
    },
    go,
  };

  /** @param {Object<string, any>} given */
  function go(given) {
    const fresh = given.series !== undefined ? Object.fromEntries([...seen.words.keys()].filter((key) => key.startsWith("by.")).map((key) => [key, null])) : {};
    seen.put({ low: null, high: null, x: null, ...fresh, ...given }, true);
    show();
  }

  function show() {
    const wanted = model.get("reading") && !seen.get("screen") ? "runs" : Object.hasOwn(SCREENS, seen.get("screen")) ? seen.get("screen") : source.runs.length === 1 && !source.runs[0].fault ? (cardsOf(source.runs[0]).length > 1 ? "overview" : "curves") : "runs";
    if (wanted !== name) {
      screen?.close();
      name = wanted;
      screen = SCREENS[wanted][1](view);
      place.replaceChildren(h("h1", { class: "unseen" }, SCREENS[wanted][0]), screen.element);
      for (const [key, tab] of tabs) { if (key === wanted) tab.setAttribute("aria-current", "page"); else tab.removeAttribute("aria-current"); }
    }
    update();
  }

  function update() {
    if (!seen.get("screen") && name === "runs" && source.runs.length === 1 && !source.runs[0].fault) { show(); return; } // all of what there is at once
    const alive = source.runs.filter((run) => run.state === "being written").length;
    const now = model.get("reading") ? "Reading the runs …" : model.get("lost") ? "The server does not answer." : alive ? `${counted(alive, "run")} being written` : "";
    if (status.textContent !== now) status.textContent = now;
    screen?.update();
  }

  const again = () => { if (!root.dataset.theme) { label(); screen?.close(); name = ""; show(); } };
  system.addEventListener("change", again);
  model.on("change:lost", update);
  let waiting = false;
  const soon = () => { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; if (el.contains(root)) update(); }); } }; // once per frame, however much is told
  source.listeners.add(soon);
  el.replaceChildren(root);
  show();
  return () => { screen?.close(); source.close(); seen.close(); system.removeEventListener("change", again); model.off("change:lost", update); el.replaceChildren(); };
}

export default { render };
