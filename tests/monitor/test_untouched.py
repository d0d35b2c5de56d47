"""Training with a monitor ends with the same bits as without: weights, buffers, attributes, random numbers."""

import random

import numpy as np
import pytest
import torch
from networks import LENGTH, PROBE, Block, Model, gpt2, llama, loss_of, made, same, train
from torch import nn
from torch.utils.checkpoint import checkpoint

from joma.monitor import Monitor
from joma.probes._untouched import WeightChanged, random_numbers_kept, untouched

ASKED = ["gradient_stable_rank", "embedding_coherence"]  # only on request
MEASURES = ["entropy", "largest_logit", "sink_mass", "effective_keys", "spread", "stable_rank", "norm", "update_ratio"]


def monitored(model, **options):
    return Monitor(model, **{"probe": PROBE, "every": 2, "measures": MEASURES} | options)


def twins(kind=Model, *, compiled=False, **how):
    found = []
    for watched in (False, True):
        model = made(kind)
        called = torch.compile(model, backend="eager") if compiled else model
        found.append(
            train(model, monitored(called, measures=[*MEASURES, *ASKED]) if watched else None, called=called, **how)
        )
    return found


class Noisy(Model):
    def forward(self, ids):
        return super().forward(ids) + 0.1 * torch.rand(())


@pytest.mark.parametrize(
    "how",
    [{}, {"accumulate": 3}, {"kind": Noisy}, {"compiled": True, "steps": 3}],
    ids=["plain", "accumulated", "random numbers in the pass", "compiled"],
)
def test_dropout_batch_norm_and_counters_are_left_as_they_were(how):
    plain, watched = twins(**how)
    assert same(plain, watched)
    passes = how.get("steps", 6) * how.get("accumulate", 1)
    assert float(plain["h.0.load"]) == 4 * passes  # the probe's passes are not counted


def test_it_would_be_seen_if_something_were_left(monkeypatch):
    """The control: a plain pass in the loop changes the numbers."""
    plain, _ = twins()
    model = made()
    monitor = monitored(model)
    monkeypatch.setattr(monitor, "step", lambda: model(PROBE))
    assert not same(plain, train(model, monitor))


class Checkpointed(Model):
    reentrant = False

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Reentrant(Checkpointed):
    reentrant = True


@pytest.mark.parametrize("kind", [Checkpointed, Reentrant])
def test_activation_checkpointing_is_counted_once(kind):
    plain, watched = twins(kind)
    assert same(plain, watched)
    model = made(kind)
    with monitored(model) as monitor:
        assert monitor.latest["entropy"].values.shape == (2, 2)


@pytest.mark.parametrize("watched", [False, True])
def test_inside_a_region_of_autocast_no_cast_is_left_behind(watched):
    """A cast made without gradients that stayed in autocast's cache would cut weights off from their gradient."""
    model = made()
    with monitored(model, every=1) as monitor, torch.autocast("cpu", torch.bfloat16):
        if watched:
            monitor.step()
            assert torch.is_autocast_enabled("cpu")
        loss_of(model, PROBE).backward()
    assert [name for name, each in model.named_parameters() if each.grad is None] == []


def test_autocast_inside_is_that_of_outside_without_its_cache():
    model = made()
    for enabled in (False, True):
        with torch.autocast("cpu", torch.float16, enabled=enabled), untouched(model):
            assert torch.is_autocast_enabled("cpu") == enabled
            assert torch.get_autocast_dtype("cpu") == torch.float16
            assert not torch.is_autocast_cache_enabled()


def test_a_pass_keeps_nothing_for_gradients():
    model, seen = made(), []
    model.head.register_forward_hook(lambda module, inputs, output: seen.append(output.requires_grad))
    with monitored(model, every=1) as monitor:
        monitor.step()
    assert seen == [False, False]


@pytest.mark.parametrize("make", [gpt2, llama])
def test_models_of_transformers(make):
    def loss(model, ids):
        return model(input_ids=ids, labels=ids).loss

    found = []
    for watched in (False, True):
        model = made(make)
        model.train()
        monitor = Monitor(model, probe={"input_ids": PROBE, "labels": PROBE}, every=2, measures=MEASURES)
        before = model.config._attn_implementation
        found.append(train(model, monitor if watched else None, loss=loss, steps=4))
        assert model.config._attn_implementation == before
    assert same(*found)


def test_everything_of_a_module_comes_back():
    model = made()
    model.h[0].eval()
    model.h[1].drop.eval()
    loss_of(model, PROBE).backward()
    modes = [each.training for each in model.modules()]
    gradients = [each.grad.clone() for each in model.parameters()]
    buffers = {name: (id(each), each.clone()) for name, each in model.named_buffers()}
    state = [(block.passes, float(block.seen), block.last) for block in model.h]
    with monitored(model):
        pass
    assert [each.training for each in model.modules()] == modes
    assert all(torch.equal(a, b.grad) for a, b in zip(gradients, model.parameters(), strict=True))
    for name, each in model.named_buffers():
        assert id(each) == buffers[name][0]
        assert torch.equal(each, buffers[name][1])
    assert all(
        (block.passes, float(block.seen)) == before[:2] and block.last is before[2]
        for block, before in zip(model.h, state, strict=True)
    )


def hooks_of(model):
    return [
        (len(each._forward_hooks), len(each._forward_pre_hooks), len(each._backward_hooks)) for each in model.modules()
    ]


def test_no_hook_stays_neither_inside_the_block_nor_after_it():
    model = made()
    before = hooks_of(model)
    with monitored(model) as monitor:
        monitor.step()
        monitor.step()
        assert hooks_of(model) == before
        assert "forward" not in vars(model)
    assert hooks_of(model) == before


def test_a_pass_that_breaks_restores_all_the_same():
    model = made()
    loss_of(model, PROBE)

    def broken():
        with untouched(model):
            model(PROBE)
            assert not model.training
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        broken()
    assert model.training
    assert float(model.h[0].load) == len(PROBE)


def test_tensors_that_nobody_can_write_to_are_left_alone():
    model = made()
    model.register_buffer("repeated", torch.zeros(1).expand(3))
    with torch.inference_mode():
        model.cached = torch.zeros(3)
    with monitored(model) as monitor:
        assert monitor.latest["entropy"].values.shape == (2, 2)


def test_random_numbers_of_python_and_numpy_come_back_too():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    with random_numbers_kept([]):
        random.random(), np.random.rand(), torch.rand(3)  # noqa: NPY002
    assert random.random() == random.Random(0).random()
    assert np.random.rand() == np.random.RandomState(0).rand()  # noqa: NPY002


def test_a_pass_that_changes_weights_is_refused():
    class Moving(Block):
        def forward(self, x):
            with torch.no_grad():
                self.attn.out.weight.mul_(0.99)
            return super().forward(x)

    with pytest.raises(WeightChanged, match=r"changes attn\.out\.weight: it cannot be monitored"):
        Monitor(made(Moving), probe=torch.randn(2, LENGTH, 8)).__enter__()


class Holding(nn.Module):
    """Holds tensors in places that are easily forgotten, and changes them at every pass."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("factor", torch.full((3,), 2.0))
        self.register_buffer("slice", torch.zeros(3).expand(4, 3)[:1])  # writable, though its stride is 0
        self.counts = {"passes": torch.zeros(1)}

    def forward(self, x):
        self.slice.add_(1.0)
        self.counts["passes"].add_(1.0)
        return x * self.weight * self.factor


def test_tensors_in_dictionaries_and_slices_of_repeated_ones_come_back():
    model = Holding()
    with untouched(model):
        model(torch.ones(3))
    assert float(model.counts["passes"]) == 0
    assert model.slice.tolist() == [[0.0, 0.0, 0.0]]


def test_a_graph_that_holds_a_buffer_still_gives_its_gradients():
    """The pass comes between the forward and the backward pass of training."""
    model = Holding()
    result = model(torch.ones(3)).sum()
    with untouched(model):
        model(torch.ones(3))
    result.backward()
    assert model.weight.grad.tolist() == [2.0, 2.0, 2.0]
