"""An alarm names its cause where the spread of logits tells: known by construction here."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from networks import PROBE, gpt2, llama, made
from torch import nn

from joma.monitor import Alert, LargestLogit, Monitor
from joma.monitor.tables import Rows, Table
from joma.monitor.watch import Causes, Watch
from joma.runs import Run

HEADS = Rows(("h.0.attn",), (2,), (100,))
NEEDED = ["largest_logit", "spread"]
GREW = r"the weights grew \(the variance of its logits rose {} times since step {}, their size {} times\)"
ALIGNED = r"the inputs aligned with the weights \(.* rose {} times since step {}, the weights' size {} times\)"


def history(*points, kind="growth"):
    watch = Watch([LargestLogit()], "log", NEEDED)
    for at, (variance, size) in enumerate(points):
        numbers = {"spread/variance": variance, f"spread/{kind}": size}
        tables = {name: Table(np.array([[each, 1.0]]), HEADS) for name, each in numbers.items()}
        logit = 150.0 if at == len(points) - 1 else 50.0
        found = watch.new(10 * at, tables | {"largest_logit": Table(np.array([[logit, 1.0]]), HEADS)})
    (alert,) = found
    return alert.cause


def like(pattern, *numbers):
    return pattern.format(*(str(each).replace(".", r"\.") for each in numbers))


@pytest.mark.parametrize("kind", ["growth", "norms"])
def test_histories_in_which_one_factor_moved(kind):
    # Compared with the latest point at which the variance was a quarter of now, which is step 10.
    cause = history((1.0, 9.0), (2.0, 3.0), (5.0, 4.0), (8.0, 12.0), kind=kind)
    assert re.match(like(GREW, 4, 10, 4), cause)
    assert "QK-clip and QK-norm" in cause
    cause = history((1.0, 1.0), (2.0, 3.0), (5.0, 8.0), (8.0, 3.3), kind=kind)
    assert re.match(like(ALIGNED, 4, 10, 1.1), cause)


def test_each_head_has_its_own_cause():
    watch, rows = Watch([LargestLogit()], "log", NEEDED), Rows(("h.0.attn", "h.1.attn"), (2, 1), (100, 100))
    for step, scale in enumerate((1.0, 8.0)):
        numbers = {
            "spread/variance": [[1.0, 1.0], [scale, np.nan]],
            "spread/growth": [[scale, 1.0], [scale, np.nan]],
            "largest_logit": [[20.0 * scale, 1.0], [20.0 * scale, np.nan]],
        }
        found = watch.new(step, {name: Table(np.array(each), rows) for name, each in numbers.items()})
    assert [(each.layer, each.head, each.cause is not None) for each in found] == [
        ("h.0.attn", 0, False),
        ("h.1.attn", 0, True),
    ]


def test_histories_that_do_not_tell():
    assert history((1.0, 1.0), (16.0, 4.0)) is None  # half each
    assert history((8.0, 1.0), (9.0, 8.0)) is None  # logits did not grow
    assert history((8.0, 1.0)) is None  # there is no history
    assert history((0.0, 1.0), (9.0, 8.0)) is None
    assert history((1.0, 1.0), (np.nan, np.nan)) is None
    assert re.match(like(ALIGNED, 8, 0, 0.125), history((1.0, 8.0), (8.0, 1.0)))  # weights that shrank are no cause
    # Twice: no earlier point is a quarter as large, so the first is taken.
    assert re.match(like(ALIGNED, 2, 0, 1), history((4.0, 1.0), (5.0, 1.0), (8.0, 1.0)))


def test_a_long_history_still_tells():
    grown = [(1.0, 1.0)] + [(100.0 + at, 100.0 + at) for at in range(300)] + [(300.0, 300.0)]
    assert "rose 300 times since step 0, their size 300 times" in history(*grown)


def test_other_alarms_have_no_cause():
    watch = Watch(None, "log", [*NEEDED, "stable_rank"])
    series = {"spread/variance": 1.0, "spread/growth": 1.0, "stable_rank": 8.0}
    for step in range(2):
        rows = {name: Rows(("h.0.attn",)) if name == "stable_rank" else HEADS for name in series}
        size = {name: 100.0**step * each for name, each in series.items()} | {"stable_rank": 8.0 - 7.9 * step}
        values = {name: [size[name]] if name == "stable_rank" else [[size[name], 1.0]] for name in series}
        found = watch.new(step, {name: Table(np.array(values[name]), rows[name]) for name in series})
    assert [(each.measure, each.cause) for each in found] == [("stable_rank", None)]


class Turned(nn.Module):
    """Attention over inputs that a matrix turns first; it is the inputs' side of the logits."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.turn, self.attn = nn.Linear(8, 8, bias=False), nn.MultiheadAttention(8, 1, batch_first=True, bias=False)
        nn.init.eye_(self.turn.weight)

    def forward(self, x):
        x = self.turn(x)
        return self.attn(x, x, x, need_weights=False)[0]


X = torch.randn(4, 12, 8, generator=torch.Generator().manual_seed(5))


def cause_after(change, tmp_path):
    model = Turned()
    with Monitor(model, probe=X, every=1, measures=NEEDED, alarms=[], out=tmp_path / "first.joma") as monitor:
        limit = 2 * monitor.latest["largest_logit"].values.max()
    options = {"alarms": [LargestLogit(limit)], "on_alarm": lambda alert: None, "out": tmp_path / "run.joma"}
    with Monitor(model, probe=X, every=1, measures=NEEDED, **options) as monitor:
        with torch.no_grad():
            change(model)
        monitor.step()
    (alert,) = monitor.alerts
    with Run.open(tmp_path / "run.joma") as run:
        (kept,) = json.loads(run.at("alarms", 1).tobytes())
    assert kept["cause"] == alert.cause
    assert kept["slope"] == alert.slope > 0
    assert (kept["value"], kept["limit"], kept["says"]) == (alert.value, alert.limit, str(alert))
    return alert.cause


def grow(model, by):
    model.attn.in_proj_weight[:16].mul_(by)


def align(model, by):
    q, k = model.attn.in_proj_weight[:16].chunk(2)
    _, _, right = torch.linalg.svd(q.mT @ k)
    model.turn.weight.add_((by - 1) * right[:1].mT @ right[:1])


def test_models_in_which_one_factor_was_moved(tmp_path):
    assert cause_after(lambda model: grow(model, 2.0), tmp_path).startswith("the weights grew")
    (tmp_path / "b").mkdir()
    assert cause_after(lambda model: align(model, 6.0), tmp_path / "b").startswith("the inputs aligned")
    (tmp_path / "c").mkdir()

    def both(model):
        grow(model, 1.7)
        model.turn.weight.mul_(1.7)  # logits grow as much by the inputs as by the weights

    assert cause_after(both, tmp_path / "c") is None


def test_an_alarm_of_a_whole_layer_names_no_cause():
    causes = Causes()
    for step, size in enumerate((1.0, 8.0)):
        causes.see(
            step, {name: Table(np.array([[size, size]]), HEADS) for name in ("spread/variance", "spread/growth")}
        )
    alert = Alert(1, "largest_logit", "h.0.attn", 1, 150.0, 100.0, "above its limit")
    assert "the weights grew" in causes.of(alert)
    assert causes.of(replace(alert, head=None)) is None


def test_without_the_spread_there_is_no_cause():
    model = Turned()
    with Monitor(model, probe=X, every=1, measures=["largest_logit"], alarms=[LargestLogit(1e-3)]) as monitor:
        grow(model.requires_grad_(False), 3.0)
        monitor.step()
    assert [each.cause for each in monitor.alerts] == [None]


def series_of(model, **options):
    with Monitor(model, measures=["spread"], alarms=[], **options) as monitor:
        return {name: table.values for name, table in monitor.latest.items()}


@pytest.mark.parametrize("own_scale", [False, True])
def test_growth_is_that_of_a_whole_product_of_weights(own_scale):
    model = gpt2("GPT2Model", scale_attn_by_inverse_layer_idx=own_scale)
    found = series_of(model, probe=PROBE)
    assert "spread/norms" not in found
    for layer, block in enumerate(model.h):
        q, k, _ = block.attn.c_attn.weight.detach().double().mT.chunk(3)
        for head in range(2):
            a = q[4 * head : 4 * head + 4].mT @ k[4 * head : 4 * head + 4] / 2 / (1 + own_scale * layer)
            assert found["spread/growth"][layer, head] == pytest.approx(float(a.square().sum()), rel=1e-5)


def test_rotary_models_have_norms_of_queries_and_keys_instead():
    model = llama("LlamaModel", hidden_size=16, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
    found = series_of(model, probe=PROBE)
    assert "spread/growth" not in found
    q, k = (getattr(model.layers[0].self_attn, name).weight.detach().double() for name in ("q_proj", "k_proj"))
    for head in range(4):
        of_queries, of_keys = q[4 * head : 4 * head + 4], k[4 * (head // 2) : 4 * (head // 2) + 4]
        expected = of_queries.square().sum() * of_keys.square().sum() / 4
        assert found["spread/norms"][0, head] == pytest.approx(float(expected), rel=1e-5)


def test_weights_that_are_not_plain_are_not_guessed():
    model = made()
    assert "spread/norms" in series_of(model, probe=PROBE)  # a layer called qkv
    for block in model.h:
        nn.utils.parametrizations.weight_norm(block.attn.qkv)
    assert not {"spread/norms", "spread/growth"} & set(series_of(model, probe=PROBE))


class SharedKeys(nn.Module):
    """Two heads of queries and one of keys and values from one matrix: its thirds are not queries, keys and values."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(12, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).split([12, 6, 6], -1)
        q = q.unflatten(-1, (2, 6)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(q, k[:, None], v[:, None], enable_gqa=True)


def test_a_matrix_whose_parts_are_not_thirds_is_not_guessed():
    found = series_of(made(SharedKeys), probe=torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0)))
    assert "spread/variance" in found
    assert not {"spread/norms", "spread/growth"} & set(found)
