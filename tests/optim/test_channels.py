"""APOLLO and Fira: against their papers' algorithms in float64, resumed, during backward, and what they refuse."""

import copy

import numpy as np
import pytest
import torch
from slow_channels import SlowApollo, SlowFira
from torch import nn
from training import loss_of, network, same, train

from joma.optim import APOLLO, Fira, GaLore, _matrix, memory
from joma.optim._update import Guard

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # of bfloat16, on a CPU that has none
SHAPES = [(6, 10), (10, 6), (7, 7)]
EPS = 1e-30  # Adam then does not see how large gradients are
KINDS = {"APOLLO": APOLLO, "Fira": Fira}


def gradients(shape, steps, seed=0):
    """Of changing size, so that growth is limited in some steps and not in others."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10 ** (2 * torch.rand(steps, generator=generator, dtype=torch.float64) - 1)
    return [size * torch.randn(shape, generator=generator, dtype=torch.float64) for size in sizes]


def trained(kind, slow, shape, *, steps=40, count=1, options=None, rates=None, **both):
    """Several matrices, by us and by the slow one; the largest difference of a weight."""
    torch.manual_seed(1)
    weights = [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for _ in range(count)]
    named = [(f"w{at}", weight) for at, weight in enumerate(weights)]
    optimizer = kind(
        named, rank=3, lr=0.05, eps=EPS, weight_decay=both.get("decay", 0.0),
        scale=both.get("scale", 1.0), growth=both.get("growth"), **{"refresh": 7, **(options or {})},
    )  # fmt: skip
    oracles = [slow(weight.detach().numpy(), lr=0.05, eps=EPS, **both) for weight in weights]
    drawn = []
    for step in range(steps):
        rate = 0.05 if rates is None else rates[step]
        optimizer.param_groups[0]["lr"] = rate
        for at, weight in enumerate(weights):
            weight.grad = gradients(shape, steps, seed=at)[step]
        optimizer.step()
        for weight, oracle in zip(weights, oracles, strict=True):
            oracle.step(weight.grad.numpy(), optimizer.state[weight]["basis"].numpy(), rate)
        drawn.append(optimizer.state[weights[0]]["basis"].clone())
    pairs = zip(weights, oracles, strict=True)
    return max(np.abs(weight.detach().numpy() - oracle.weight).max() for weight, oracle in pairs), drawn, oracles


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("growth", [None, 1.01])
@pytest.mark.parametrize("whole", [False, True])
def test_apollo_is_that_of_its_paper(shape, growth, whole):
    options = {"scaling": "tensor" if whole else "channel"}
    both = {"growth": growth, "whole": whole, "scale": 1.3, "decay": 0.1}
    off, drawn, _ = trained(APOLLO, SlowApollo, shape, options=options, **both)
    assert off < 1e-11
    moved = [step for step in range(1, 40) if not torch.equal(drawn[step], drawn[step - 1])]
    assert moved == [7, 14, 21, 28, 35]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("growth", [None, 1.01])
def test_fira_is_that_of_its_paper(shape, growth):
    options = {"projector": "exact"}
    both = {"growth": growth, "scale": 0.7, "decay": 0.1}
    assert trained(Fira, SlowFira, shape, options=options, **both)[0] < 1e-11


@pytest.mark.parametrize(("kind", "slow"), [(APOLLO, SlowApollo), (Fira, SlowFira)])
def test_several_matrices_in_one_pack_have_their_own_lengths_and_limits(kind, slow, monkeypatch):
    monkeypatch.setattr(GaLore, "staggered", False)
    off, _, oracles = trained(kind, slow, (6, 10), count=3, growth=1.01, options={"refresh": 7})
    assert off < 1e-11
    assert len({oracle.last for oracle in oracles}) == 3


@pytest.mark.parametrize(("kind", "slow"), [(APOLLO, SlowApollo), (Fira, SlowFira)])
def test_a_rate_that_changes_is_no_growth(kind, slow):
    rates = [0.05 * 2 ** (step % 5) for step in range(40)]
    assert trained(kind, slow, (6, 10), growth=1.01, rates=rates)[0] < 1e-10


def test_the_norm_of_a_step_grows_by_so_much_at_most():
    weight = nn.Parameter(torch.zeros(6, 10, dtype=torch.float64))
    optimizer = APOLLO([("w", weight)], rank=2, lr=1.0, growth=1.5, weight_decay=0.0)
    norms = []
    for step in range(30):
        weight.grad = gradients((6, 10), 30)[step]
        before = weight.detach().clone()
        optimizer.step()
        norms.append(float((weight.detach() - before).norm()))
    ratios = np.array(norms[1:]) / norms[:-1]
    assert ratios.max() == pytest.approx(1.5)
    assert (ratios < 1.49).any()


def test_fira_trains_what_galore_leaves():
    """A subspace of rank 1 leaves all but one direction of the shorter side where they were."""
    moved = {}
    for kind in (GaLore, Fira):
        weight = nn.Parameter(torch.zeros(6, 10, dtype=torch.float64))
        optimizer = kind([("w", weight)], rank=1, lr=0.1, projector="exact", refresh=100, scale=1.0, weight_decay=0.0)
        for gradient in gradients((6, 10), 5):
            weight.grad = gradient
            optimizer.step()
        moved[kind] = int(torch.linalg.matrix_rank(weight.detach()))
    assert moved == {GaLore: 1, Fira: 6}


@pytest.mark.parametrize("kind", KINDS.values())
def test_during_backward_it_is_the_same(kind):
    plain, layered = network(), network()
    train(plain, kind(plain, rank=4, refresh=3, lr=0.05), 8)
    optimizer = kind(layered, rank=4, refresh=3, lr=0.05, per_layer=True)
    train(layered, optimizer, 8, after=lambda: [each.grad for each in layered.parameters()])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(plain.parameters(), layered.parameters(), strict=True))


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_loss_falls(kind):
    model = network()
    before = loss_of(model).item()
    train(model, kind(model, rank=4, refresh=5, lr=0.03), 60)
    assert loss_of(model).item() < 0.6 * before


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_gradient_of_zeros_moves_nothing_and_does_not_hold_later_steps(kind):
    weight = nn.Parameter(torch.ones(6, 10))
    optimizer = kind([("w", weight)], rank=2, lr=0.1, weight_decay=0.0)
    weight.grad = torch.zeros(6, 10)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(6, 10))
    weight.grad = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    assert float((weight.detach() - 1).abs().max()) > 1e-3
    weight.grad[:, 3] = 0.0
    before = weight.detach().clone()
    optimizer.step()
    assert bool(weight.isfinite().all())
    assert torch.equal(weight.detach()[:, 3], before[:, 3]) == (kind is APOLLO)  # no direction, so no step


@pytest.mark.parametrize("kind", KINDS.values())
def test_up_the_gradient_for_maximize(kind):
    moved = []
    for maximize in (False, True):
        weight = nn.Parameter(torch.zeros(6, 10))
        optimizer = kind([("w", weight)], rank=2, lr=0.1, maximize=maximize)
        weight.grad = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
        optimizer.step()
        moved.append(weight.detach().clone())
    assert torch.allclose(moved[0], -moved[1], atol=1e-6)
    assert float(moved[0].abs().max()) > 1e-3


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_step_that_a_device_holds_back_changes_nothing(kind, monkeypatch):
    """As on a GPU with a fused inner optimizer: the flag is on the device, and Python does not look."""
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    model = network()
    optimizer = kind(model, rank=4, refresh=50, lr=0.05, fused=True, nonfinite="skip", weight_decay=0.1)
    train(model, optimizer, 3)
    before = copy.deepcopy(model)
    kept = [state["last_norm"].clone() for state in optimizer.state.values() if "last_norm" in state]
    optimizer.zero_grad()
    loss_of(model).backward()
    model.layers[0].weight.grad[2, 3] = torch.inf
    optimizer.step()
    assert same(model, before)
    assert optimizer.skipped == 1
    assert kept
    now = [state["last_norm"] for state in optimizer.state.values() if "last_norm" in state]
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))
    train(model, optimizer, 1)
    assert not same(model, before)


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("held", [False, True])
def test_stacks_of_matrices_step_as_single_ones_do_and_are_held_back_whole(kind, held, monkeypatch):
    """As on a GPU: alike matrices are stacked, shrunk by the kernel that adds, and held back by a flag."""
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    monkeypatch.setattr(GaLore, "staggered", False)
    start = [torch.randn(12, 20, generator=torch.Generator().manual_seed(at)) for at in range(3)]
    found = {}
    for stacked in (True, False):
        monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",) if stacked else ())
        weights = [nn.Parameter(one.clone()) for one in start]
        named = [(f"w{at}", weight) for at, weight in enumerate(weights)]
        options = {"fused": True, "nonfinite": "skip", "weight_decay": 0.1, "refresh": 50}
        optimizer = kind(named, rank=2, lr=0.05, **options)
        for step in range(4):
            for at, weight in enumerate(weights):
                weight.grad = gradients((12, 20), 4, seed=at)[step].float()
            if held and step == 3:
                before = [weight.detach().clone() for weight in weights]
                weights[1].grad[3, 4] = torch.nan
            optimizer.step()
        assert len(optimizer.packs) == 1
        assert not held or all(torch.equal(a, b) for a, b in zip(weights, before, strict=True))
        found[stacked] = [weight.detach() for weight in weights]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found[True], found[False], strict=True))


def test_apollo_takes_as_little_memory_as_galore_of_its_rank():
    model = nn.Linear(256, 256, bias=False)
    table = memory(model, APOLLO(model, rank=1, scaling="tensor", scale=128**0.5))
    assert table.total.formula.states == 2 * 256 * 4
    assert table.total.formula.projections == 256 * 4


REFUSED = {
    "scaling": (APOLLO, {"scaling": "row"}, "scaling must be one of channel, tensor, got 'row'"),
    "growth": (APOLLO, {"growth": 0.5}, "growth must be a number of at least 1, or None for no limit, got 0.5"),
    "growth of Fira": (Fira, {"growth": float("nan")}, "growth must be a number of at least 1"),
    "clip": (APOLLO, {"clip": 1.0}, "APOLLO has no clip: clip the gradients themselves"),
    "projector": (APOLLO, {"projector": "exact"}, "APOLLO has no projector: directions are drawn at random"),
    "project_in_backward": (Fira, {"per_layer": "project"}, "Fira has no per_layer='project': the step needs"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    kind, options, sentence = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=sentence):
        kind(network(), **{"rank": 4, **options})


@pytest.mark.parametrize(("saved", "loads"), [(GaLore, APOLLO), (APOLLO, GaLore), (APOLLO, Fira), (Fira, GaLore)])
def test_a_state_of_another_member_is_refused(saved, loads):
    model = network()
    optimizer = saved(model, rank=4, lr=0.05)
    train(model, optimizer, 1)
    sentence = f"the state was saved by {saved.__name__}, this optimizer is {loads.__name__}"
    with pytest.raises(ValueError, match=sentence):
        loads(network(), rank=4, lr=0.05).load_state_dict(optimizer.state_dict())


def test_directions_of_apollo_are_those_of_the_seed():
    def basis(seed):
        model = network()
        optimizer = APOLLO(model, rank=4, lr=0.05, seed=seed)
        train(model, optimizer, 1)
        return next(each["basis"].clone() for each in optimizer.state.values() if "basis" in each)

    assert torch.equal(basis(3), basis(3))
    assert not torch.allclose(basis(3), basis(4))
