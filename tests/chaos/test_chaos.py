"""The short form of `make chaos`: a few disturbances of every kind."""

import sqlite3

import pytest

from chaos.run import ROUNDS, disturbed
from chaos.score import Score
from chaos.warm import Warm
from chaos.work import content
from chaos.writer import _checked
from joma.runs import Run


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    with Warm(tmp_path_factory.mktemp("warm")) as loaded:
        yield loaded


@pytest.mark.long
@pytest.mark.parametrize("subject", sorted(ROUNDS))
def test_nothing_is_lost_and_nothing_is_wrong(subject, warm, tmp_path):
    score = disturbed(subject, warm, tmp_path, ROUNDS[subject][1], seed=0, short=True)
    assert score.sound, score.notes
    assert not score.odd or subject != "disks", score.notes  # elsewhere an odd ending may hang on the moment of a kill
    assert score.disturbances or score.skipped


@pytest.mark.long
@pytest.mark.parametrize("number", [9, 10], ids=["as it was", "another number"])
def test_what_is_lost_is_noticed(tmp_path, number):
    """The suite itself: a run whose last acknowledged record is taken out, and one with another number in it."""
    path = tmp_path / "a.sqlite"
    with Run.create(path, study="chaos", config={}) as run:
        for step in range(3):
            run.record(step, {"x": content(step), "square": step * step})
        run.record(3, {"x": content(3), "square": number})
    score = Score("writer")
    _checked(path, -1, 3, score)
    assert (score.lost, score.wrong) == (0, number - 9)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM entries WHERE step = 3")
    connection.close()
    _checked(path, 2, 3, score)
    assert (score.lost, score.wrong) == (1, number - 9)
