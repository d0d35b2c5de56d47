"""Limits can be raised, by name, and a name that is none is refused."""

import pytest

from joma.cli.main import main
from joma.host import limits
from joma.host.errors import BadInput


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    for name in limits.names():
        monkeypatch.setattr(limits, name, getattr(limits, name))


def test_the_environment_raises_limits(monkeypatch):
    monkeypatch.setenv("JOMA_LIMITS", "LAYERS=5000, LISTING_SECONDS=2.5 WORD_BYTES=1e9")
    limits.check()
    assert (limits.LAYERS, limits.LISTING_SECONDS, limits.WORD_BYTES) == (5000, 2.5, 10**9)
    assert isinstance(limits.WORD_BYTES, int)


NO_LIMITS = ["LAYER=5", "check=5", "LAYERS", "LAYERS=", "LAYERS=x", "LAYERS=nan", "LAYERS=inf", "LAYERS=-5", "LAYERS=0"]
NO_LIMITS += ["LAYERS=0.5", "LISTING_SECONDS=nan", "LISTING_SECONDS=inf", "LISTING_SECONDS=-1", "LISTING_SECONDS=0"]


@pytest.mark.parametrize("word", NO_LIMITS)
def test_what_is_no_limit_is_refused(word, monkeypatch, capsys):
    with pytest.raises(BadInput, match="JOMA_LIMITS"):
        limits.check(word)
    monkeypatch.setenv("JOMA_LIMITS", word)
    assert main(["list"]) == 2
    assert capsys.readouterr().err.startswith("joma: JOMA_LIMITS")


def test_a_word_that_is_refused_leaves_its_limit(monkeypatch):
    before = limits.LISTING_SECONDS
    with pytest.raises(BadInput):
        limits.check("LISTING_SECONDS=nan")
    assert before == limits.LISTING_SECONDS


def test_every_limit_is_a_positive_number():
    assert all(type(getattr(limits, name)) in (int, float) and getattr(limits, name) > 0 for name in limits.names())
