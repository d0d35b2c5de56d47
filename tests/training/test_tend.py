"""Ensembles that are tended between steps: each step once, in order, and what is written is kept with each group."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from joma.models import Decoder, DecoderConfig
from joma.runs import Run
from joma.training import Ensemble, Optimizer, branch, next_token_loss, train_all

SHAPE = DecoderConfig(vocabulary=7, width=4, mlp=4, context=3)
TEXT = torch.arange(8).view(2, 4) % 7


class Noting(Decoder):
    """Its buffer has, for every member, the sum of the steps that it was told of and a power of its weights then."""

    noted: Tensor

    def __init__(self, seeds):
        super().__init__(SHAPE, list(seeds))
        self.register_buffer("noted", torch.zeros(len(seeds), 2))

    def note(self, step):
        assert not torch.is_grad_enabled()
        self.noted += torch.stack([torch.full((self.members,), float(step)), self.out.abs().sum((1, 2))], 1)


def ensemble(**changes):
    given = {
        "members": 3, "networks": Noting, "batch": lambda step, members: (TEXT[:, :-1], TEXT[:, 1:]),
        "loss": next_token_loss, "optimizer": Optimizer("adam", rate=(1e-1, 1e-2, 1e-3)), "steps": 12,
        "tend": Noting.note, "measures": {"noted": lambda decoder, members: decoder.noted}, "measure_at": (0, 5),
        "keep_at": (5,),
    }  # fmt: skip
    return Ensemble(**(given | changes))


def noted(folder, together):
    base = ensemble(together=together)
    with Run.create(folder / f"{together}.sqlite", study="x", config={}) as run:
        train_all({"base": base, "twin": branch(base, of="base", at=5)}, run)
        return [torch.from_numpy(run.array(f"{name}/noted")) for name in ("base", "twin")]


@pytest.mark.parametrize("together", [None, 2])
def test_every_step_is_told_once_before_it_is_made(tmp_path, together):
    base, twin = noted(tmp_path, together)
    assert (base[:, :, 0] == torch.tensor([[0.0], [10.0], [66.0]])).all()
    assert (twin[:, :, 0] == torch.tensor([[0.0], [56.0]])).all(), "a twin begins with buffers of its own"
    torch.testing.assert_close(twin[-1, :, 1], base[-1, :, 1] - base[1, :, 1], rtol=1e-5, atol=1e-5)


def test_what_is_tended_are_the_networks_before_the_step(tmp_path):
    points, measures = tuple(range(12)), dict(ensemble().measures)
    measures["weights"] = lambda decoder, members: decoder.out.abs().sum((1, 2))
    with Run.create(tmp_path / "run.sqlite", study="x", config={}) as run:
        train_all({"base": ensemble(measures=measures, measure_at=points)}, run)
        told, weights = (torch.from_numpy(run.array(f"base/{name}")) for name in ("noted", "weights"))
    torch.testing.assert_close(told[:, :, 1].diff(dim=0), weights[:-1], rtol=1e-5, atol=1e-5)
    assert (weights.diff(dim=0).abs() > 1e-4).all(), "each step moves them"


def test_groups_that_take_turns_keep_what_was_written(tmp_path):
    for whole, parts in zip(noted(tmp_path, None), noted(tmp_path, 1), strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-5, atol=1e-5)
