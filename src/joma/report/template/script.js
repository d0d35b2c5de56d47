"use strict";
// The page is complete without this script: it adds the theme switch, the search and copy buttons, and opens what a
// link points to. Studies of a large page lie in noscript elements, text to a browser that runs scripts: they become
// part of the page when somebody opens, searches or prints them.

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");

// Some browsers refuse storage to files; the choice then lasts as long as the page.
const stored = { get: () => { try { return localStorage.getItem("joma-theme"); } catch { return null; } },
                 set: (theme) => { try { localStorage.setItem("joma-theme", theme); } catch { /* not kept */ } } };
if (["light", "dark"].includes(stored.get())) root.dataset.theme = stored.get(); // before the first paint

document.addEventListener("DOMContentLoaded", () => {
  switchTheme(document.getElementById("theme"));
  enliven(document);
  document.addEventListener("toggle", (event) => { if (event.target.open) wake(event.target); }, true);
  const form = document.querySelector(".controls"); // a page of one study has none
  const search = form && searchable(form);
  search?.read();
  followed(() => search?.read(), (target) => search?.uncover(target));
  printable();
});

// What sleeps inside a box becomes part of the page.
function wake(box) {
  const asleep = [...box.querySelectorAll("noscript")];
  for (const one of asleep) {
    const read = document.createElement("template");
    read.innerHTML = one.textContent;
    one.replaceWith(read.content);
  }
  if (asleep.length) enliven(box);
}

function enliven(box) {
  box.querySelectorAll(":not(.answer-use) > .command:not(:has(button))").forEach(copyable);
  box.querySelectorAll("figure .picture, .thumb").forEach(scrollable);
  box.querySelectorAll(".card .thumb:not(:has(button))").forEach(openable);
  if (typeof jomaPlayground !== "undefined") jomaPlayground.start(box); // pages of scans have none
}

// The element of that name, woken where it sleeps.
function found(name) {
  const asleep = () => [...document.querySelectorAll("noscript")].find((one) => one.textContent.includes(` id="${name}"`));
  if (name && !document.getElementById(name)) wake(asleep()?.parentElement ?? document.createElement("p"));
  return document.getElementById(name);
}

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

function searchable(form) {
  const studies = [...document.querySelectorAll(".study")].map((section) => ({
    section,
    folded: section.querySelector(".claims"),
    claims: [],
  }));
  const chips = [...form.querySelectorAll(".chip")];
  const field = document.getElementById("search");
  const clear = document.getElementById("clear");
  const shown = document.getElementById("shown");
  const text = new Map();
  const verdicts = new Set();
  let writing;

  // All claims wake when somebody searches for the first time; figures sleep on.
  function readClaims() {
    for (const study of studies) {
      const { section, folded } = study;
      if (!folded) continue;
      wake(folded);
      study.claims = [...folded.querySelectorAll(".claim")];
      const name = `${section.querySelector("h2").textContent} ${section.querySelector(".eyebrow span").textContent}`;
      for (const claim of study.claims) text.set(claim, plain(`${claim.textContent} ${name}`));
    }
  }

  const words = () => plain(field.value).split(/\s+/).filter(Boolean);
  const searching = () => verdicts.size > 0 || words().length > 0;

  function show() {
    const wanted = words();
    const active = searching();
    if (active && !text.size) readClaims();
    let count = 0;
    for (const { section, folded, claims } of studies) {
      let here = 0;
      for (const claim of claims) {
        const fits = (!verdicts.size || verdicts.has(claim.dataset.verdict))
          && wanted.every((word) => text.get(claim).includes(word));
        claim.hidden = !fits;
        here += fits;
      }
      section.hidden = active && !here;
      if (folded && active !== root.classList.contains("searching")) folded.open = active;
      count += here;
    }
    root.classList.toggle("searching", active);
    clear.hidden = !active;
    shown.textContent = active ? said(count) : "";
    for (const chip of chips) chip.setAttribute("aria-pressed", verdicts.has(chip.dataset.verdict));
  }

  function said(count) {
    if (count) return `${count} of ${text.size} claims`;
    const typed = field.value.trim();
    return `No claim matches${typed ? ` “${typed}”` : ""}${verdicts.size ? ` among: ${[...verdicts].join(", ")}` : ""}.`;
  }

  // The state lives behind "#?", which no anchor begins with, so both kinds of link work.
  function write() {
    const query = new URLSearchParams();
    for (const verdict of verdicts) query.append("verdict", verdict);
    if (field.value.trim()) query.set("search", field.value.trim());
    history.replaceState(null, "", query.size ? `#?${query}` : location.pathname + location.search);
  }

  function read() {
    clearTimeout(writing);
    if (location.hash && !location.hash.startsWith("#?")) return; // an anchor: what is shown stays
    const query = new URLSearchParams(location.hash.slice(2));
    verdicts.clear();
    for (const verdict of query.getAll("verdict")) {
      if (chips.some((chip) => chip.dataset.verdict === verdict)) verdicts.add(verdict);
    }
    field.value = query.get("search") ?? "";
    show();
    if (searching()) document.getElementById("claims").scrollIntoView();
  }

  function changed() {
    show();
    clearTimeout(writing); // browsers limit how often the address may change
    writing = setTimeout(write, 150);
  }

  // A search may hide what a link points to: then the search ends.
  function uncover(target) {
    if (!searching() || !target.closest(".study") || target.checkVisibility()) return;
    clearTimeout(writing);
    field.value = "";
    verdicts.clear();
    show();
  }

  for (const chip of chips) {
    chip.addEventListener("click", () => {
      if (!verdicts.delete(chip.dataset.verdict)) verdicts.add(chip.dataset.verdict);
      changed();
    });
  }
  field.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => { verdicts.clear(); setTimeout(changed); }); // after the field
  form.hidden = false;
  return { read, uncover };
}

// What a link points to is opened, with all that it is folded into.
function followed(changed, uncover) {
  const reveal = () => {
    const target = location.hash.startsWith("#?") ? null : found(named(decodeURIComponent(location.hash.slice(1))));
    if (!target) return;
    uncover(target);
    for (let at = target; at; at = at.parentElement) if (at instanceof HTMLDetailsElement) at.open = true;
    const body = target.matches(".study") && target.querySelector(":scope > .body"); // a study opens with what came out
    if (body) { body.open = true; wake(body); }
    target.scrollIntoView({ behavior: "instant" }); // what wakes on the way would lead a slow scroll astray
  };
  addEventListener("hashchange", () => { changed(); reveal(); });
  document.addEventListener("click", (event) => { // the same link once more: the address does not change
    if (event.target.closest("a")?.getAttribute("href") === location.hash && location.hash) reveal();
  });
  reveal();
}

// A claim can be named as findings.json names it, thm2/who-wins, or by its anchor, study-thm2-who-wins.
function named(hash) {
  return hash.includes("/") ? `study-${hash.toLowerCase().replace(/[^a-z0-9]+/g, "-")}` : hash;
}

// One spelling for what people type and what is printed: v² and v2, Δ and δ.
function plain(words) {
  return words.normalize("NFKC").toLowerCase();
}

// The curves of a card can be opened: zoomed into, read off, and saved.
function openable(box) {
  const numbers = box.querySelector("script.numbers");
  if (!numbers || typeof jomaCharts === "undefined") return;
  const title = box.parentElement.querySelector("h3").textContent;
  const open = () => jomaCharts.showPanels(title, JSON.parse(numbers.textContent), root.dataset.theme);
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Open the curves";
  button.setAttribute("aria-label", `Open the curves: ${title}`);
  button.addEventListener("click", open);
  box.querySelector(".panels").addEventListener("click", open); // for a pointer; the button is for all
  box.querySelector(".panels").classList.add("opens");
  box.append(button);
}

// A figure wider than the screen can be reached, and then moved, with the keyboard.
function scrollable(box) {
  new ResizeObserver(() => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }).observe(box);
}

// Paper has no folds, and nothing sleeps on it.
function printable() {
  let closed = [];
  addEventListener("beforeprint", () => {
    wake(document);
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
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
