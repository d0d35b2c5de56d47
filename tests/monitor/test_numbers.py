"""What a monitor measures is what one would measure offline, on the same batch."""

import math

import numpy as np
import pytest
import torch
from networks import PROBE, gpt2, made, train
from torch import nn

from joma.measure import stable_rank
from joma.monitor import Monitor, MonitorError
from joma.monitor.names import layer_of
from joma.monitor.tables import Packet, Rows, Table, summary
from joma.probes import attention_spread, collect

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def heads_that_differ():
    return made(lambda: gpt2(n_head=4, initializer_range=0.6), seed=3)


def attention_weights(model):
    model.eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(PROBE, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    return torch.stack(found).double()


def latest(model, **options):
    with Monitor(model, **{"probe": PROBE} | options) as monitor:
        pass
    return {name: table.values for name, table in monitor.latest.items()}


def test_attention_is_that_of_the_slow_weights():
    model = heads_that_differ()
    model.train()  # dropout is on in training, and must not be while measuring
    found = latest(model, measures=["entropy", "sink_mass", "effective_keys", "largest_logit"])
    weights = attention_weights(model)
    entropy = torch.special.entr(weights).sum(-1)
    np.testing.assert_allclose(found["entropy"], entropy.mean((1, 3)), **CLOSE)
    np.testing.assert_allclose(found["sink_mass"], weights[..., 0].mean((1, 3)), **CLOSE)
    np.testing.assert_allclose(found["effective_keys"], entropy.exp().mean((1, 3)), **CLOSE)
    assert found["entropy"].std() > 0.01  # heads that differ, so that a mixed-up one would show


def test_the_largest_logit_and_the_spread_are_those_of_probes():
    model = heads_that_differ().eval()
    found = latest(model, measures=["largest_logit", "spread"])
    with torch.no_grad(), collect(model) as probe:
        model(PROBE)
    each = torch.stack([probe.stats[name][0].max_logit.amax((0, 2)) for name in probe.layers])
    np.testing.assert_allclose(found["largest_logit"], each, **CLOSE)
    offline = attention_spread(model, PROBE)
    for part in ("variance", "shared", "specific", "cross"):
        np.testing.assert_allclose(found[f"spread/{part}"], getattr(offline, part), **CLOSE)


def test_weights_are_those_of_the_matrices_alone():
    model = made()
    with Monitor(model, probe=PROBE, every=2, measures=["stable_rank", "norm", "update_ratio"]) as monitor:
        assert "update_ratio" not in monitor.latest  # nothing has changed yet
        before = {name: each.detach().clone() for name, each in model.named_parameters()}
        with torch.no_grad():
            for each in model.parameters():
                each.add_(torch.randn(each.shape, generator=torch.Generator().manual_seed(each.numel())))
        monitor.step()
        monitor.step()
    names = monitor.latest["norm"].rows.names
    assert names == tuple(name for name, each in before.items() if each.ndim == 2 and name != "embed.weight")
    now = dict(model.named_parameters())
    for at, name in enumerate(names):
        w = now[name].detach().double()
        sigma = torch.linalg.svdvals(w)
        got = {series: float(table.values[at]) for series, table in monitor.latest.items()}
        assert got["stable_rank"] == pytest.approx(float(sigma.square().sum() / sigma[0] ** 2), rel=1e-5)
        assert got["norm"] == pytest.approx(float(w.norm()), rel=1e-5)
        assert got["update_ratio"] == pytest.approx(float((w - before[name].double()).norm() / w.norm()), rel=1e-5)


def test_an_update_is_that_since_the_measuring_before():
    layer = nn.Linear(3, 4)
    with Monitor(layer, probe=torch.zeros(1, 3), every=2, measures=["update_ratio"]) as monitor:
        for factor in (2.0, 2.0, 1.0, 1.25):
            with torch.no_grad():
                layer.weight.mul_(factor)
            monitor.step()
    assert monitor.latest["update_ratio"].values == pytest.approx(0.2)  # from 4 to 5 times the first, not from 1


def test_large_matrices_start_from_the_vectors_found_before():
    layer = nn.Sequential(nn.Linear(300, 400), nn.Linear(300, 400))
    with Monitor(layer, probe=torch.zeros(1, 300), every=1, measures=["stable_rank"]) as monitor:
        first = monitor.latest["stable_rank"].values
        assert set(monitor._matrices._ranks.blocks) == {"0.weight", "1.weight"}
        monitor.step()
    offline = [float(stable_rank(each.weight.detach())) for each in layer]
    np.testing.assert_allclose(first, offline, rtol=1e-3)
    np.testing.assert_allclose(monitor.latest["stable_rank"].values, offline, rtol=1e-3)


def test_each_measure_has_its_own_interval():
    seen = []
    sink = lambda step, values: seen.append((step, {name.partition("/")[0] for name in values}))
    model = made()
    train(model, Monitor(model, probe=PROBE, every=3, measures={"entropy": None, "norm": 2}, sinks=sink))
    both = {"entropy", "norm"}
    assert seen == [(0, both), (2, {"norm"}), (3, {"entropy"}), (4, {"norm"}), (6, both)]


def test_a_loop_that_counts_by_itself_may_leave_steps_out():
    seen = []
    with Monitor(made(), probe=PROBE, every=10, measures=["norm"], sinks=lambda step, _: seen.append(step)) as monitor:
        for step in (4, 8, 12, 19, 31):
            monitor.step(step)
    assert seen == [0, 12, 31]


@pytest.mark.parametrize(("include", "exclude", "layers"), [("h.1.*", None, [1]), (None, ["*.0.*"], [1])])
def test_names_choose_layers_and_matrices(include, exclude, layers):
    with Monitor(made(), probe=PROBE, include=include, exclude=exclude) as monitor:
        assert monitor.latest["entropy"].rows.names == tuple(f"h.{at}.attn" for at in layers)
        assert {layer_of(name) for name in monitor.latest["norm"].rows.names} <= {"h.1", "head.weight"}


def test_layers_with_different_numbers_of_heads_keep_their_own():
    rows = Rows(("a", "b"), (1, 2), (4, 4))
    packet = Packet(3, {"entropy": {"a": torch.tensor([1.0]), "b": torch.tensor([2.0, 3.0])}}, {"entropy": rows})
    table = packet.tables()["entropy"]
    np.testing.assert_array_equal(table.values, [[1.0, math.nan], [2.0, 3.0]])
    assert table.real.tolist() == [[True, False], [True, True]]


HEADS = Rows(("a", "b"), (1, 3), (4, 4))
MATRICES = Rows(("h.0.up.weight", "h.0.down.weight", "head.weight"))


@pytest.mark.parametrize(
    ("values", "rows", "sent"),
    [
        ([[5.0, math.nan, math.nan], [1.0, 2.0, 6.0]], HEADS, {"a": (5.0, 5.0, 5.0), "b": (1.0, 3.0, 6.0)}),
        ([[-5.0, math.nan, math.nan], [-2.0, -3.0, -4.0]], HEADS, {"a": (-5.0, -5.0, -5.0), "b": (-4.0, -3.0, -2.0)}),
        ([1.0, 3.0, 5.0], MATRICES, {"h.0": (1.0, 2.0, 3.0), "head.weight": (5.0, 5.0, 5.0)}),
    ],
    ids=["heads", "negative", "matrices of one layer together"],
)
def test_smallest_mean_and_largest_are_of_what_a_layer_has(values, rows, sent):
    three = ("min", "mean", "max")
    expected = {f"s/{layer}/{what}": one for layer, each in sent.items() for what, one in zip(three, each, strict=True)}
    assert summary({"s": Table(np.array(values), rows)}, "layer") == expected


def test_layers_that_come_and_go_are_not_mixed_up(log):
    model = made()
    with Monitor(model, probe=PROBE, every=1, measures=["entropy"]) as monitor:
        del model.h[0]
        monitor.step()
    assert log == [
        "step 1: measuring failed and ends here, training continues: entropy has other layers than at first: h.0.attn"
    ]


@pytest.mark.parametrize(
    "batch", [{"ids": PROBE}, (PROBE,), [PROBE], list(PROBE), PROBE, PROBE.tolist(), PROBE.numpy()]
)
def test_a_batch_can_be_given_in_many_ways(batch):
    expected = latest(made(), measures=["entropy"])["entropy"]
    assert np.array_equal(latest(made(), probe=batch, measures=["entropy"])["entropy"], expected)


def test_the_batch_is_a_copy():
    mine = PROBE.clone()
    with Monitor(made(), probe=mine, every=1, measures=["entropy"]) as monitor:
        first = monitor.latest["entropy"].values
        mine.zero_()
        monitor.step()
    assert np.array_equal(monitor.latest["entropy"].values, first)


def test_layers_in_another_order_are_not_mixed_up():
    taken = {"entropy": {"b": torch.tensor([2.0]), "a": torch.tensor([1.0])}}
    with pytest.raises(MonitorError, match="entropy has other layers than at first: b, a"):
        Packet(3, taken, {"entropy": Rows(("a", "b"), (1, 1), (4, 4))})


def test_numbers_leave_the_device_with_all_their_digits():
    packet = Packet(3, {"norm": {"a": torch.tensor(1 + 1e-12, dtype=torch.float64)}}, {"norm": Rows(("a",))})
    assert packet.tables()["norm"].values.tolist() == [1 + 1e-12]
