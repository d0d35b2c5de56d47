// Screen "Runs": what there is, how it stands, how old it is, on which machine it was made.

/** @param {View} view */
function runsScreen(view) {
  const search = h("input", { type: "search", autocomplete: "off", spellcheck: "false", placeholder: "name, study, state", oninput: () => { view.seen.put({ find: search.value }); update(); } });
  const count = h("p", { class: "count", role: "status" });
  const body = h("tbody");
  const columns = [["name", "Run"], ["study", "Study"], ["state", "State"], ["last", "Last step"], ["written", "Written"], ["machine", "Machine"]];
  const heads = columns.map(([key, words]) => ({ key, cell: h("th", { scope: "col" }, button(words, () => { const [by, down] = order(); view.seen.put({ sort: by === key && !down ? `-${key}` : key }); update(); })) }));
  const show = button("Show the curves of those chosen", () => view.go({ screen: "curves" }));
  const all = h("div", {}, h("div", { class: "controls" }, h("label", {}, "Search ", search), show, count), h("div", { class: "wide" }, h("table", { class: "runs" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "unseen" }, "Chosen")), ...heads.map((one) => one.cell))), body)));
  /** @returns {[string, boolean]} */
  const order = () => { const given = view.seen.get("sort"); return [given.replace(/^-/, ""), given.startsWith("-")]; };
  const machineOf = (/** @type {RunEntry} */ run) => run.machine?.gpu ?? [run.machine?.cpu, run.machine?.cores && counted(run.machine.cores, "core")].filter(Boolean).join(", ");

  function update() {
    search.value = view.seen.get("find");
    const [by, down] = order(), words = search.value.toLowerCase().split(/\s+/).filter(Boolean), runs = view.source.runs;
    const fitting = runs.filter((run) => words.every((/** @type {string} */ word) => `${run.id} ${run.study} ${run.state} ${run.fault ?? ""} ${machineOf(run)}`.toLowerCase().includes(word)));
    const value = (/** @type {RunEntry} */ run) => (by === "machine" ? machineOf(run) : by === "name" ? run.id : run[by] ?? "");
    if (by) fitting.sort((a, b) => { const [one, other] = [value(a), value(b)]; return (one < other ? -1 : one > other ? 1 : 0) * (down ? -1 : 1); });
    for (const { key, cell } of heads) cell.setAttribute("aria-sort", key === by ? (down ? "descending" : "ascending") : "none");
    count.textContent = fitting.length === runs.length ? counted(runs.length, "run") : `${fitting.length} of ${counted(runs.length, "run")}`;
    const focused = document.activeElement?.getAttribute("data-run");
    const now = fitting.map(row);
    if (now.length !== body.children.length || now.some((one, at) => one !== body.children[at])) body.replaceChildren(...now);
    if (focused) [...body.querySelectorAll("[data-run]")].find((one) => one.getAttribute("data-run") === focused)?.focus();
    show.hidden = !runs.length;
  }

  const rows = /** @type {WeakMap<RunEntry, {sign: string, row: any}>} */ (new WeakMap());

  /** The row of a run, made anew only where it changed. @param {RunEntry} run */
  function row(run) {
    const sign = JSON.stringify([view.chosenRuns().includes(run.id), age(run)]), known = rows.get(run);
    if (known && known.sign === sign) return known.row;
    const made = newRow(run);
    rows.set(run, { sign, row: made });
    return made;
  }

  /** @param {RunEntry} run */
  function age(run) { return run.written ? `${inTime(Date.now() / 1000 - run.written)} ago` : ""; }

  /** @param {RunEntry} run */
  function newRow(run) {
    if (run.fault) return h("tr", {}, h("td"), h("th", { scope: "row" }, run.id), h("td", { colspan: 5, class: "fault" }, `cannot be read: ${run.fault}`));
    const chosen = view.chosenRuns().includes(run.id);
    const box = h("input", { type: "checkbox", "data-run": run.id, "aria-label": `Choose ${run.id}`, onchange: () => { const now = new Set(view.chosenRuns()); if (box.checked) now.add(run.id); else now.delete(run.id); view.seen.put({ run: [...now] }); } });
    box.checked = chosen;
    const link = button(run.id, () => view.go({ screen: cardsOf(run).length > 1 ? "overview" : "curves", run: [run.id] }), { class: "link" });
    const alarms = run.alarm_count ? h("span", { class: "v-fails verdict" }, ` ${counted(run.alarm_count, "alarm")}`) : null;
    const left = run.left_out?.length ? h("span", { class: "v-not-run verdict" }, ` ${run.left_out.length} left out`) : null;
    return h("tr", {}, h("td", {}, box), h("th", { scope: "row" }, link), h("td", { "data-label": "Study" }, run.study), h("td", { "data-label": "State", class: run.status === "failed" ? "fault" : run.state === "being written" ? "alive" : "" }, run.state, alarms, left), h("td", { "data-label": "Last step" }, inDigits(run.last)), h("td", { "data-label": "Written" }, age(run)), h("td", { "data-label": "Machine" }, machineOf(run)));
  }
  return { element: all, update, close() { /* nothing stays */ } };
}
