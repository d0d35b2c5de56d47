"""Theorem 1 with two learning rates: its verdicts, and that each follows the numbers of its claim and its controls."""

import numpy as np
import pytest
from records import changed, verdicts

from joma.studies.invariant.thm1_rates import STUDY, Thm1RatesConfig

HOLDS, FIXED, BLIND = "holds", "holds as corrected", "not above its control"
EQUAL, WARM = "rates 1, 1", "temperature 1"


def test_printed_forms_would_be_recognised(run):
    """Flows of equal rates in the place of all others: the invariant as printed describes them."""

    def as_at_equal_rates(name, step, value):
        kind = name.partition("/")[0]
        if name == "schedule":
            return np.concatenate([run.value(f"exp/{EQUAL}/{WARM}"), value[..., -1:]], -1)
        return run.value(f"{kind}/{EQUAL}/{WARM}") if kind in ("exp", "linear") else value

    assert verdicts(STUDY, changed(run, as_at_equal_rates)) == {
        "any-rates-exp": HOLDS,
        "any-rates-linear": HOLDS,
        "equal-rates": BLIND,  # nothing differs from them any more
        "temperature": HOLDS,
        "rate-schedules": HOLDS,
    }


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rates": ((1.0, 1.0),)}, "rates must be an equal pair followed by at least one unequal pair"),
        ({"rates": ((1.0, 0.5), (1.0, 1.0))}, "rates must be an equal pair followed by"),
    ],
)
def test_refusals(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        Thm1RatesConfig(**changes)
