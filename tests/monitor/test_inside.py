"""Attention measured in the training pass itself, one layer per step in turn, with training left as it is."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import LENGTH, PROBE, TEXT, Attention, Model, Steady, gpt2, llama, loss_of, made, same, train
from torch import nn
from torch.utils.checkpoint import checkpoint

from joma.host.errors import JomaError
from joma.monitor import LargestLogit, Monitor
from joma.runs import Run

ALL = ["entropy", "largest_logit", "sink_mass", "effective_keys", "spread"]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class Checkpointed(Steady):
    def __init__(self, reentrant=False):
        super().__init__()
        self.reentrant = reentrant

    def forward(self, ids):
        x = self.drop(self.embed(ids))
        for block in self.h:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def inputs_of(model, run):
    seen, hooks = {}, []
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            keep = lambda module, given, name=name: seen.setdefault(name, []).append(given[0].detach().clone())
            hooks.append(module.register_forward_pre_hook(keep))
    run()
    for hook in hooks:
        hook.remove()
    return seen


def slow_entropy(module, x):
    q, k, _ = F.linear(x.double(), module.qkv.weight.double(), module.qkv.bias.double()).chunk(3, -1)
    q, k = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in (q, k))
    logits = q @ k.mT / q.shape[-1] ** 0.5
    hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    p = logits.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.special.entr(p).sum(-1).mean((0, 2)).detach(), logits.masked_fill(hidden, -torch.inf).amax((0, 2, 3))


def test_every_layer_has_its_turn_and_its_numbers_are_those_of_the_pass_of_that_step():
    model, seen = made(Steady), []
    sink = lambda step, values: seen.append(step)
    with Monitor(model, inside=True, every=1, measures=ALL, sinks=sink) as monitor:
        expected = {}
        for step in range(1, 8):
            given = inputs_of(model, lambda step=step: loss_of(model, TEXT[step]).backward())
            before = {name: slow_entropy(model.get_submodule(name), x[0]) for name, x in given.items()}
            turn = None if step == 1 else f"h.{(step - 2) % 3}"
            expected |= {name: each for name, each in before.items() if turn in (None, name)}
            torch.optim.SGD(model.parameters(), lr=0.5).step()
            monitor.step()
            if step in (1, 4, 7):
                found = monitor.latest
                entropy = torch.stack([expected[name][0] for name in found["entropy"].rows.names])
                largest = torch.stack([expected[name][1] for name in found["entropy"].rows.names])
                np.testing.assert_allclose(found["entropy"].values, entropy, **CLOSE)
                np.testing.assert_allclose(found["largest_logit"].values, largest.detach(), **CLOSE)
    assert seen == [1, 4, 7]
    assert monitor.latest["entropy"].rows.keys == (LENGTH,) * 3
    parts = {part: monitor.latest[f"spread/{part}"].values for part in ("variance", "shared", "specific", "cross")}
    np.testing.assert_allclose(parts["shared"] + parts["specific"] + parts["cross"], parts["variance"], **CLOSE)


def test_the_interval_is_the_smallest_of_attention_and_others_keep_their_own():
    seen = []
    sink = lambda step, values: seen.append((step, sorted({name.partition("/")[0] for name in values})))
    measures = {"entropy": 2, "sink_mass": 4, "norm": 3}
    model = made(Steady)
    train(model, Monitor(model, inside=True, measures=measures, sinks=sink), steps=9)
    assert seen == [
        (0, ["norm"]), (2, ["entropy", "sink_mass"]), (3, ["norm"]), (6, ["norm"]), (8, ["entropy", "sink_mass"]),
        (9, ["norm"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Model, {}),
        (Steady, {"accumulate": 3}),
        (Checkpointed, {}),
        (lambda: Checkpointed(reentrant=True), {}),
        (lambda: nn.ModuleList([Steady()])[0], {"rate": 0.1}),
    ],
    ids=["counters", "accumulated", "checkpointed", "reentrant", "fast"],
)
def test_training_is_the_same_bit_for_bit(kind, options):
    found = []
    for watched in (False, True):
        model = made(kind)
        monitor = Monitor(model, inside=True, every=1, measures=[*ALL, "stable_rank"]) if watched else None
        found.append(train(model, monitor, steps=8, **options))
    assert same(*found)
    assert "entropy" in monitor.latest


def test_of_several_passes_the_first_is_measured_and_evaluation_is_not(monkeypatch):
    """A pass of evaluation before, passes of accumulation after, and the pass that checkpointing makes again."""
    model, calls = made(Checkpointed), []
    monkeypatch.setattr(
        "joma.probes._products.attention_stats",
        lambda q, k, **options: (
            calls.append(q.shape[0]) or pytest.importorskip("joma.measure").attention_stats(q, k, **options)
        ),
    )
    with Monitor(model, inside=True, every=1, measures=["entropy"], alarms=[]) as monitor:
        for _ in range(4):
            with torch.no_grad():
                model(TEXT[0][:1])
            for rows in (2, 3):
                loss_of(model, TEXT[1][:rows]).backward()
            monitor.step()
    assert calls == [2] * 6  # three layers at the first step, then one per step


def test_nothing_happens_while_a_cuda_graph_is_captured(monkeypatch):
    model = made(Steady)
    with Monitor(model, inside=True, every=1, measures=["entropy"]) as monitor:
        with monkeypatch.context() as capture:
            capture.setattr(torch.cuda, "is_initialized", lambda: True)
            capture.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            capture.setattr("joma.probes._products.attention_stats", lambda *_, **__: pytest.fail("measured"))
            loss_of(model, PROBE).backward()
            monitor.step()
        assert monitor.step_number == 0
        loss_of(model, PROBE).backward()
        monitor.step()
        assert monitor.latest["entropy"].values.shape == (3, 2)


def hooks_of(model):
    return [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()]


def test_hooks_are_there_for_measured_steps_alone_and_none_stays():
    model = made(Steady)
    with Monitor(model, inside=True, every=2, measures=["entropy"]) as monitor:
        assert sum(hooks_of(model)) == 0
        for _ in range(2):
            loss_of(model, PROBE).backward()
            monitor.step()
        assert sum(hooks_of(model)) == 0
        loss_of(model, PROBE).backward()
        monitor.step()
        assert 0 < sum(hooks_of(model)) <= 5
        assert hooks_of(model.h[0]) != hooks_of(model.h[1])
    assert sum(hooks_of(model)) == 0


def test_names_choose_whose_turn_it_is():
    model, seen = made(Steady), []
    options = {"exclude": "h.1", "sinks": lambda step, _: seen.append(step)}
    with Monitor(model, inside=True, every=1, measures=["entropy"], **options) as monitor:
        for _ in range(3):
            loss_of(model, PROBE).backward()
            monitor.step()
    assert monitor.latest["entropy"].rows.names == ("h.0", "h.2")
    assert seen == [1, 3]  # the layer that is left out has no turn


def test_a_loop_that_counts_by_itself_is_measured_once_its_pace_is_known():
    model, seen = made(Steady), []
    with Monitor(
        model, inside=True, every=10, measures=["entropy"], sinks=lambda step, _: seen.append(step)
    ) as monitor:
        for step in range(10, 70, 10):
            loss_of(model, PROBE).backward()
            monitor.step(step)
    assert seen == [20, 50]


def test_a_record_goes_on(tmp_path):
    out, model = tmp_path / "run.joma", made(Steady)
    for _ in range(2):
        train(model, Monitor(model, inside=True, every=1, measures=["entropy", "norm"], out=out), steps=7)
    with Run.open(out) as run:
        assert run.steps("entropy").tolist() == [1, 4, 7, 8, 11, 14]
        assert run.array("entropy").shape == (6, 3, 2)
    with pytest.raises(JomaError, match="was recorded with another probe batch"):
        Monitor(model, probe=PROBE, out=out).__enter__()


def test_attention_of_transformers_with_padding_is_that_of_a_probe():
    model = made(lambda: llama(num_key_value_heads=1, initializer_range=0.6), seed=3)
    mask = torch.ones_like(PROBE)
    mask[0, 5:] = 0
    batch = {"input_ids": PROBE, "attention_mask": mask}
    with Monitor(model, probe=batch, measures=ALL) as fixed:
        pass
    with Monitor(model, inside=True, every=1, measures=ALL) as monitor:
        model(**batch, labels=PROBE).loss.backward()
        monitor.step()
    for name, table in fixed.latest.items():
        assert monitor.latest[name].rows == table.rows
        np.testing.assert_allclose(monitor.latest[name].values, table.values, **CLOSE)


def test_the_attention_that_training_runs_on_stays():
    """Where transformers' attention is written out, nothing is seen, and nothing is switched."""
    model = gpt2(attn_implementation="eager")
    with Monitor(model, inside=True, every=1, measures=["entropy"]) as monitor:
        model(PROBE, labels=PROBE).loss.backward()
        with pytest.raises(JomaError, match="saw no attention in the training pass of GPT2LMHeadModel: looked for"):
            monitor.step()
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("how", ["around", "in place"])
def test_compiled_models_are_refused(how):
    model = made(Steady)
    given = torch.compile(model, backend="eager") if how == "around" else model
    if how == "in place":
        model.compile(backend="eager")
    with pytest.raises(
        JomaError, match="looks into compiled code of transformers' models alone, and Steady is compiled"
    ):
        Monitor(given, inside=True)


def test_a_model_that_was_compiled_behind_the_back_trains_as_before():
    """What is compiled runs no hook: the first step says so, and training is what it was."""
    found = []
    for watched in (False, True):
        torch.compiler.reset()
        model = made(Steady)
        monitor = Monitor(model, inside=True, every=1, measures=["entropy", "norm"]) if watched else None
        called, refused = torch.compile(model, backend="aot_eager"), []
        if monitor is not None:
            plain = monitor.step
            monitor.step = lambda plain=plain, refused=refused: _told(plain, refused)
        found.append(train(model, monitor, called=called, steps=3))
    assert len(refused) == 1
    assert "saw no attention in the training pass of Steady" in refused[0]
    assert same(*found)


def _told(step, refused):
    try:
        step()
    except JomaError as error:
        refused.append(str(error))


def test_a_layer_that_breaks_while_it_is_measured_does_not_break_training(log, monkeypatch):
    model = made(Steady)
    with Monitor(model, inside=True, every=1, measures=["entropy", "norm"]) as monitor:
        loss_of(model, PROBE).backward()
        monitor.step()
        monkeypatch.setattr("joma.probes._products.attention_stats", lambda *_, **__: 1 / 0)
        loss_of(model, PROBE).backward()
        monitor.step()
        loss_of(model, PROBE).backward()
        monitor.step()
        assert sum(hooks_of(model)) == 0
    assert log == ["step 2: measuring failed and ends here, training continues: division by zero"]


def test_a_pass_that_breaks_leaves_nothing_behind():
    class Fragile(Attention):
        broken = False

        def forward(self, x):
            y = super().forward(x)
            if self.broken:
                raise RuntimeError("broken")
            return y

    model = made(lambda: Steady(kind=Fragile)).eval()
    with Monitor(model, inside=True, every=1, measures=["entropy"]) as monitor:
        model.h[1].broken = True
        with pytest.raises(RuntimeError, match="broken"):
            loss_of(model, TEXT[0])
        model.h[1].broken = False
        assert torch.overrides._get_current_function_mode() is None
        loss_of(model, PROBE).backward()
        monitor.step()
    with Monitor(model, probe=PROBE, measures=["entropy"]) as alone:
        np.testing.assert_allclose(monitor.latest["entropy"].values, alone.latest["entropy"].values, **CLOSE)


def test_a_layer_whose_step_made_no_pass_has_its_turn_at_the_next_one(log):
    model, seen = made(Steady), []
    sink = lambda step, values: seen.append(step)
    with Monitor(model, inside=True, every=1, measures=["entropy"], sinks=sink) as monitor:
        for step in range(1, 6):
            if step != 3:
                loss_of(model, PROBE).backward()
            monitor.step()
    assert seen == [1, 5]
    assert log == []


def test_alarms_of_before_are_not_told_again_when_a_record_goes_on(tmp_path):
    """Attention is first seen in training here, so alarms learn of its past at that step."""
    found = []
    for _ in range(2):
        options = {"alarms": [LargestLogit(1e-6)], "on_alarm": lambda alert: None, "out": tmp_path / "run.joma"}
        model = made(Steady)
        with Monitor(model, inside=True, every=1, measures=["largest_logit"], **options) as monitor:
            loss_of(model, PROBE).backward()
            monitor.step()
        found.append(len(monitor.alerts))
    assert found[0] > 0
    assert found[1] == 0
