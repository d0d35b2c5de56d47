"""The loss that a loop gives, and which experts routers choose."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from networks import LENGTH, PROBE, TOKENS, Steady, made
from torch import nn

from joma.host.errors import BadInput, JomaError
from joma.monitor import Monitor, MonitorError
from joma.monitor.routers import Routers
from joma.runs import Run


@pytest.mark.parametrize("kind", [float, torch.tensor, lambda loss: torch.tensor([loss], requires_grad=True)])
def test_the_record_has_the_mean_loss_of_the_steps_since_the_last_measuring(tmp_path, kind):
    losses, sent = [3.0, 1.0, 0.5, 7.0, 2.0], {}
    options = {"probe": PROBE, "every": 2, "measures": ["norm"], "out": tmp_path / "a"}
    with Monitor(made(), sinks=sent.__setitem__, **options) as monitor:
        for loss in losses:
            monitor.step(loss=kind(loss))
        monitor.step()
    with Run.open(tmp_path / "a") as run:
        assert run.steps("loss").tolist() == [2, 4, 6]
        assert run.array("loss").tolist() == [2.0, 3.75, 2.0]
        assert run.dims("loss") == {}
    assert [sent[step].get("loss") for step in (0, 2, 4, 6)] == [None, 2.0, 3.75, 2.0]
    assert list(sent[2]) == ["loss", "norm"]
    with Monitor(made(), **options) as monitor:
        monitor.step(step=7, loss=1.0)
        monitor.step(step=8, loss=2.0)
    with Run.open(tmp_path / "a") as run:
        assert run.array("loss").tolist() == [2.0, 3.75, 2.0, 1.5]


def test_a_loss_that_a_trainer_logs_belongs_to_the_step_made_last(tmp_path):
    with Monitor(made(), probe=PROBE, every=4, measures=["norm"], out=tmp_path / "a") as monitor:
        for step in range(1, 8):
            monitor.step()
            if step % 3 == 0:
                monitor.record_loss(10.0 * step)
    with Run.open(tmp_path / "a") as run:
        assert (run.steps("loss").tolist(), run.array("loss").tolist()) == ([3, 6], [30.0, 60.0])


@pytest.mark.parametrize("loss", ["low", True, torch.zeros(2)])
def test_a_loss_that_is_no_number_is_refused(loss):
    with Monitor(made(), probe=PROBE, measures=["norm"]) as monitor:
        for call in (lambda: monitor.step(loss=loss), lambda: monitor.record_loss(loss)):
            with pytest.raises(BadInput, match="loss must be a number or a tensor of one, got"):
                call()


def test_nan_is_one_alert_until_all_numbers_are_finite_again():
    model = made()
    with Monitor(model, probe=PROBE, every=1, measures={"norm": 1, "stable_rank": 2}) as monitor:
        kept = model.h[0].mlp[0].weight.detach().clone()
        for step in range(1, 10):
            with torch.no_grad():
                model.h[0].mlp[0].weight.copy_(kept if step in (1, 5, 6) else kept * math.nan)
            monitor.step(loss=math.inf if step == 9 else 1.0)
    said = [(each.step, each.measure, each.layer, each.cause) for each in monitor.alerts]
    others = "other numbers of this step are not finite either"
    assert said == [
        (2, "norm", "h.0.mlp.0.weight", f"1 {others}"),
        (7, "norm", "h.0.mlp.0.weight", None),
    ]


def test_a_loss_that_is_no_number_is_the_one_that_is_told():
    with Monitor(made(), probe=PROBE, every=1, measures=["norm"]) as monitor:
        monitor.step(loss=math.nan)
    (alert,) = monitor.alerts
    assert str(alert) == "step 1: loss of the model is nan, not a number below its limit inf"


class TopRouter(nn.Linear):
    """As transformers' routers: logits, scores and the experts that it chooses."""

    def forward(self, x):
        logits = super().forward(x.reshape(-1, x.shape[-1]))
        scores, chosen = logits.softmax(-1).topk(2)
        return logits, scores, chosen


class Ones(TopRouter):
    """As that of Switch Transformers: a column per expert with ones."""

    def forward(self, x):
        logits, scores, chosen = super().forward(x)
        return nn.functional.one_hot(chosen[:, 0], logits.shape[1])[None], scores, logits


class LogitsRouter(nn.Linear):
    pass


class Mixture(Steady):
    """Attention, and a router that nothing hangs on, called `times`."""

    def __init__(self, kind=TopRouter, times=1):
        super().__init__(layers=2)
        self.routers, self.times = nn.ModuleList(kind(8, experts) for experts in (4, 3)), times
        if kind is Ones:
            type(self.routers[0]).__name__ = "OnesRouter"

    def forward(self, ids):
        x = self.embed(ids)
        for block, router in zip(self.h, self.routers, strict=True):
            for _ in range(self.times):
                router(x)
            x = x + block(x)
        return self.head(x)


@pytest.mark.parametrize(("kind", "chosen"), [(TopRouter, 2), (Ones, 1)])
@pytest.mark.parametrize("measures", [["router_load"], ["entropy", "router_load"]])
def test_the_load_of_experts_is_their_share_of_the_choices(kind, chosen, measures, tmp_path):
    model, sent = made(lambda: Mixture(kind, times=2)).eval(), {}
    options = {"sinks": sent.__setitem__, "per": "head", "out": tmp_path / "a"}
    with Monitor(model, probe=PROBE, every=1, measures=measures, **options) as monitor:
        monitor.step()
    x, found = model.embed(PROBE), monitor.latest["router_load"].values
    assert np.isnan(found[1, 3])
    for at, (block, router) in enumerate(zip(model.h, model.routers, strict=True)):
        logits = (x @ router.weight.T + router.bias).detach().flatten(0, 1).double().numpy()
        best = logits.argsort(1)[:, ::-1][:, :chosen]
        shares = [(best == expert).mean() * 1.0 for expert in range(len(router.weight))]
        np.testing.assert_allclose(found[at, : len(shares)], shares, atol=1e-6)
        assert sent[1][f"router_load/routers.{at}/expert2"] == pytest.approx(shares[2])
        assert np.ptp(shares) > 0.05
        x = x + block(x)
    with Run.open(tmp_path / "a") as run:
        assert run.dims("router_load") == {"layer": ("routers.0", "routers.1"), "expert": None}
        assert run.steps("router_load").tolist() == [0, 1]


def test_choices_of_several_calls_in_a_pass_count_together():
    torch.manual_seed(0)
    router, parts = TopRouter(8, 4), torch.randn(2, 30, 8)
    routers = Routers(nn.Sequential(router), {"0"})
    with routers.watching():
        for part in parts:
            router(part)
    logits = (parts @ router.weight.T + router.bias).detach().flatten(0, 1)
    times = logits.argsort(-1)[:, -2:].flatten().bincount(minlength=4)
    assert routers.router_load()["0"].tolist() == pytest.approx((times / times.sum()).tolist())


def test_routers_of_transformers_are_found():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.MixtralConfig(
        vocab_size=TOKENS, num_local_experts=4, num_experts_per_tok=2, num_key_value_heads=2, head_dim=4, **sizes
    )
    model = made(lambda: transformers.MixtralForCausalLM(config))
    with Monitor(model, probe={"input_ids": PROBE}, measures=["router_load"]) as monitor:
        values = monitor.latest["router_load"].values
    with torch.no_grad():
        logits = model.eval()(PROBE, output_router_logits=True).router_logits
    for row, each in zip(values, logits, strict=True):
        best = each.double().topk(2).indices.flatten().tolist()
        assert row.tolist() == pytest.approx([best.count(expert) / len(best) for expert in range(4)])


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (Steady, {}, "router_load needs routers, .* and Steady has none that is followed"),
        (lambda: Mixture(LogitsRouter), {}, "that give the experts they choose; LogitsRouter gives none"),
        (lambda: Mixture(times=0), {}, "the router routers.0 was not called in the pass"),
        (Mixture, {"probe": "step"}, "router_load needs a batch as probe, one process, and no replay"),
        (Mixture, {"probe": None, "inside": True}, "router_load needs a batch as probe"),
    ],
)
def test_models_without_choices_to_count_are_refused(make, options, sentence):
    with pytest.raises((JomaError, MonitorError), match=sentence):
        Monitor(made(make), **{"probe": PROBE, "measures": ["router_load"]} | options).__enter__()


def test_a_layer_that_is_called_three_times_counts_with_all_calls():
    class Thrice(Steady):
        def forward(self, ids):
            x = self.embed(ids)
            for scale in (1.0, 4.0, 9.0):
                x = scale * x
                seen.append(x.detach().double())
                x = x + self.h[0](x)
            return self.head(x)

    seen = []
    model = made(lambda: Thrice(layers=1))
    with Monitor(model, probe=PROBE, measures=["entropy", "largest_logit"]) as monitor:
        found = SimpleNamespace(**{name: table.values[0] for name, table in monitor.latest.items()})
    qkv, entropies, largest = model.h[0].qkv.double(), [], []
    for x in seen:
        q, k, _ = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in qkv(x).chunk(3, -1))
        logits = (q @ k.mT / 2).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -math.inf)
        entropies.append(torch.special.entr(logits.softmax(-1)).sum(-1).mean((0, 2)))
        largest.append(logits.amax((0, 2, 3)))
    np.testing.assert_allclose(found.entropy, torch.stack(entropies).mean(0).detach(), rtol=1e-4)
    np.testing.assert_allclose(found.largest_logit, torch.stack(largest).amax(0).detach(), rtol=1e-4)
