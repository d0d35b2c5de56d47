"""A short form of what `python tests/fuzz/fuzz.py 10000` does: every kind, a hundred spoiled inputs or more."""

import math
from pathlib import Path

import pytest
from fuzz import fuzz
from guided import Arcs, compared
from kept_records import RECORDS, WHY
from listing_targets import LISTINGS
from targets import TARGETS

_FOLDERS = ("zero", "layers", "factors", "adapter", "dcp", "distcp", "megatron", "published", "tuned")
_SLOW = {"config": 80, "tokenizer": 60, **dict.fromkeys(_FOLDERS, 120)}


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        pytest.param(kind, share, marks=[pytest.mark.long] * (share == 1), id=f"{kind}-{share}")
        for share in (6, 1)
        for kind in TARGETS
    ],
)
def test_spoiled_inputs_are_read_or_refused_in_one_sentence(kind, share, tmp_path):
    """A sixth of them, and all."""
    if kind == "findings" and not RECORDS.is_dir():
        pytest.skip(WHY)
    if kind == "gguf":
        pytest.importorskip("gguf", reason="gguf is not installed here (the extra gguf)")
    count = _SLOW.get(kind, 300) // share
    if kind in LISTINGS:
        pytest.importorskip("obstore")
    outcome = fuzz(kind, count, tmp_path, timed=False)  # how long an input takes depends on the machine
    assert outcome.surprises == []
    assert outcome.inputs == outcome.refused + outcome.accepted == count
    assert outcome.outcomes > 3  # the inputs differ in more than that they are damaged


def test_a_reader_that_breaks_is_noticed(tmp_path, monkeypatch):
    from dataclasses import replace

    def breaks(content, folder):
        raise KeyError("shape")

    monkeypatch.setitem(TARGETS, "text", replace(TARGETS["text"], read=breaks, seeds=lambda folder: [b"a"]))
    with pytest.raises(AssertionError):
        fuzz("text", 5, tmp_path)  # not even what is honest
    honest = [True]

    def breaks_later(content, folder):
        if not honest:
            raise KeyError("shape")
        honest.clear()

    monkeypatch.setitem(TARGETS, "text", replace(TARGETS["text"], read=breaks_later, seeds=lambda folder: [b"a"]))
    outcome = fuzz("text", 5, tmp_path)
    assert len(outcome.surprises) == 5
    assert "KeyError" in outcome.surprises[0]


def test_new_code_makes_a_seed_and_both_ways_are_counted_alike():
    """With as many inputs as a test has time for; `make fuzz` has more."""
    one = compared("npy", 60, seconds=math.inf, seed=0, keep=None)
    assert one.inputs == 60
    assert one.surprises == []
    assert one.arcs - one.only_guided == one.arcs_by_words - one.only_by_words > 5  # what both reached


def test_arcs_are_those_of_joma_and_new_ones_guide_once():
    from joma.host.printing import clean

    watch, blind = Arcs(guide=True), Arcs(guide=False)
    for expected in (True, False):
        with watch:
            clean("a")
        assert watch.guides() is expected
    with blind:
        clean("a")
    assert blind.all == watch.all
    assert not blind.guides()
    with watch:
        clean("\x1b")
    assert watch.guides()  # another way through the same function
    assert {Path(code.co_filename).name for code, _, _ in watch.all} == {"printing.py"}
    assert not watch.ended()
    assert Arcs(guide=True, seconds=0.0).ended()
