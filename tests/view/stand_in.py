"""A host that stands in for joma's own: the whole module in one page, with runs and numbers that a test makes up.

A test changes what there is, goes from one view to the next by the address, and looks when nothing is under way any
more. So hundreds of views cost one page, and no test looks at what is there for a moment only.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from joma.view.module import module, style
from joma.view.packing import packed
from joma.view.thinning import mean_over, thin, whole_steps

NOW = 1_000_000_000
"""The time of the page, in seconds: ages do not hang on a clock."""
START = """async (state) => {
  Date.now = () => 1000 * state.now;
  URL.createObjectURL = (blob) => { window.saved = blob; return 'data:,'; };
  HTMLAnchorElement.prototype.click = () => {}; // nothing is downloaded: `saved` holds it
  URL.revokeObjectURL = () => {};
  const calls = new Map();
  const bytes = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer;
  let pending = 0;
  const model = {
    get: (name) => state[name], set() {}, save_changes() {},
    on: (what, call) => calls.set(what, call), off() {},
    send: async (question) => {
      pending++;
      const [head, buffers] = await askPython(question);
      pending--;
      calls.get('msg:custom')({ ...head, id: question.id }, buffers.map(bytes));
    },
  };
  window.push = (head, buffers) => calls.get('msg:custom')(head, buffers.map(bytes));
  window.become = (index) => { state.index = index; calls.get('change:index')(); };
  window.settled = async () => { // what is told is drawn with the next frame, and drawing may ask
    for (let calm = 0, turns = 0; calm < 3; calm = pending ? 0 : calm + 1) {
      if (++turns > 2000) throw new Error('the page does not come to rest');
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    }
  };
  window.go = async (words) => {
    const hash = '#?' + words;
    if (location.hash !== hash) {
      await new Promise((done) => { addEventListener('hashchange', done, { once: true }); location.hash = hash; });
    }
    await settled();
  };
  window.away = jomaRender({ model, el: document.getElementById('cell') });
}"""


class StandIn:
    """Runs that a test makes up, and the page that shows them.

    - runs: entries of the index, in their order
    - rows: by run and series its steps and rows, in the order in which they were written
    - points: of a curve that are sent at a time
    - again: whether all rows come where new ones are asked for, as those of a scan do
    - asked: every question of the page
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.runs: list[dict[str, Any]] = []
        self.rows: dict[tuple[str, str], tuple[list[int], list[np.ndarray]]] = {}
        self.claims: list[dict[str, Any]] = []
        self.points = 2000
        self.again = False
        self.made = 0
        self.asked: list[dict[str, Any]] = []

    def start(self) -> None:
        self.page.evaluate(START, {"index": self._index(), "address": True, "now": NOW})

    def _index(self) -> dict[str, Any]:
        return {"runs": self.runs, "claims": True}

    def run(self, id: str, **given: Any) -> dict[str, Any]:
        """A run without series. No other one is the same, though its name may be."""
        self.made += 1
        usual = {"study": "demo", "status": "finished", "state": "finished", "written": NOW - 60, "machine": {},
                 "series": [], "alarms": [], "left_out": [], "last": None}  # fmt: skip
        entry = {"id": id, "name": id, "identity": str(self.made), **usual, **given}
        entry.setdefault("alarm_count", len(entry["alarms"]))
        self.runs.append(entry)
        return entry

    def series(
        self, run: dict[str, Any], name: str, steps: Iterable[int], values: Any, dims: dict[str, Any] | None = None
    ) -> None:
        """A series of a run. values: (steps, ...). dims: names with labels, or None where places are counted."""
        array = np.asarray(values, float)
        sizes = [
            {"name": dim, "size": size, "labels": labels}
            for (dim, labels), size in zip((dims or {}).items(), array.shape[1:], strict=True)
        ]
        run["series"] = [one for one in run["series"] if one["name"] != name] + [{"name": name, "dims": sizes}]
        self.rows[run["id"], name] = ([], [])
        self.write(run, name, steps, array)

    def write(self, run: dict[str, Any], name: str, steps: Iterable[int], values: Any) -> None:
        """Further rows, in the order in which they come."""
        known, rows = self.rows[run["id"], name]
        known += steps
        rows += list(np.asarray(values, float))
        counts = {"steps": len(known), "first": min(known), "last": max(known), "cursor": len(known)}
        run["series"] = [{**one, **counts} if one["name"] == name else one for one in run["series"]]
        run["last"] = max(each["last"] for each in run["series"])

    def answer(self, question: dict[str, Any]) -> list[Any]:
        self.asked.append(question)
        kind = question["ask"]
        if kind == "titles":
            return [{"titles": {"spread": "spread of logits"}}, []]
        if kind == "claims":
            return [{"claims": self.claims}, []]
        if kind == "figures":
            return [{"figures": []}, []]
        found = self.rows_of(question)
        return [found.head, [base64.b64encode(each).decode() for each in found.buffers]]

    def rows_of(self, question: dict[str, Any]) -> Any:
        """What a feed answers."""
        run, name, means = question["run"], question["series"], question.get("means", [])
        known, rows = self.rows[run, name]
        entry = next(one for each in self.runs if each["id"] == run for one in each["series"] if one["name"] == name)
        axes = tuple(1 + at for at, dim in enumerate(entry["dims"]) if dim["name"] in means)
        words = {"run": run, "series": name, "cursor": len(known), "means": list(means)}
        if question["ask"] == "after":
            new = slice(0 if self.again else question["cursor"], None)
            values = mean_over(np.array(rows[new]), axes)
            return packed(np.array(known[new]), values, after=question["cursor"], **words)
        order = np.argsort(known)
        steps, values = np.array(known)[order], mean_over(np.array(rows)[order], axes)
        seen = (steps >= question.get("low", -np.inf)) & (steps <= question.get("high", np.inf))
        at, kept = (whole_steps if question.get("whole") else thin)(steps[seen], values[seen], self.points)
        return packed(at, kept, thinned=bool(len(at) < seen.sum()), of=int(seen.sum()), **words)

    def forget(self) -> None:
        """No runs; the page starts anew with those that come."""
        self.runs, self.rows, self.claims, self.points, self.again = [], {}, [], 2000, False
        self.asked.clear()

    def show(self, words: str) -> None:
        """Go to a view; back when nothing is under way."""
        self.page.evaluate("words => go(words)", words)

    def tell(self) -> None:
        """The index as it is now; back when nothing is under way."""
        self.page.evaluate("async index => { become(index); await settled(); }", self._index())

    def push(self, run: str, series: str, cursor: int, means: Sequence[str] = ()) -> None:
        """Rows behind a cursor that nobody asked for."""
        found = self.rows_of({"ask": "after", "run": run, "series": series, "cursor": cursor, "means": list(means)})
        letters = [base64.b64encode(each).decode() for each in found.buffers]
        head = {**found.head, "pushed": True}
        self.page.evaluate("async ([head, some]) => { push(head, some); await settled(); }", [head, letters])

    def settled(self) -> None:
        self.page.evaluate("settled()")

    def choose(self, label: str, value: str) -> None:
        self.page.get_by_label(label, exact=True).select_option(value)
        self.settled()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.settled()

    def saved(self, kind: str) -> str:
        """What a button saves."""
        code = """async (kind) => { window.saved = null;
          [...document.querySelectorAll('.savers button')].find((one) => one.textContent === kind).click();
          while (!window.saved) await settled(); return window.saved.text(); }"""
        text: str = self.page.evaluate(code, kind)
        return text

    def saved_pixels(self) -> np.ndarray:
        """(height, width, 3) of the PNG that a button saves."""
        self.saved("PNG")
        code = """async () => { const data = new Uint8Array(await window.saved.arrayBuffer());
          return btoa(Array.from(data, (one) => String.fromCharCode(one)).join('')); }"""
        from PIL import Image

        picture = Image.open(io.BytesIO(base64.b64decode(self.page.evaluate(code))))
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB")).astype(int)

    def table(self) -> dict[str, np.ndarray]:
        """The columns of what is seen."""
        header, *rows = csv.reader(self.saved("CSV").splitlines())
        numbers = np.array([[float(cell) if cell else np.nan for cell in row] for row in rows]).reshape(-1, len(header))
        return dict(zip(header, numbers.T, strict=True))

    def texts(self, where: str) -> list[str]:
        code = "where => [...document.querySelectorAll(where)].map((one) => one.textContent)"
        found: list[str] = self.page.evaluate(code, where)
        return found

    def text(self, where: str) -> str:
        (found,) = self.texts(where)
        return found

    def legend(self) -> dict[str, tuple[str, str]]:
        """By curve its last number and its colour."""
        code = """() => [...document.querySelectorAll('.legend li')].map((one) => [
          one.querySelector('span span, button span').textContent, one.querySelector('b').textContent,
          one.querySelector('i').style.background])"""
        return {name: (last, colour) for name, last, colour in self.page.evaluate(code)}

    def hash(self) -> list[tuple[str, str]]:
        """The words of the address."""
        code = "() => JSON.stringify([...new URLSearchParams(location.hash.slice(2))])"
        return [(name, value) for name, value in json.loads(self.page.evaluate(code))]

    def colour(self, name: str) -> list[int]:
        """A colour of the page, by its name in the style."""
        code = """(name) => { const one = document.createElement('span'); one.style.color = `var(--${name})`;
          document.querySelector('.joma-view').append(one); const found = getComputedStyle(one).color; one.remove();
          return found.match(/[0-9]+/g).slice(0, 3).map(Number); }"""
        found: list[int] = self.page.evaluate(code, name)
        return found

    def pixels(self, where: str) -> np.ndarray:
        """(height, width, 4) of a canvas."""
        code = """(where) => { const one = document.querySelector(where);
          const data = one.getContext('2d').getImageData(0, 0, one.width, one.height).data;
          let text = ''; for (let at = 0; at < data.length; at += 8192)
            text += String.fromCharCode(...data.subarray(at, at + 8192));
          return [one.height, one.width, btoa(text)]; }"""
        height, width, text = self.page.evaluate(code, where)
        return np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4).astype(int)


@contextmanager
def standing_in(browser: Any, folder: Path) -> Iterator[StandIn]:
    """A page with nothing in it yet; whatever goes wrong in it fails. folder: where the page may lie."""
    shape = f"<!DOCTYPE html><meta charset=utf-8><style>{style()}</style><div id=cell></div>"
    script = f"<script type=module>{module()}\nwindow.jomaRender = render;</script>"
    (folder / "page.html").write_text(shape + script, encoding="utf-8")
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    host = StandIn(page)
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.expose_function("askPython", host.answer)
    page.goto((folder / "page.html").as_uri())
    host.start()
    yield host
    page.close()
    assert troubles == []


def near(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)  # numbers travel in four bytes
