"use strict";
// The page is complete without this script: it adds the theme switch, sorting, filters and copy buttons.

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");

// Some browsers refuse storage to files; the choice then lasts as long as the page.
const stored = { get: () => { try { return localStorage.getItem("joma-theme"); } catch { return null; } },
                 set: (theme) => { try { localStorage.setItem("joma-theme", theme); } catch { /* not kept */ } } };
if (["light", "dark"].includes(stored.get())) root.dataset.theme = stored.get(); // before the first paint

document.addEventListener("DOMContentLoaded", () => {
  switchTheme(document.getElementById("theme"));
  ledger(document.querySelector("table.ledger"));
  document.querySelectorAll(".command").forEach(copyable);
});

function switchTheme(button) {
  const current = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");
  const label = () => { button.textContent = current() === "dark" ? "Light page" : "Dark page"; };
  button.addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    stored.set(root.dataset.theme);
    label();
  });
  dark.addEventListener("change", label);
  button.hidden = false;
  label();
}

function ledger(table) {
  const body = table.tBodies[0];
  const rows = [...body.rows]; // in the order of the report
  const heads = [...table.tHead.rows[0].cells];
  const chips = [...document.querySelectorAll(".chip")];
  const search = document.getElementById("search");
  const study = document.getElementById("study");
  const clear = document.getElementById("clear");
  const shown = document.getElementById("shown");
  const text = new Map(rows.map((row) => [row, plain(`${row.textContent} ${row.dataset.also}`)]));
  const state = { verdicts: new Set(), sort: "", down: false }; // search and study keep their own
  let writing;

  function show() {
    const words = plain(search.value).split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const fits = (!state.verdicts.size || state.verdicts.has(row.dataset.verdict))
        && (!study.value || row.dataset.study === study.value)
        && words.every((word) => text.get(row).includes(word));
      row.hidden = !fits;
      count += fits;
    }
    shown.textContent = `${count} of ${rows.length} claims`;
    clear.hidden = !(state.verdicts.size || study.value || words.length);
    for (const chip of chips) chip.setAttribute("aria-pressed", state.verdicts.has(chip.dataset.verdict));
    for (const head of heads) {
      if (head.dataset.key === state.sort) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    const column = heads.findIndex((head) => head.dataset.key === state.sort);
    body.append(...(column < 0 ? rows : [...rows].sort(byColumn(column, state.down))));
  }

  // The state lives behind "#?", which no section's anchor begins with, so both kinds of link work.
  function write() {
    const query = new URLSearchParams();
    for (const verdict of state.verdicts) query.append("verdict", verdict);
    if (search.value.trim()) query.set("search", search.value.trim());
    if (study.value) query.set("study", study.value);
    if (state.sort) query.set("sort", (state.down ? "-" : "") + state.sort);
    history.replaceState(null, "", query.size ? `#?${query}` : location.pathname + location.search);
  }

  function read() {
    if (location.hash && !location.hash.startsWith("#?")) return false; // a section: what is shown stays
    const query = new URLSearchParams(location.hash.slice(2));
    const sort = query.get("sort") ?? "";
    const known = (list, given) => list.includes(given) ? given : "";
    state.verdicts = new Set(query.getAll("verdict").filter((v) => chips.some((chip) => chip.dataset.verdict === v)));
    state.down = sort.startsWith("-");
    state.sort = known(heads.map((head) => head.dataset.key), sort.replace("-", ""));
    search.value = query.get("search") ?? "";
    study.value = known([...study.options].map((option) => option.value), query.get("study"));
    return query.size > 0;
  }

  function changed() {
    show();
    clearTimeout(writing); // browsers limit how often the address may change
    writing = setTimeout(write, 150);
  }

  for (const chip of chips) {
    chip.disabled = false;
    chip.addEventListener("click", () => {
      if (!state.verdicts.delete(chip.dataset.verdict)) state.verdicts.add(chip.dataset.verdict);
      changed();
    });
  }
  for (const head of heads) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => { // up, down, the report's own order
      const same = state.sort === head.dataset.key;
      state.sort = same && state.down ? "" : head.dataset.key;
      state.down = same && !state.down;
      changed();
    });
  }
  search.addEventListener("input", changed);
  study.addEventListener("change", changed);
  search.form.addEventListener("submit", (event) => event.preventDefault());
  search.form.addEventListener("reset", () => { state.verdicts.clear(); setTimeout(changed); }); // after the fields
  search.form.hidden = false;
  addEventListener("hashchange", () => { read(); show(); });
  if (read()) document.getElementById("verdicts").scrollIntoView();
  show();
}

// One spelling for what people type and what is printed: v² and v2, Δ and δ.
function plain(words) {
  return words.normalize("NFKC").toLowerCase();
}

// Numbers before words, words naturally (Thm 2 before Thm 10), what is missing last in both directions.
function byColumn(column, down) {
  const natural = new Intl.Collator("en", { numeric: true });
  const key = (row) => {
    const cell = row.cells[column];
    if (cell.classList.contains("empty")) return null;
    return cell.dataset.sort === undefined ? cell.textContent.trim() : Number(cell.dataset.sort);
  };
  const way = down ? -1 : 1;
  return (first, second) => {
    const [a, b] = [key(first), key(second)];
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a !== typeof b) return way * (typeof a === "number" ? -1 : 1);
    return way * (typeof a === "number" ? compare(a, b) : natural.compare(a, b));
  };
}

function compare(a, b) { // NaN after all numbers
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
  return a < b ? -1 : a > b ? 1 : 0;
}

function copyable(box) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const code = box.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch { // no clipboard for this page: leave the text selected, ready to be copied
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  box.append(button);
}
