// Screen "Claims": the ledger. Verdicts of this folder beside those of paper scale, what rests on what, the command.

const VERDICTS = ["holds", "holds as corrected", "only qualitative", "mixed", "not above its control", "undecided", "fails", "at paper scale", "not run"];

/** @param {string} verdict @returns {string} */
function verdictClass(verdict) { return `v-${verdict.replace(/ /g, "-")}`; }

/** @param {View} view */
function claimsScreen(view) {
  const { seen, source } = view;
  const put = (/** @type {Object<string, any>} */ given, step = false) => { seen.put(given, step); update(); };
  const search = h("input", { type: "search", autocomplete: "off", spellcheck: "false", placeholder: "erf, Thm 2, entropy", oninput: () => put({ find: search.value }) });
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Show only these verdicts" });
  const count = h("p", { class: "count", role: "status" }), list = h("div", { class: "claims" }), notice = h("p", { class: "notice", hidden: true });
  const element = h("div", {}, h("div", { class: "controls" }, h("label", {}, "Search ", search), chips, count), notice, list);
  /** @type {any[] | null} */
  let claims = null;
  /** @type {string | null} */
  let drawn = null;
  /** @type {Map<string, string[]>} */
  const uses = new Map();

  source.ask({ ask: "claims" }).then(({ head }) => {
    claims = head.claims;
    for (const claim of head.claims) for (const below of claim.uses ?? []) uses.set(below, [...(uses.get(below) ?? []), claim.id]);
    update();
  }).catch((error) => { notice.textContent = error.message; notice.hidden = false; });

  const best = (/** @type {any} */ claim) => (claim.paper && claim.paper.verdict !== "not run" ? claim.paper : claim.quick ?? claim.paper);

  async function update() {
    search.value = seen.get("find");
    if (claims === null) { count.textContent = "Reading the findings …"; return; }
    if (drawn === String(seen.words)) return; // a run changed, and nothing of what is seen here
    drawn = String(seen.words);
    const wanted = new Set(seen.all("verdict")), words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (/** @type {any} */ claim) => words.every((/** @type {string} */ word) => `${claim.id} ${claim.source} ${claim.says} ${claim.corrected ?? ""}`.toLowerCase().includes(word));
    const readable = claims.filter((claim) => !claim.fault), found = readable.filter(fits);
    const shown = found.filter((claim) => !wanted.size || wanted.has(best(claim).verdict) || claim.id === seen.get("claim"));
    makeChips(found, wanted);
    count.textContent = readable.length ? (shown.length === readable.length ? counted(readable.length, "claim") : `${shown.length} of ${counted(readable.length, "claim")}`) : "";
    const faults = claims.filter((claim) => claim.fault).map((claim) => claim.fault);
    notice.textContent = faults.length ? faults.join(" ") : readable.length ? "" : "There are no findings here; `joma verify` makes them.";
    notice.hidden = !notice.textContent;
    const focused = document.activeElement?.closest?.("[data-claim]")?.getAttribute("data-claim");
    const open = new Set([...list.querySelectorAll("details[open]")].map((one) => one.dataset.claim)); // stay open
    list.replaceChildren(...shown.slice(0, 400).map((claim) => entry(claim, open.has(claim.id))));
    const target = [...list.children].find((one) => one.getAttribute("data-claim") === (focused ?? ""));
    target?.querySelector("summary")?.focus();
  }

  /** @param {any[]} found @param {Set<string>} wanted */
  function makeChips(found, wanted) {
    const focused = document.activeElement?.getAttribute("data-verdict");
    chips.replaceChildren(...VERDICTS.map((verdict) => ({ verdict, many: found.filter((claim) => best(claim).verdict === verdict).length })).filter(({ verdict, many }) => many || wanted.has(verdict)).map(({ verdict, many }) => h("button", { type: "button", class: `chip ${verdictClass(verdict)}`, "data-verdict": verdict, "aria-pressed": wanted.has(verdict), onclick: () => { const now = new Set(wanted); if (now.has(verdict)) now.delete(verdict); else now.add(verdict); put({ verdict: [...now] }); } }, verdict, h("span", { class: "count" }, ` ${many}`))));
    if (focused) chips.querySelector(`[data-verdict="${focused}"]`)?.focus();
  }

  /** @param {any} claim @param {boolean} open */
  function entry(claim, open) {
    const one = h("details", { class: `claim ${verdictClass(best(claim).verdict)}`, "data-claim": claim.id },
      h("summary", {}, h("span", { class: "verdict" }, best(claim).told), h("span", { class: "source" }, claim.source), h("span", { class: "name" }, claim.id), h("span", { class: "says" }, claim.says), claim.corrected && h("span", { class: "corrected" }, claim.corrected)));
    const fill = () => { if (one.childElementCount === 1) one.append(details(claim)); };
    one.addEventListener("toggle", () => { if (one.open) fill(); });
    if (open) { fill(); one.open = true; }
    if (seen.get("claim") === claim.id) { fill(); one.open = true; requestAnimationFrame(() => one.scrollIntoView({ block: "nearest" })); }
    return one;
  }

  /** @param {any} claim */
  function details(claim) {
    const sizes = /** @type {[string, any][]} */ ([["quick scale", claim.quick], ["paper scale", claim.paper]]);
    const side = h("div", { class: "sides" }, ...sizes.map(([name, one]) => h("section", { class: one ? verdictClass(one.verdict) : "" }, h("h2", { class: "small" }, name), one ? h("p", { class: "verdict" }, one.told) : h("p", { class: "none" }, "nothing is recorded"), one?.brief && h("p", {}, one.brief), one?.control && h("p", { class: "none" }, `Control: ${one.control}`), one?.machine && h("p", { class: "none" }, `${one.machine}${one.created ? `, ${one.created.slice(0, 10)}` : ""}`))));
    const links = (/** @type {string} */ title, /** @type {string[]} */ ids) => (ids.length ? h("p", {}, `${title}: `, ...ids.flatMap((id, at) => [at ? ", " : "", claims?.some((other) => other.id === id) ? button(id, () => put({ claim: id, find: null, verdict: [] }, true), { class: "link" }) : id])) : null);
    const runs = source.runs.filter((one) => one.study === claim.study && !one.fault), run = runs.find((one) => one.status === "finished") ?? runs[0];
    const line = (claim.quick ?? claim.paper)?.command;
    return h("div", { class: "detail" }, h("p", {}, `Expected: ${claim.expected}`), side, run && run.status === "finished" && figures(run.id), links("Rests on", claim.uses ?? []), links("Used by", uses.get(claim.id) ?? []), run && h("p", {}, button(`Curves of ${run.id}`, () => view.go({ screen: "curves", run: [run.id], series: null }), { class: "link" })), line && command(line));
  }
  const drawings = /** @type {Map<string, Promise<any>>} */ (new Map());

  /** The figures of the study, as pictures: what is in one cannot act on the page. @param {string} run */
  function figures(run) {
    const box = h("div", { class: "figures", role: "status" }, h("p", { class: "none" }, "Drawing the figures of its study …"));
    const asked = drawings.get(run) ?? source.ask({ ask: "figures", run });
    drawings.set(run, asked);
    asked.then(({ head }) => box.replaceChildren(...(head.figures.length ? [h("p", { class: "none" }, `Figures of its study, drawn from ${run}:`)] : []), ...head.figures.map((/** @type {any} */ one) => h("figure", {}, h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Figure" }, h("img", { src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(one.svg)}`, alt: one.alt, style: { width: `${1.25 * Number(/viewBox="0 0 ([\d.]+)/.exec(one.svg)?.[1] ?? 480)}px` } })), h("figcaption", {}, one.caption)))))
      .catch((error) => { drawings.delete(run); box.replaceChildren(h("p", { class: "none" }, error.message)); });
    return box;
  }
  return { element, update, close() { /* nothing stays */ } };
}
