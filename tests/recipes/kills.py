"""A training that is killed at a step and taken up again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from joma.runs import Run
from joma.training import Ensemble, train_all


class Kill(Exception):
    """A kill at a step."""


def ends_the_same_after_a_kill(whole: Ensemble, run: Run, path: Path, names: Sequence[str], *, at: int = 25) -> None:
    """Train again, killed at a step between two points, and expect what the undisturbed `run` has recorded."""

    def dies(step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
        if step == at:
            raise Kill
        return whole.batch(step, members)

    again = Run.create(path, study="x", config={})
    with pytest.raises(Kill):
        train_all({"base": replace(whole, batch=dies)}, again, checkpoint_every=0)
    train_all({"base": whole}, again)
    for name in names:
        np.testing.assert_array_equal(again.array(f"base/{name}"), run.array(f"base/{name}"), err_msg=name)
