"""A training that is killed at a step and taken up again."""

from dataclasses import replace

import numpy as np
import pytest

from joma.runs import Run
from joma.training import train_all


class Kill(Exception):
    """A kill at a step."""


def ends_the_same_after_a_kill(whole, run, path, names, *, at=25):
    """Train again, killed at a step between two points, and expect what the undisturbed `run` has recorded."""

    def dies(step, members):
        if step == at:
            raise Kill
        return whole.batch(step, members)

    again = Run.create(path, study="x", config={})
    with pytest.raises(Kill):
        train_all({"base": replace(whole, batch=dies)}, again, checkpoint_every=0)
    train_all({"base": whole}, again)
    for name in names:
        np.testing.assert_array_equal(again.array(f"base/{name}"), run.array(f"base/{name}"), err_msg=name)
