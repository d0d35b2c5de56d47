"""Named streams of random numbers: the same everywhere, and independent of one another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.host.seeds import generator, stream

NAMES = st.text("ab03 /\0é")  # few letters: a table of all that there are takes seconds
PARTS = st.tuples(st.integers(), st.lists(NAMES | st.integers(), max_size=4).map(tuple))


def test_a_stream_never_changes():
    """Records are made with these seeds: another value here is another record."""
    assert stream(0, "weights", "layer", 3) == 9212523482940029512
    assert stream(0) != stream(0, "")


@given(PARTS, PARTS)
def test_streams_are_equal_exactly_where_their_names_are(one, other):
    first, second = (stream(seed, *names) for seed, names in (one, other))
    assert 0 <= first < 2**63
    assert (first == second) == (one == other)


def test_a_word_is_no_integer_and_an_integer_of_numpy_is_one():
    assert stream(0, "3") != stream(0, 3) == stream(np.int64(0), np.int32(3))


@pytest.mark.parametrize("parts", [("0", "a"), (True,), (0, False)])
def test_what_names_no_stream_is_refused(parts):
    with pytest.raises(ValueError, match="a stream has an integer and names that are words or integers"):
        stream(*parts)


def test_a_generator_begins_at_its_stream():
    drawn = torch.rand(3, generator=generator(5, "noise"))
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(stream(5, "noise"))))
    assert not torch.equal(drawn, torch.rand(3, generator=generator(6, "noise")))
    assert generator(5, "noise", 2).initial_seed() == stream(5, "noise", 2) != generator(5, "noise").initial_seed()
