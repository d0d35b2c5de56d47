"""Values in a few characters."""

from typing import NamedTuple

from joma.host.words import brief, short


def test_what_is_just_short_enough_stays_and_what_is_longer_is_cut():
    assert short("x" * 40) == repr("x" * 40)
    assert short("x" * 41) == repr("x" * 36 + "...")
    assert short([12] * 10) == repr([12] * 10)  # 40 characters
    assert short([12] * 9 + [123]) == "10 entries"
    assert short(["x" * 40]) == "1 entry"
    assert short(b"x" * 37) == repr(b"x" * 37)  # 40 characters
    assert short(b"x" * 38) == "bytes"


def test_a_line_of_120_characters_stays_whole_and_a_longer_one_is_cut():
    class Found(NamedTuple):
        first: str
        second: str
        third: str
        steps: int = 7

    def line(length):
        return brief(Found("x" * 38, "y" * 38, "z" * length))

    assert line(8) == f"Found(first='{'x' * 38}', second='{'y' * 38}', third='{'z' * 8}')"
    assert len(line(8)) == 120
    assert line(9) == f"Found(first='{'x' * 38}', second='{'y' * 38}', third='zzzzzz...)"
    assert len(line(9)) == 120
