"""Values in a few characters."""

from joma.host.words import short


def test_what_is_just_short_enough_stays_and_what_is_longer_is_cut():
    assert short("x" * 40) == repr("x" * 40)
    assert short("x" * 41) == repr("x" * 36 + "...")
    assert short([12] * 10) == repr([12] * 10)  # 40 characters
    assert short([12] * 9 + [123]) == "10 entries"
    assert short(["x" * 40]) == "1 entry"
    assert short(b"x" * 37) == repr(b"x" * 37)  # 40 characters
    assert short(b"x" * 38) == "bytes"
