"""Which member of an ensemble is which, and what its config says of it."""

from types import SimpleNamespace

import numpy as np
import pytest

from joma.recipes.grid import Grid, ensemble
from joma.training import Optimizer


@pytest.mark.parametrize("axis", [1, -2])
def test_members_fold_into_cells_and_seeds_on_any_axis(axis):
    members = np.arange(6)[None, :, None] + 10 * np.arange(4)[:, None, None] + np.zeros((1, 1, 2))
    folded = Grid(("a", "b"), seeds=3).fold(members, axis=axis)
    assert folded.shape == (4, 2, 3, 2)
    assert folded[2, 1].tolist() == [[23, 23], [24, 24], [25, 25]]


def test_what_is_given_goes_before_what_the_config_says():
    config = SimpleNamespace(steps=9, device="cpu", precision="float32", width=8)
    parts = {"networks": None, "batch": None, "loss": None, "optimizer": Optimizer("sgd", rate=0.1)}
    plain, shorter = ensemble(config, 2, **parts), ensemble(config, 2, **parts, steps=3)
    assert (plain.members, plain.steps, plain.device, plain.precision) == (2, 9, "cpu", "float32")
    assert shorter.steps == 3
