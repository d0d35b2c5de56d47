"""The ensemble trainer: equal to training alone with torch.optim, resumable to the bit, split, diverging, refused."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise

import numpy as np
import pytest
import torch
from later import some_now
from refusals import refusals
from small_ensembles import (
    CONFIG,
    RATES,
    Killed,
    batch,
    dies_at,
    ensemble,
    fresh,
    full,
    language_models,
    layers,
    networks,
    weights,
)
from torch._dynamo.utils import counters

from joma.models import Decoder
from joma.models.dropout import keys
from joma.runs import Run, RunError
from joma.training import Optimizer, next_token_loss, train
from joma.training.engine import Engine, room_to_compile
from joma.training.trainer import fitting, products


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "a.sqlite", study="test", config={}) as run:
        yield run


def test_records_measures_losses_and_divergence(run):
    heard = []
    train(ensemble(), run, name="x", progress=lambda share, doing: heard.append((share, doing)))
    assert run.names() == ["x/weights", "x/train_loss", "x/diverged_at"]
    assert run.steps("x/weights").tolist() == [0, 5, 12]
    assert np.isnan(run.at("x/train_loss", 0)).all()
    assert run.at("x/train_loss", 5).shape == (5,)
    assert (run.array("x/diverged_at") == -1).all()
    assert not list(run.path.parent.glob("*.checkpoint"))
    before = run.path.read_bytes()
    left = run.path.with_name(f"{run.path.name}-x.checkpoint")
    left.write_bytes(b"killed before it was removed")
    train(ensemble(), run, name="x")  # done already
    assert run.path.read_bytes() == before
    assert not left.exists()


@pytest.mark.parametrize(
    "optimizer",
    some_now(
        [
            Optimizer("sgd", rate=RATES, momentum=0.9, weight_decay=0.01, clip=0.5),
            Optimizer("sgd", rate=RATES),
            Optimizer("adam", rate=RATES, clip=0.5, renew_every=4),
            Optimizer("adam", rate=RATES, weight_decay=0.01),
            Optimizer("adamw", rate=RATES, betas=(0.8, 0.95), weight_decay=0.1),
        ],
        every=2,
    ),
)
def test_equals_torch_optim_on_each_member_alone(run, optimizer):
    train(ensemble(optimizer=optimizer), run)
    for member in (1, 4):
        alone, rate = networks([member]), RATES[member]
        theirs = torch_optimizer(alone, optimizer, rate)
        losses = []
        for step in range(12):
            if optimizer.renew_every and step % optimizer.renew_every == 0:
                theirs = torch_optimizer(alone, optimizer, rate)
            loss = next_token_loss(alone, batch(step, [member]), keys(alone.seeds, step))
            theirs.zero_grad()
            loss.sum().backward()
            if optimizer.clip:
                torch.nn.utils.clip_grad_norm_(alone.parameters(), optimizer.clip)
            theirs.step()
            losses.append(loss.item())
        ours = run.at("weights", 12)[member]
        np.testing.assert_allclose(ours, weights(alone, [member])[0].detach(), rtol=0, atol=1e-8)
        np.testing.assert_allclose(run.at("train_loss", 12)[member], np.mean(losses[5:]), rtol=1e-9)


def torch_optimizer(network, ours, rate):
    if ours.kind == "sgd":
        return torch.optim.SGD(network.parameters(), rate, momentum=ours.momentum, weight_decay=ours.weight_decay)
    kind = torch.optim.Adam if ours.kind == "adam" else torch.optim.AdamW
    return kind(network.parameters(), rate, betas=ours.betas, eps=ours.epsilon, weight_decay=ours.weight_decay)


@pytest.mark.parametrize("together", some_now([2, 5], every=2))
def test_a_killed_run_ends_with_the_same_numbers(tmp_path, together):
    whole = fresh(tmp_path / "whole.sqlite")
    train(layers(together=together), whole)
    for last_batch in (0, 3, 5, 9, 11):
        run = fresh(tmp_path / f"killed{last_batch}.sqlite")
        calls = 0

        def deadly(step, members, last=last_batch):
            nonlocal calls
            calls += 1
            if step == last and calls > last:
                raise Killed
            return batch(step, members)

        with pytest.raises(Killed):
            train(layers(together=together, batch=deadly), run, checkpoint_every=0.0)
        run.close()
        run = Run.open(run.path, write=True)
        asked = []

        def counted(step, members, asked=asked):
            asked.append(step)
            return batch(step, members)

        train(layers(together=together, batch=counted), run)
        for name in whole.names():
            assert whole.steps(name).tolist() == run.steps(name).tolist()
            np.testing.assert_array_equal(whole.array(name), run.array(name))
        if last_batch == 11 and together == 5:
            assert min(asked) >= 10  # it did go on, and not begin again
        assert not list(tmp_path.glob("*.checkpoint*"))
        run.close()
    whole.close()


@pytest.mark.parametrize("measure_at", [(0, 3), ()], ids=["in turns", "one after the other"])
def test_groups_give_what_one_ensemble_gives(tmp_path, measure_at):
    """Without a measuring point before the end, an engine that has trained one group to its end takes the next."""
    itself = {"weights": weights, "bias": lambda network, members: network.out_bias}  # the second is no copy
    runs = [fresh(tmp_path / f"{together}.sqlite") for together in (5, 3, 1)]
    for run, together in zip(runs, (5, 3, 1), strict=True):
        train(ensemble(together=together, steps=6, measure_at=measure_at, measures=itself), run)
    for run in runs[1:]:
        for name in ("weights", "bias", "train_loss"):
            np.testing.assert_allclose(run.array(name), runs[0].array(name), atol=1e-9)
    for run in runs:
        run.close()


def test_a_checkpoint_of_another_split_is_ignored(tmp_path):
    with fresh(tmp_path / "whole.sqlite") as whole, fresh(tmp_path / "killed.sqlite") as run:
        train(layers(), whole)
        with pytest.raises(Killed):
            train(layers(together=5, batch=dies_at(9)), run, checkpoint_every=0.0)
        train(layers(together=2), run)
        np.testing.assert_allclose(run.array("weights"), whole.array("weights"), atol=1e-12)


def test_as_many_are_trained_at_once_as_caches_and_memory_hold(monkeypatch):
    """A member of `layers` has 30 weights of 8 bytes, its widest side 5, and reads 4 x 5 tokens."""
    for bytes_at_once, together in ((10**9, 5), (3 * 20 * 5 * 8, 3), (3 * 20 * 5 * 8 - 1, 2), (1, 1)):
        monkeypatch.setattr("joma.training.trainer.AT_ONCE", bytes_at_once)
        assert fitting(layers()) == together
    monkeypatch.setattr("joma.training.trainer.AT_ONCE", 10**9)
    for members_of_memory, together in ((9, 5), (4, 4), (0, 1)):  # half of it: weights, gradients, moments and as much
        pages = {"SC_PHYS_PAGES": members_of_memory * 8 * 30 * 2, "SC_PAGE_SIZE": 8}
        monkeypatch.setattr("joma.training.trainer.os.sysconf", pages.__getitem__)
        assert fitting(layers()) == together


@pytest.mark.parametrize("left", [slice(None), slice(100), slice(0)], ids=["whole", "cut off", "empty"])
def test_a_checkpoint_of_another_run_is_ignored(tmp_path, left):
    first = fresh(tmp_path / "a.sqlite")
    with pytest.raises(Killed):
        train(layers(batch=dies_at(9)), first, checkpoint_every=0.0)
    first.close()
    (kept,) = tmp_path.glob("*.checkpoint")
    kept.write_bytes(kept.read_bytes()[left])
    (tmp_path / "a.sqlite").unlink()  # its checkpoint stays, as after somebody removed the run by hand
    with fresh(tmp_path / "a.sqlite") as again:
        again.created = "2001-01-01T00:00:00+00:00"  # runs of one second would not differ
        train(layers(), again)
        assert again.steps("weights").tolist() == [0, 5, 12]


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(tmp_path, monkeypatch):
    run = fresh(tmp_path / "a.sqlite")
    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", full)
        with pytest.raises(RunError, match=r"no checkpoint could be written to .* No space left"):
            train(layers(), run, checkpoint_every=0.0)
    assert not list(tmp_path.glob("*.new"))
    train(layers(), run)
    assert run.last_step("weights") == 12
    run.close()


def test_a_member_that_diverges_is_marked_and_the_others_go_on(run):
    rates = (*RATES[:4], 1e30)
    train(ensemble(optimizer=Optimizer("sgd", rate=rates)), run)
    marked = run.at("diverged_at", 12)
    assert (marked[:4] == -1).all()
    assert 0 < marked[4] < 12
    assert np.isfinite(run.at("weights", 12)[:4]).all()
    assert np.isfinite(run.at("train_loss", 12)[:4]).all()


def test_who_comes_after_a_member_that_diverged_is_not_marked(run):
    """In groups of 2, 1 and 2 members, one trained to its end after the other: the last has the place of the first."""
    rates = (1e200, *RATES[1:])
    train(layers(optimizer=Optimizer("sgd", rate=rates), together=2, measure_at=()), run)
    assert 0 < run.at("diverged_at", 12)[0] < 12
    assert (run.at("diverged_at", 12)[1:] == -1).all()
    assert np.isfinite(run.at("train_loss", 12)[1:]).all()


test_refusals = refusals(
    (lambda: ensemble(members=0), "at least one member, got 0"),
    (lambda: ensemble(steps=0), "steps must be at least 1"),
    (lambda: ensemble(measure_at=(13,)), "from 0 to 12"),
    (lambda: ensemble(together=0), "together must be at least 1"),
    (lambda: ensemble(precision="bf8"), "precision must be one of"),
    (lambda: ensemble(precision="half"), "precision 'half' is a choice for a GPU"),
    (lambda: ensemble(members=4), "rate has 5 entries for 4 members"),
    (lambda: Optimizer("adam", rate=float("nan")), "rate must be finite"),
    (lambda: Optimizer("adam", rate=(1e-3, -1.0)), "rate must be finite and not negative, got -1.0"),
    (lambda: ensemble(device="gpu"), "device must be cpu, cuda or cuda:NUMBER, got 'gpu'"),
    (lambda: ensemble(steps=float("nan")), "steps must be at least 1"),
    (lambda: Optimizer("adam", rate=[1e-3]), "rate must be a number, or a tuple"),
    (lambda: Optimizer("adam", epsilon=-1.0), "epsilon must be finite and not negative"),
    (lambda: Optimizer("adam", betas=(0.9,)), "betas must be two numbers"),
    (lambda: Optimizer("lion"), "kind must be one of"),
    (lambda: Optimizer("adam", momentum=0.9), "momentum belongs to sgd"),
    (lambda: Optimizer("sgd", momentum=1.0), "less than 1"),
    (lambda: Optimizer("adam", clip=0.0), "clip must be positive"),
    (lambda: Optimizer("adam", weight_decay=-1.0), "weight_decay must be"),
    (lambda: Optimizer("adam", renew_every=0), "renew_every must be"),
)


def test_refuses_networks_and_measures_of_another_size(run):
    with pytest.raises(ValueError, match="qkv has 1 member, but 5 were asked for"):
        train(ensemble(networks=lambda members: Decoder(CONFIG, [0])), run)
    with pytest.raises(ValueError, match="measure 'loss' gave 2 values for 5 members"):
        train(ensemble(measures={"loss": lambda network, members: torch.zeros(2)}), run)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("together", [5, 2])
def test_compiled_and_captured_steps_are_the_same_steps(tmp_path, together):
    runs = {device: fresh(tmp_path / f"{device}.sqlite") for device in ("cpu", "cuda")}
    for device, run in runs.items():
        moved = {
            "networks": lambda members, d=device: networks(members).to(d),
            "batch": lambda step, members, d=device: tuple(t.to(d) for t in batch(step, members)),
        }
        counters.clear()
        train(ensemble(device=device, together=together, **moved), run)
        compiled = counters["stats"]["unique_graphs"]
        assert compiled >= 5 if device == "cuda" else compiled == 0  # with the optimizer's update
    np.testing.assert_allclose(runs["cuda"].array("weights"), runs["cpu"].array("weights"), atol=1e-7)
    np.testing.assert_allclose(runs["cuda"].array("train_loss"), runs["cpu"].array("train_loss"), atol=1e-7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["tf32", "half-logits", "half"])
def test_lower_precision_follows_the_same_path(tmp_path, precision):
    """Reduced products are a choice that must be seen to be harmless: the loss over training stays within 1 %."""
    runs = {kind: fresh(tmp_path / f"{kind}.sqlite") for kind in ("float32", precision)}
    for kind, run in runs.items():
        train(language_models(precision=kind), run)
    exact, reduced = (run.array("train_loss") for run in runs.values())
    assert exact[-1].max() < 0.8 * exact[0].min()  # something was learned
    np.testing.assert_allclose(reduced, exact, rtol=0.01)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_refuses_a_gpu_that_is_not_there():
    with pytest.raises(ValueError, match="torch sees none here"):
        ensemble(device="cuda")


@pytest.mark.long
def test_an_engine_compiles_the_parts_of_its_step():
    states = []
    for compiler, graphs in ((None, 0), ("aot_eager", 4)):  # keys, embedding, block, cross-entropy
        engine = Engine(ensemble(), range(5))
        engine.compiler = compiler
        engine.load_members(range(5), None)
        with room_to_compile(), products("float32"):
            counters.clear()
            list(engine.advance(0, 3))
            assert counters["stats"]["unique_graphs"] == graphs
        states.append(engine.state())
    for name, plain in states[0].items():
        torch.testing.assert_close(states[1][name], plain, rtol=1e-9, atol=1e-12)


def test_an_engine_dies_with_its_last_name():
    """It holds most of a GPU's memory: that must not wait until Python looks for cycles, nor happen at any time."""
    engine = Engine(ensemble(), range(5))
    engine.load_members(range(5), None)
    list(engine.advance(0, 2))
    ends = [weakref.ref(engine), weakref.ref(engine.networks)]
    gc.disable()
    try:
        del engine
        assert [end() for end in ends] == [None, None]
    finally:
        gc.enable()


def test_what_takes_long_to_save_is_saved_less_often(run, monkeypatch):
    """At most a hundredth of the time: a second of writing is followed by a hundred of training."""
    now, saves = 0.0, []

    def slow(*_):
        nonlocal now
        saves.append(now)
        now += 1.0

    def batch_of_a_second(step, members):
        nonlocal now
        now += 1.0
        return batch(step, members)

    monkeypatch.setattr("joma.training.trainer.monotonic", lambda: now)
    monkeypatch.setattr("joma.training.trainer.Checkpoint.save", slow)
    train(layers(batch=batch_of_a_second, steps=250), run, checkpoint_every=15.0)
    assert len(saves) == 3
    assert saves[0] < 30
    assert all(later - sooner > 100 for sooner, later in pairwise(saves))
