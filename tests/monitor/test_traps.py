"""What a practitioner does to a model or to a loop, and what a monitor must make of it."""

import random
from collections import deque

import numpy as np
import pytest
import torch
from networks import LENGTH, PROBE, Block, Model, llama, loss_of, made, same, train
from torch import nn

from joma.monitor import MEASURES, LargestLogit, Monitor
from joma.monitor.batch import ProbeBatch
from joma.runs import Run

OF_ANY = [name for name, measure in MEASURES.items() if measure.needs not in ("gradients", "routers")]
"""Measures of every network, without a step."""


def monitored(model, **options):
    return Monitor(model, **{"probe": PROBE, "every": 1} | options)


class Collecting(Block):
    """Appends an auxiliary loss at every pass, as mixtures of experts do, and draws from generators of its own."""

    def __init__(self):
        super().__init__()
        self.losses, self.latest, self.kinds, self.recent = [], {"loss": None}, {"a"}, deque(maxlen=2)
        self.counts = [torch.zeros(1)]
        self.dice = torch.Generator().manual_seed(1), random.Random(1), np.random.default_rng(1)
        self.of_torch, self.of_python, self.of_numpy = self.dice

    def forward(self, x):
        self.losses.append(x.mean())
        self.recent.append(x.mean())
        self.latest["loss"] = self.latest["other"] = x.mean()
        self.kinds.add("b")
        self.counts[0] += 1
        drawn = torch.rand((), generator=self.of_torch) + self.of_python.random() + self.of_numpy.random()
        return super().forward(x) + 0.1 * drawn + 0.001 * self.counts[0]


class Collector(Model):
    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList([Collecting()])


def test_what_a_pass_appends_or_draws_from_a_module_is_taken_back():
    block = made(Collector).h[0]
    kept = block.losses, block.latest, block.kinds, block.recent
    model = made(Collector)
    model.h[0] = block
    loss_of(model, PROBE)
    del block.latest["other"]
    before = [list(block.losses), dict(block.latest), set(block.kinds), list(block.recent), float(block.counts[0])]
    block.kinds.discard("b")
    with monitored(model) as monitor:
        monitor.step()
    assert all(a is b for a, b in zip(kept, (block.losses, block.latest, block.kinds, block.recent), strict=True))
    assert [id(each) for each in block.losses] == [id(each) for each in before[0]]
    assert [id(each) for each in block.recent] == [id(each) for each in before[3]]
    assert block.latest.keys() == before[1].keys()
    assert block.latest["loss"] is before[1]["loss"]
    assert block.kinds == {"a"}
    assert float(block.counts[0]) == before[4]


def test_generators_and_lists_of_modules_leave_training_as_it_was():
    found = []
    for watched in (False, True):
        model = made(Collector)
        found.append(train(model, monitored(model) if watched else None, steps=3))
    assert same(*found)


def test_a_buffer_that_a_pass_replaces_and_attributes_that_it_makes_are_taken_back():
    class Replacing(Block):
        def forward(self, x):
            self.load = self.load + 1.0  # another tensor under the same name
            self.register_buffer("extra", torch.ones(1))
            self.fresh = x.detach()
            return super().forward(x)

    model = made(Model)
    model.h[0] = made(Replacing)
    load = model.h[0].load
    with monitored(model) as monitor:
        monitor.step()
    assert model.h[0].load is load
    assert float(load) == 0
    assert "extra" not in model.state_dict()
    assert not hasattr(model.h[0], "fresh")
    assert not hasattr(model.h[0], "last")


def test_a_model_in_evaluation_mode_or_frozen_stays_so():
    model = made().eval().requires_grad_(False)
    with monitored(model, measures=OF_ANY) as monitor:
        monitor.step()
    assert not any(each.training for each in model.modules())
    assert not any(each.requires_grad for each in model.parameters())
    assert len(monitor.latest["norm"].rows.names) == 9


def test_tied_weights_are_counted_once_and_a_tied_head_not_at_all():
    model = made()
    model.h[1].mlp[0].weight, model.head.weight = model.h[0].mlp[0].weight, model.embed.weight
    with monitored(model, measures=["norm"]) as monitor:
        names = monitor.latest["norm"].rows.names
    assert len(names) == 7
    assert not {"h.1.mlp.0.weight", "head.weight", "embed.weight"} & set(names)


def test_weights_that_a_model_was_given_later_are_those_that_are_measured():
    model = made()
    with monitored(model, measures=["norm", "update_ratio"]) as monitor:
        model.load_state_dict({name: 3 * each for name, each in made().state_dict().items()}, assign=True)
        monitor.step()
    table = monitor.latest["norm"]
    expected = [float(model.get_parameter(name).detach().norm()) for name in table.rows.names]
    np.testing.assert_allclose(table.values, expected, rtol=1e-5)
    np.testing.assert_allclose(monitor.latest["update_ratio"].values, 2 / 3, rtol=1e-5)


@pytest.mark.parametrize(("every", "kept"), [(1000, {"norm": [0], "steps_taken": [6]}), (3, {"norm": [0, 3, 6]})])
def test_the_number_of_steps_is_kept_where_no_measuring_says_it(tmp_path, every, kept):
    model = made()
    train(model, monitored(model, every=every, measures=["norm"], out=tmp_path / "run.joma"))
    with Run.open(tmp_path / "run.joma") as run:
        assert {name: run.steps(name).tolist() for name in run.names()} == kept


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_a_step_without_gradients_does_not_take_them_from_training(around):
    model = made()
    with monitored(model, measures=OF_ANY) as monitor:
        with around():
            monitor.step()
            assert not torch.is_grad_enabled()
        assert torch.is_grad_enabled()
        monitor.step()
        loss_of(model, PROBE).backward()
    assert monitor.latest["update_ratio"].values.max() == 0
    assert all(each.grad is not None for each in model.parameters())


@pytest.mark.parametrize("around", [None, torch.bfloat16])
def test_the_pass_has_the_autocast_of_training_whether_step_is_called_in_it_or_not(around):
    """The numbers are those of the pass that training makes."""
    model, seen = made(), []
    model.head.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    asked = None if around else torch.bfloat16
    with (
        torch.autocast("cpu", around, enabled=around is not None),
        monitored(model, measures=["entropy"], autocast=asked) as monitor,
    ):
        monitor.step()
        assert torch.is_autocast_enabled("cpu") == (around is not None)
    assert seen == [torch.bfloat16] * 2


def test_an_interrupt_in_the_block_leaves_a_whole_record_and_the_model_as_it_was(tmp_path):
    model = made()

    def interrupted():
        with monitored(model, measures=["entropy"], out=tmp_path / "run.joma") as monitor:
            monitor.step()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert model.training
    with Run.open(tmp_path / "run.joma") as run:
        assert run.steps("entropy").tolist() == [0, 1]


def test_two_monitors_of_one_model_see_the_same_and_leave_training_as_it_was():
    plain, model = train(made()), made()
    one, other = monitored(model), monitored(model, every=2)
    with other:
        with_both = train(model, Both(one, other))
    assert same(plain, with_both)
    assert np.array_equal(one.latest["entropy"].values, other.latest["entropy"].values)


class Both:
    """The first is entered here, the second around it."""

    def __init__(self, one, other):
        self.one, self.other = one, other

    def __enter__(self):
        self.one.__enter__()

    def __exit__(self, *error):
        self.one.__exit__(*error)

    def step(self):
        self.one.step()
        self.other.step()


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: nn.DataParallel(torch.compile(model))])
def test_wrappers_change_no_name_and_a_record_goes_on_without_them(tmp_path, wrap):
    model, options = made(), {"out": tmp_path / "run.joma", "include": "h.1.*"}
    wrapped = wrap(model)  # to a GPU, where one is seen
    for block in model.h:
        block.seen = block.seen.to(model.head.weight.device)
    with monitored(wrapped, **options) as monitor:
        pass
    assert monitor.latest["entropy"].rows.names == ("h.1.attn",)  # behind the block: until then it may be on its way
    assert monitor.latest["norm"].rows.names[0] == "h.1.attn.qkv.weight"
    with monitored(model, **options) as monitor:
        assert monitor.recorded == 0


class Asking(Model):
    config = None

    def forward(self, ids, labels, logits_to_keep=0):
        assert labels.shape == ids.shape
        assert not logits_to_keep  # a loss needs all of them
        return super().forward(ids)


def test_labels_reach_a_model_that_cannot_do_without_them():
    with monitored(made(Asking), probe={"ids": PROBE, "labels": PROBE}, measures=["entropy"]) as monitor:
        assert monitor.latest["entropy"].values.shape == (2, 2)


def test_labels_do_not_reach_a_model_that_can():
    class Free(Model):
        def forward(self, ids, labels=None):
            assert labels is None
            return super().forward(ids)

    with monitored(made(Free), probe={"ids": PROBE, "labels": PROBE}, measures=["entropy"]):
        pass


def test_what_a_tokenizer_gives_is_a_batch():
    transformers = pytest.importorskip("transformers")
    model = made(lambda: llama(num_hidden_layers=1))
    batch = transformers.BatchEncoding({"input_ids": PROBE, "attention_mask": torch.ones_like(PROBE)})
    with monitored(model, probe=batch) as monitor, monitored(model, probe=PROBE) as plain:
        np.testing.assert_allclose(monitor.latest["entropy"].values, plain.latest["entropy"].values, rtol=1e-6)
        assert monitor.latest["entropy"].rows.keys == (LENGTH,)


def test_batches_of_the_same_numbers_in_another_shape_or_order_of_names_are_told_apart():
    digests = [ProbeBatch(each).digest for each in (PROBE, PROBE.reshape(2, -1), PROBE.flip(0), {"ids": PROBE})]
    assert len(set(digests)) == 4
    two = {"ids": PROBE, "mask": PROBE > 3}
    assert ProbeBatch(two).digest == ProbeBatch(dict(reversed(two.items()))).digest
    assert ProbeBatch(two | {"labels": PROBE}).digest == ProbeBatch(two).digest


@pytest.mark.parametrize("given", [PROBE, (PROBE, PROBE), {"ids": PROBE, "labels": PROBE}])
def test_a_batch_goes_to_where_the_model_is(given):
    class Elsewhere(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1, device="meta"))  # a device that every machine has

        def forward(self, ids, labels=PROBE):
            seen.extend([ids.device.type, labels.device.type])

    seen = []
    ProbeBatch(given).call(Elsewhere())
    assert seen[0] == "meta"
    assert seen[1] == ("meta" if isinstance(given, tuple) else "cpu")  # the default, where labels are left out


def test_a_model_of_transformers_makes_no_cache_and_no_more_logits_than_needed():
    class Saving(Model):
        config = None

        def forward(self, ids, use_cache=True, logits_to_keep=0):
            asked.append((use_cache, logits_to_keep))
            return super().forward(ids)

    asked = []
    for probe in ({"ids": PROBE}, {"ids": PROBE, "use_cache": True}):
        with monitored(made(Saving), probe=probe, measures=["entropy"]):
            pass
    assert asked == [(False, 1), (True, 1)]


def test_an_alarm_that_breaks_is_told_once_and_the_others_go_on(log):
    class Broken:
        measure = None

        def look(self, step, tables):
            yield 1 / 0

        def __repr__(self):
            return "Broken()"

    with monitored(made(), alarms=[Broken(), LargestLogit(1e-6)], on_alarm=lambda alert: None) as monitor:
        monitor.step()
    assert log == [
        "alarm Broken() failed at step 0 and is dropped, training continues: ZeroDivisionError: division by zero"
    ]
    assert {each.measure for each in monitor.alerts} == {"largest_logit"}


def test_one_alarm_needs_no_list():
    with monitored(made(), alarms=LargestLogit(1e-6), on_alarm=lambda alert: None) as monitor:
        assert monitor.alerts
