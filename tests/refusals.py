"""Refusals as a table of calls, each with what the sentence says that refuses it."""

import pytest


def refusals(*rows, error=ValueError):
    """A test of rows (call, pattern): every call is refused in one line that has the pattern."""

    @pytest.mark.parametrize(("call", "sentence"), rows)
    def refused(call, sentence):
        with pytest.raises(error, match=sentence) as caught:
            call()
        assert "\n" not in str(caught.value)

    return refused
