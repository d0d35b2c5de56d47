"""`joma report` that is killed, also four at once, while somebody reads: the page is never half, empty or gone."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from chaos.score import Score, Setting, kill_within, timed
from chaos.work import PAGE, findings

AT_ONCE = 4


def disturb(setting: Setting) -> Score:
    score = Score("report")
    out = setting.place("out")
    timed(setting.warm.joma("verify", "thm5", "--threads", "1", "--out", out))
    seconds = timed(setting.warm.joma("report", out))
    expected = findings(out / "findings.json")
    reader = Reader(out, score)
    with reader:
        while score.kills < setting.rounds:
            writers = [setting.warm.joma("report", out) for _ in range(AT_ONCE)]
            for writer in writers[: setting.rounds - score.kills][: AT_ONCE - 1]:  # the last is left in peace
                kill_within(writer, seconds * 1.5, setting.dice, score)
            for writer in writers:
                if writer.wait() not in (0, -9, -15, 143):
                    score.wonder(f"status {writer.wait()}: {writer.said()[-300:]!r}")
    score.count("times the page was read", reader.reads)
    _one_page(setting, score, setting.place("page") / "page.html")
    last = setting.warm.joma("report", out)
    if last.wait() != 0:
        score.lose(f"report does not go on: {last.said()[-300:]!r}")
    score.same(findings(out / "findings.json"), expected, "findings.json")
    return score


def _one_page(setting: Setting, score: Score, page: Path) -> None:
    """Four writers that do nothing but write one page: a reader meets the page of one of them, and all of it."""
    page.write_text("a" * PAGE)
    writers = [
        setting.warm.start("chaos.work:rewrite", page, letter, 0.3 if setting.short else 1.0) for letter in "abcd"
    ]
    while any(writer.status() is None for writer in writers):
        found = page.read_text()
        score.count("times a page of four writers was read")
        if len(found) != PAGE or len(set(found)) != 1:
            score.err(f"a page of {len(found)} characters by {sorted(set(found))}, not of {PAGE} by one writer")
    for writer in writers:
        if writer.wait() != 0:
            score.lose(f"what one of four writers of a page wrote: {writer.said()[-200:]!r}")


class Reader:
    """Reads the page and the findings over and over."""

    def __init__(self, out: Path, score: Score) -> None:
        self.out, self.score, self.reads = out, score, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._over.wait(0.001):
            self.reads += 1
            try:
                page = (self.out / "report.html").read_text(encoding="utf-8")
                json.loads((self.out / "findings.json").read_text(encoding="utf-8"))
            except FileNotFoundError as error:
                self.score.lose(f"{error.filename} is gone for a moment")
            except ValueError:
                self.score.err("half a findings.json")
            else:
                if not page.rstrip().endswith("</html>"):
                    self.score.err(f"a page of {len(page)} characters that does not end")
