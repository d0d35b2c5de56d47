"""Several ensembles in one run: side by side or one after the other, killed, told of, too large for memory."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from later import some_now
from small_ensembles import Killed, batch, fresh, language_models, layers

from joma.runs import Run
from joma.training import Optimizer, train, train_all
from joma.training._telling import Teller
from joma.training.engine import Engine


def several():
    return {
        "a": layers(),
        "b": layers(members=2, optimizer=Optimizer("sgd", rate=1e-2), steps=31, measure_at=(0, 7, 20)),
        "c": layers(together=2, steps=25, measure_at=(11,)),
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    run = fresh(tmp_path_factory.mktemp("alone") / "alone.sqlite")
    for name, one in several().items():
        train(one, run, name=name)
    return run


def test_side_by_side_gives_what_one_after_the_other_gives(tmp_path, alone):
    together = fresh(tmp_path / "together.sqlite")
    train_all(several(), together, side_by_side=True)
    assert sorted(alone.names()) == sorted(together.names())
    for name in alone.names():
        assert alone.steps(name).tolist() == together.steps(name).tolist()
        np.testing.assert_array_equal(alone.array(name), together.array(name))
    assert not list(tmp_path.glob("*.checkpoint"))


@pytest.mark.parametrize(("side_by_side", "dies"), some_now(product([True, False], "abc"), every=2))
def test_several_ensembles_go_on_after_a_kill(tmp_path, alone, dies, side_by_side):
    run = fresh(tmp_path / "killed.sqlite")

    def deadly(step, members):
        if step == 11:
            raise Killed
        return batch(step, members)

    doomed = several()
    doomed[dies] = replace(doomed[dies], batch=deadly)
    with pytest.raises(Killed):
        train_all(doomed, run, side_by_side=side_by_side, checkpoint_every=0.0)
    run.close()
    run = Run.open(run.path, write=True)
    train_all(several(), run, side_by_side=side_by_side)
    for name in alone.names():
        assert alone.steps(name).tolist() == run.steps(name).tolist()
        np.testing.assert_array_equal(alone.array(name), run.array(name))


@pytest.mark.parametrize("side_by_side", [True, False])
def test_what_is_told_of_them(tmp_path, monkeypatch, side_by_side):
    run = fresh(tmp_path / "a.sqlite")
    clock = iter(range(10**6))
    monkeypatch.setattr("joma.training._telling.monotonic", lambda: next(clock))
    heard = []
    train_all(
        several(), run, side_by_side=side_by_side, progress=lambda *told: heard.append(told), checkpoint_every=9e9
    )
    shares = [share for share, _ in heard]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 1
    begin = f"{'a, b, c: 12' if side_by_side else 'a: 5'} networks, step 5 of 12, loss "
    assert heard[0][1].startswith(begin)
    assert not heard[0][1].endswith(" left")  # a pace is not known before all have had a turn
    assert heard[-1][1].endswith(" left")


def test_compiling_is_told_and_does_not_count_as_pace(monkeypatch):
    alike = {"networks": lambda members: torch.nn.Linear(1, 1), "batch": lambda step, members: (torch.ones(1),)}
    on_a_gpu = SimpleNamespace(device="cuda", steps=100, members=2, first=0, **alike)
    heard = []
    clock = [0.0]
    monkeypatch.setattr("joma.training._telling.monotonic", lambda: clock[0])
    teller = Teller({"new": on_a_gpu, "done": on_a_gpu}, lambda share, doing: heard.append(doing))
    teller.begin("new", 0)
    teller.begin("done", 100)
    for name in ("new", "done"):
        teller.tell(name, ["new", "done"], lambda: 1.0)
    assert heard == ["new: compiling"]
    clock[0], teller.step["new"] = 1000.0, 20  # it took long
    teller.start_clock()
    clock[0], teller.step["new"] = 1010.0, 60
    teller.tell("new", ["new"], lambda: 1.0)
    assert heard[1:] == ["new: 2 networks, step 60 of 100, loss 1.000, 10 s left"]


def test_the_share_is_that_of_the_work():
    """Steps that are left, times members, weights and tokens: 100 * 2 * 2 * 1 of one, 30 * 4 * 3 * 5 of the other."""
    one = SimpleNamespace(
        steps=100, first=0, members=2,
        networks=lambda members: torch.nn.Linear(1, 1), batch=lambda step, members: (torch.ones(1),),
    )  # fmt: skip
    other = SimpleNamespace(
        steps=50, first=20, members=4,
        networks=lambda members: torch.nn.Linear(2, 1), batch=lambda step, members: (torch.ones(5),),
    )  # fmt: skip
    teller = Teller({"one": one, "other": other}, lambda share, doing: None)
    assert teller.share == 0
    teller.step["other"] = 35
    assert teller.share == pytest.approx(1800 / 2200 / 2)
    teller.step["one"] = 25
    assert teller.share == pytest.approx(1800 / 2200 / 2 + 400 / 2200 / 4)
    teller.step, teller.part = {"one": 100, "other": 50}, {"one": 0.5, "other": 0.5 + 2**-52}  # no more than all
    assert teller.share == 1


@pytest.mark.parametrize("side_by_side", [True, False])
def test_an_interrupt_loses_nothing(tmp_path, alone, side_by_side):
    """Ctrl-C in the middle of a step: a checkpoint is made at the end of the turn, and nothing is trained twice."""
    made = []

    def counted(step, members):
        made.append(step)
        if step == 7 and made.count(7) == 1:
            signal.raise_signal(signal.SIGINT)
        return batch(step, members)

    begun = several()
    begun["b"] = replace(begun["b"], batch=counted)
    run = fresh(tmp_path / "interrupted.sqlite")
    with pytest.raises(KeyboardInterrupt):
        train_all(begun, run, side_by_side=side_by_side)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    run.close()
    run = Run.open(run.path, write=True)
    train_all(begun, run, side_by_side=side_by_side)
    trained = [step for step in made if step > 0]  # the first batch is also asked for its size
    assert sorted(trained) == list(range(1, 31))
    for name in alone.names():
        np.testing.assert_array_equal(alone.array(name), run.array(name))


def test_a_second_interrupt_does_not_wait(tmp_path):
    def impatient(step, members):
        if step == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("it waited")
        return batch(step, members)

    with pytest.raises(KeyboardInterrupt):
        train(layers(batch=impatient), fresh(tmp_path / "a.sqlite"))


def test_too_little_memory_for_all_at_once(tmp_path, alone, monkeypatch):
    """Then they take turns; and an ensemble that is still too large does so in smaller groups."""
    run = fresh(tmp_path / "a.sqlite")
    set_up = Engine.__init__

    def crowded(engine, ensemble, members, *, urgent):
        if len(members) > 3 or (len(members) > 1 and not told):
            raise torch.OutOfMemoryError
        set_up(engine, ensemble, members, urgent=urgent)

    told = []
    monkeypatch.setattr(Engine, "__init__", crowded)
    train_all(several(), run, side_by_side=True, progress=lambda _, doing: told.append(doing))
    assert told[0] == "out of memory: going on with one ensemble after the other"
    assert "out of memory: going on with 3 networks at a time" in told
    for name in alone.names():
        np.testing.assert_allclose(run.array(name), alone.array(name), rtol=1e-12)


def test_a_network_that_does_not_fit_alone_ends_it(tmp_path, monkeypatch):
    tried = []
    told = []

    def full(engine, ensemble, members, *, urgent):
        tried.append(len(members))
        assert len(tried) < 9, "it does not end"
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Engine, "__init__", full)
    with pytest.raises(torch.OutOfMemoryError):
        train(layers(members=5), fresh(tmp_path / "a.sqlite"), progress=lambda _, doing: told.append(doing))
    assert tried == [5, 2, 2, 1]  # the first of one group, of two, of three and of five
    assert [each.rpartition("with ")[2] for each in told if each.startswith("out of memory")] == [
        "3 networks at a time",
        "2 networks at a time",
        "1 network at a time",
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["float32", "half-logits"])
def test_side_by_side_on_streams_of_their_own(tmp_path, precision):
    several = {f"L{layers}": language_models(layers, precision=precision) for layers in (1, 2, 4)}
    alone, together = fresh(tmp_path / "alone.sqlite"), fresh(tmp_path / "together.sqlite")
    train_all(several, alone, side_by_side=False)
    train_all(several, together)
    for name in alone.names():
        np.testing.assert_allclose(together.array(name), alone.array(name), rtol=0.01)
