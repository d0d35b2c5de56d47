"""Rates that decay, and measures that find several things in one pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from joma.models import Decoder, DecoderConfig
from joma.runs import Run, RunError
from joma.training import Ensemble, Optimizer, next_token_loss, train

CONFIG = DecoderConfig(vocabulary=7, width=4, mlp=4, context=3)


def ensemble(optimizer, **changes):
    def batch(step, members):
        text = torch.randint(7, (2, 4), generator=torch.Generator().manual_seed(step))
        return text[:, :-1], text[:, 1:]

    def weights(decoder, members):
        return decoder.out.flatten(1)

    whole = {
        "members": 2, "networks": lambda members: Decoder(CONFIG, list(members)), "batch": batch,
        "loss": next_token_loss, "optimizer": optimizer, "steps": 9, "measures": {"weights": weights},
        "measure_at": range(10),
    }  # fmt: skip
    return Ensemble(**(whole | changes))


@pytest.mark.parametrize(("warm_up", "decay", "decay_every"), [((0, 4), 1.0, None), ((0, 4), 0.5, 3), (0, 0.5, 3)])
def test_a_rate_that_warms_up_or_decays_is_the_smaller_rate(tmp_path, warm_up, decay, decay_every):
    warm = Optimizer("sgd", rate=(0.1, 0.4), warm_up=warm_up, decay=decay, decay_every=decay_every)
    with Run.create(tmp_path / "warm", study="x", config={}) as run:
        train(ensemble(warm), run)
        path = run.array("weights")
    networks, made = Decoder(CONFIG, [0, 1]), ensemble(warm)
    for step in range(9):
        np.testing.assert_allclose(networks.out.detach().flatten(1), path[step], atol=1e-6)
        networks.zero_grad()
        next_token_loss(networks, made.batch(step, [0, 1])).sum().backward()
        decayed = decay ** (step // (decay_every or 1))
        now = torch.tensor([0.1, 0.4 * min(1.0, (step + 1) / 4) if warm_up else 0.4]) * decayed
        with torch.no_grad():
            for parameter in networks.parameters():
                parameter -= now.view(-1, *[1] * (parameter.ndim - 1)) * parameter.grad


@pytest.mark.parametrize(
    ("optimizer", "at"),
    [
        (Optimizer("sgd", rate=0.4, warm_up=(6, 0)), 2),
        (Optimizer("sgd", rate=0.4, warm_up=(6, 0)), 7),
        (Optimizer("adam", rate=0.1, decay=0.5, decay_every=4), 6),
    ],
)
def test_a_rate_goes_on_after_a_kill(tmp_path, optimizer, at):
    made = ensemble(optimizer)
    whole = Run.create(tmp_path / "whole", study="x", config={})
    train(made, whole)

    def deadly(step, members):
        if step == at:
            raise KeyboardInterrupt
        return made.batch(step, members)

    killed = Run.create(tmp_path / "killed", study="x", config={})
    with pytest.raises(KeyboardInterrupt):
        train(ensemble(optimizer, batch=deadly), killed, checkpoint_every=0.0)
    train(made, killed)
    np.testing.assert_array_equal(whole.array("weights"), killed.array("weights"))
    whole.close(), killed.close()


@pytest.mark.parametrize(
    ("warm_up", "message"),
    [
        (-1, "warm_up must be a number of steps, or a tuple with one per member, got -1"),
        ((3, 0.5), "warm_up must be a number of steps, or a tuple with one per member, got 0.5"),
    ],
)
def test_a_warm_up_that_is_none_is_refused(warm_up, message):
    with pytest.raises(ValueError, match=message):
        Optimizer(warm_up=warm_up)
    with pytest.raises(ValueError, match="warm_up has 3 entries for 2 members"):
        ensemble(Optimizer("sgd", warm_up=(1, 2, 3)))


def test_one_pass_may_find_several_things(tmp_path):
    def two(decoder, members):
        return {"in": decoder.embedding.flatten(1).sum(1), "out": decoder.out.flatten(1).sum(1)}

    def none(decoder, members):
        return {}

    with Run.create(tmp_path / "run", study="x", config={}) as run:
        train(ensemble(Optimizer("sgd"), measures={"sum": two, "nothing": none}), run)
        assert run.names() == ["sum/in", "sum/out", "train_loss", "diverged_at"]
        assert run.array("sum/in").shape == (10, 2)
    with Run.create(tmp_path / "wrong", study="x", config={}) as run:
        wrong = {"a": lambda decoder, members: {"b": torch.zeros(3)}}
        with pytest.raises(ValueError, match="measure 'a/b' gave 3 values for 2 members"):
            train(ensemble(Optimizer("sgd"), measures=wrong), run)


def test_what_is_recorded_has_named_dimensions(tmp_path):
    def found(decoder, members):
        return {"entropy": torch.zeros(len(members), 3, 2), "ranks": torch.zeros(len(members), 3)}

    named = {"sum/entropy": ("layer", "head")}
    with Run.create(tmp_path / "run", study="x", config={}) as run:
        train(ensemble(Optimizer("sgd"), measures={"sum": found}, dims=named), run, name="L3")
        assert list(run.dims("L3/sum/entropy")) == ["member", "layer", "head"]
        assert list(run.dims("L3/sum/ranks")) == ["member", "dim_1"]
        assert list(run.dims("L3/train_loss")) == list(run.dims("L3/diverged_at")) == ["member"]
    spoiled = {
        "dims names 'entropy', but what is measured is sum/entropy": {"entropy": ("layer",)},
        "has .member, layer, head., got an array": {"sum/ranks": ("layer", "head")},
    }
    for sentence, wrong in spoiled.items():
        with Run.create(tmp_path / f"wrong{len(sentence)}", study="x", config={}) as run:
            with pytest.raises((ValueError, RunError), match=sentence):
                train(ensemble(Optimizer("sgd"), measures={"sum": found}, dims=wrong), run)
            assert run.names() == []


@pytest.mark.parametrize(("decay", "every"), [(0.0, 3), (1.5, 3), (0.5, None), (1.0, 3), (0.5, 0)])
def test_refusals_of_decay(decay, every):
    with pytest.raises(ValueError, match="decay"):
        Optimizer("sgd", decay=decay, decay_every=every)
