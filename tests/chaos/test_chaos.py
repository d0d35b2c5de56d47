"""The short form of `make chaos`: a few disturbances of every kind."""

import shutil
from pathlib import Path

import pytest

from chaos.run import ORDER, SHORT, disturbed
from chaos.score import Score
from chaos.warm import Warm

ALWAYS_PLAIN = ("disks", "lock")
"""Where an odd ending does not hang on the moment of a kill, or on which of two processes comes first."""


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    with Warm(tmp_path_factory.mktemp("warm")) as loaded:
        yield loaded


@pytest.mark.long
@pytest.mark.parametrize("subject", sorted(ORDER))
def test_nothing_is_lost_and_nothing_is_wrong(subject, warm, tmp_path):
    if subject == "stores":
        pytest.importorskip("moto")
    score = disturbed(subject, warm, tmp_path, SHORT[subject], seed=0, short=True)
    assert score.sound, score.notes
    assert not score.odd or subject not in ALWAYS_PLAIN, score.notes
    assert score.disturbances or score.skipped


@pytest.mark.long
def test_what_is_lost_is_noticed(warm, tmp_path):
    """The suite itself: a run whose last acknowledged record is taken out, and one with another number in it."""
    import sqlite3

    from chaos.work import content
    from chaos.writer import _checked
    from joma.runs import Run

    path = tmp_path / "a.sqlite"
    with Run.create(path, study="chaos", config={}) as run:
        for step in range(3):
            run.record(step, {"x": content(step), "square": step * step})
    other = Path(shutil.copy(path, tmp_path / "b.sqlite"))
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM entries WHERE step = 2")
    connection.close()
    score = Score("writer")
    _checked(path, -1, 2, score)
    assert (score.lost, score.wrong) == (1, 0)
    with Run.open(other, write=True) as run:
        run.record(3, {"x": content(3), "square": 10})
    _checked(other, -1, 3, score)
    assert (score.lost, score.wrong) == (1, 1)
    assert not score.sound
