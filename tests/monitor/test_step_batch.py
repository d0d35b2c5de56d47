"""probe="step": some rows of the batch of the step itself, given or caught."""

import numpy as np
import pytest
import torch
from networks import LENGTH, PROBE, TEXT, Model, Steady, loss_of, made, same, train
from torch import nn

from joma.host.errors import JomaError
from joma.monitor import Monitor
from joma.monitor.batch import StepBatch

MEASURES = ["entropy", "largest_logit", "norm"]


class Counting(nn.Module):
    """A mixture of two experts that keeps its load in a buffer, by which it routes."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 2)
        self.experts = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.register_buffer("load", torch.zeros(2))
        self.losses = []

    def forward(self, x):
        chosen = (self.gate(x) - 0.01 * self.load).argmax(-1)
        self.load += torch.stack([(chosen == at).sum() for at in range(2)])
        self.losses.append(self.load.std())
        each = torch.stack([expert(x) for expert in self.experts])
        return each.gather(0, chosen[None, ..., None].expand(1, *x.shape))[0]


class Experts(Model):
    def __init__(self):
        super().__init__()
        for block in self.h:
            block.mlp = Counting()


def offline(model, ids):
    with Monitor(model, probe=ids, measures=MEASURES) as monitor:
        pass
    return {name: table.values for name, table in monitor.latest.items()}


@pytest.mark.parametrize("how", ["given", "caught", "named"])
def test_numbers_are_those_of_the_first_rows_of_each_step(how):
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, probe="step", rows=2, every=2, measures=MEASURES) as monitor:
        assert set(monitor.latest) == {"norm"}
        for step in range(1, 5):
            with torch.no_grad():
                model(TEXT[10])  # an evaluation is no step
            loss_of(model, TEXT[step]).backward()
            loss_of(model, TEXT[11]).backward()  # of several batches the first is read
            optimizer.step()
            monitor.step(*{"given": [TEXT[step]], "caught": [], "named": [{"ids": TEXT[step]}]}[how])
            optimizer.zero_grad()
            if step % 2 == 0:
                expected = offline(model, TEXT[step][:2])
                for name in MEASURES:
                    np.testing.assert_allclose(monitor.latest[name].values, expected[name], rtol=1e-6)
    assert not model._forward_pre_hooks


def test_a_number_may_come_with_the_batch():
    model, seen = made(), []
    with Monitor(
        model, probe="step", every=5, measures=["entropy"], sinks=lambda step, _: seen.append(step)
    ) as monitor:
        for step in (3, 5, 8, 10):
            monitor.step(TEXT[step], step=step)
    assert seen == [5, 10]


@pytest.mark.parametrize("kind", [Model, Experts])
@pytest.mark.parametrize("probe", ["step", PROBE, None], ids=["step", "fixed", "inside"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_is_the_same_bit_for_bit(kind, probe, accumulate):
    """Buffers that a pass changes and that the next pass reads, attributes, dropout, batch norm."""
    found = []
    for watched in (False, True):
        model = made(kind)
        options = {"every": 1, "measures": MEASURES, "inside": probe is None}
        monitor = Monitor(model, probe=probe, **options) if watched else None
        found.append(train(model, monitor, steps=5, accumulate=accumulate))
        if kind is Experts:
            assert len(model.h[0].mlp.losses) == 5 * accumulate
    assert same(*found)
    assert "entropy" in monitor.latest


def test_compiled_models_need_their_batch_given():
    found = []
    for watched in (False, True):
        torch.compiler.reset()
        model = made(Steady)
        called = torch.compile(model, backend="aot_eager")
        monitor = Monitor(called, probe="step", every=2, measures=MEASURES) if watched else None
        if monitor is not None:
            plain, batches = monitor.step, iter(TEXT)
            monitor.step = lambda plain=plain, batches=batches: plain(next(batches))
        found.append(train(model, monitor, called=called, steps=4))
    assert same(*found)
    assert "entropy" in monitor.latest


def test_a_step_without_a_batch_is_refused_in_one_sentence():
    sentence = r"no pass of Model was seen, so call monitor.step\(batch\)"
    monitor = Monitor(made(), probe="step", every=1, measures=["entropy"])
    with monitor, pytest.raises(JomaError, match=sentence):
        monitor.step()


def test_a_batch_that_does_not_fit_is_refused_at_the_first_step_and_told_later(log):
    model = made()
    monitor = Monitor(model, probe="step", every=1, measures=["entropy"])
    with monitor, pytest.raises(JomaError, match="probe does not fit Model"):
        monitor.step({"words": TEXT[0]})
    with Monitor(model, probe="step", every=1, measures=["entropy"]) as monitor:
        monitor.step(TEXT[0])
        monitor.step({"words": TEXT[0]})
    assert len(log) == 1
    assert log[0].startswith("step 2: measuring failed and ends here, training continues: ")


def test_only_what_has_the_rows_of_the_batch_is_cut():
    batch = StepBatch(made(), 2).rows_of(
        {"ids": PROBE, "bias": torch.zeros(LENGTH, LENGTH), "scale": torch.tensor(2.0)}
    )
    assert {name: tuple(each.shape) for name, each in batch.kwargs.items()} == {
        "ids": (2, LENGTH),
        "bias": (LENGTH, LENGTH),
        "scale": (),
    }
    assert batch.digest == "step"


def test_what_was_caught_is_a_copy():
    """A loop may write its next batch into the tensor of the one before."""
    model, ids = made().eval(), TEXT[1].clone()
    with Monitor(model, probe="step", rows=2, every=1, measures=["entropy"]) as monitor:
        loss_of(model, ids).backward()
        ids.zero_()
        monitor.step()
    np.testing.assert_allclose(monitor.latest["entropy"].values, offline(model, TEXT[1][:2])["entropy"], rtol=1e-6)


def test_a_compiled_pass_is_not_caught():
    torch.compiler.reset()
    model = made(Steady)
    called = torch.compile(model, backend="eager")
    monitor = Monitor(called, probe="step", every=1, measures=["entropy"])
    with monitor:
        loss_of(called, TEXT[0]).backward()
        with pytest.raises(JomaError, match="no pass of Steady was seen"):
            monitor.step()
