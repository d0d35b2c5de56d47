"""Bits aimed at the pages by which SQLite finds the rows of a run: noticed, or without effect."""

from __future__ import annotations

from pathlib import Path

from chaos.score import Score, Setting
from chaos.work import series
from joma.runs import Run, RunError

STEPS = 300
FLIPS = 50
"""Of one round."""
INDEX_PAGES = (2, 10)
"""First bytes of the inner pages and the leaves of an index; of no other page, where there are few."""


def disturb(setting: Setting) -> Score:
    score = Score("index")
    place = setting.place("run")
    path, spoilt = place / "a.sqlite", place / "b.sqlite"
    with Run.create(path, study="chaos", config={}) as run:
        for step in range(STEPS):
            run.record(3 * step, {"x": float(step), "y": [step, -step]})
        run.finish()
    content, recorded = path.read_bytes(), series(path)
    pages = _index_pages(content)
    score.count("pages of indexes", len(pages))
    assert {content[page[0]] for page in pages} == set(INDEX_PAGES), "no inner page: the run is too short"
    for _ in range(setting.rounds * FLIPS):
        page = setting.dice.choice(pages)
        at = setting.dice.choice([at for at in page if content[at]])
        bit = 1 << setting.dice.randrange(8)
        spoilt.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
        _read(score, spoilt, recorded)
    return score


def _read(score: Score, path: Path, recorded: object) -> None:
    score.disturbances += 1
    try:
        found = series(path)
    except RunError:
        score.count("noticed")
    except Exception as error:
        score.wonder(f"{type(error).__name__}: {error}")
    else:
        score.count("without effect")
        score.same(found, recorded, "a run with a bit of an index turned over")


def _index_pages(content: bytes) -> list[range]:
    size = int.from_bytes(content[16:18], "big")
    starts = range(size, len(content), size)  # the first page holds the names of the tables
    return [range(start, start + size) for start in starts if content[start] in INDEX_PAGES]
