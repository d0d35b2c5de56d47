"""A short form of what `python tests/fuzz/fuzz.py 10000` does: every kind, a hundred spoiled inputs or more."""

from dataclasses import replace

import pytest
from fuzz import fuzz
from kept_records import RECORDS, WHY
from listing_targets import LISTINGS
from targets import TARGETS

_FOLDERS = ("zero", "layers", "factors", "adapter", "dcp", "distcp", "megatron", "published", "tuned")
_SLOW = {"config": 80, "tokenizer": 60, **dict.fromkeys(_FOLDERS, 120)}


@pytest.mark.parametrize("kind", TARGETS)
def test_spoiled_inputs_are_read_or_refused_in_one_sentence(kind, tmp_path, request):
    """All of them where long tests run, else a sixth: the same inputs come first."""
    if kind == "findings" and not RECORDS.is_dir():
        pytest.skip(WHY)
    if kind == "gguf":
        pytest.importorskip("gguf", reason="gguf is not installed here (the extra gguf)")
    count = _SLOW.get(kind, 300) // (6 if "not long" in request.config.option.markexpr else 1)
    if kind in LISTINGS:
        pytest.importorskip("obstore")
    outcome = fuzz(kind, count, tmp_path, timed=False)  # how long an input takes depends on the machine
    assert outcome.surprises == []
    assert outcome.inputs == outcome.refused + outcome.accepted == count
    assert outcome.outcomes > 3  # the inputs differ in more than that they are damaged


def test_a_reader_that_breaks_is_noticed(tmp_path, monkeypatch):
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
