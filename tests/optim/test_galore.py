"""GaLore against a slow float64 version of itself and the inner optimizer alone, and with every inner optimizer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import SlowGaLore, SlowPublished
from torch import nn
from training import loss_of, near, network, same, train

from joma.optim import APOLLO, Fira, GaLore, Projected, find_projector

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # of bfloat16, on a CPU that has none

INNER = {
    "AdamW": (torch.optim.AdamW, {"lr": 0.01}),
    "Adam": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "SGD": (torch.optim.SGD, {"lr": 0.5, "momentum": 0.9, "nesterov": True}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 3.0}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
}
MOVES = ("keep", "rotate", "reset")


def weights_and_gradients(shape, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(steps + 1, *shape, generator=generator, dtype=torch.float64)
    return drawn[0], drawn[1:]


def against_oracle(shape, *, steps=7, decay=0.0, momentum=None, **options):
    start, gradients = weights_and_gradients(shape, steps)
    weight = nn.Parameter(start.clone())
    inner = (torch.optim.Adam, {}) if momentum is None else (torch.optim.SGD, {"momentum": momentum})
    optimizer = GaLore(
        [{"params": [weight], "rank": options["rank"]}], inner[0], projector="exact", lr=0.1, weight_decay=decay,
        refresh=options["refresh"], scale=options["scale"],
        on_move=options["on_move"], **inner[1],
    )  # fmt: skip
    slow = SlowGaLore(start.numpy(), lr=0.1, decay=decay, momentum=momentum, **options)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
        slow.step(gradient.numpy(), optimizer.matrices[0].basis.numpy())
        torch.testing.assert_close(weight.detach(), torch.from_numpy(slow.weight), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("on_move", MOVES)
@pytest.mark.parametrize("shape", [(9, 5), (5, 9), (6, 6)], ids=["tall", "wide", "square"])
def test_equal_to_the_slow_version(shape, on_move):
    against_oracle(shape, rank=3, refresh=3, scale=0.25, on_move=on_move)


def test_decay_acts_on_the_matrix_itself():
    against_oracle((5, 9), rank=2, refresh=2, scale=0.5, on_move="keep", decay=0.1)
    against_oracle((9, 5), rank=2, refresh=4, scale=1.0, on_move="rotate", decay=0.1)


@pytest.mark.parametrize("shape", [(9, 5), (5, 9), (6, 6)], ids=["tall", "wide", "square"])
def test_plain_adam_can_follow_the_conventions_of_the_published_package(shape):
    start, gradients = weights_and_gradients(shape, 12)
    weight = nn.Parameter(start.clone())
    group = {"params": [weight], "rank": 3, "refresh": 5, "scale": 0.25}
    optimizer = GaLore([group], torch.optim.Adam, projector="exact", lr=0.1, weight_decay=0.0)
    slow = SlowPublished(start.numpy(), rank=3, refresh=5, scale=0.25, lr=0.1, decay=0.2)
    for update, gradient in enumerate(1e-5 * gradients, start=1):  # so small that epsilon counts
        optimizer.param_groups[0]["eps"] = 1e-6 / (1 - 0.999**update) ** 0.5
        weight.grad = gradient.clone()
        optimizer.step()
        weight.data.mul_(1 - 0.1 * 0.2)
        slow.step(gradient.numpy(), optimizer.matrices[0].basis.numpy())
        torch.testing.assert_close(weight.detach(), torch.from_numpy(slow.weight), rtol=1e-9, atol=1e-9)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), st.data())
def test_any_shape_and_rank(rows, columns, data):
    rank = data.draw(st.integers(1, min(rows, columns)))
    refresh = data.draw(st.integers(1, 4))
    against_oracle((rows, columns), steps=4, rank=rank, refresh=refresh, scale=0.3, on_move="reset")


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["randomized", "exact", "random"]))
def test_a_whole_subspace_is_the_inner_optimizer_alone(rows, columns, projector):
    """SGD with momentum does not care for a rotation; Adam does, so for Adam this is not so."""
    start, gradients = weights_and_gradients((rows, columns), 5)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    group = {"params": [ours], "rank": min(rows, columns)}
    options = {"lr": 0.1, "momentum": 0.9}
    galore = GaLore([group], torch.optim.SGD, scale=1.0, projector=projector, **options)
    alone = torch.optim.SGD([theirs], **options)
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        galore.step()
        alone.step()
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-9, atol=1e-9)


def test_groups_have_their_own_rank_and_scale_and_rate():
    model = network()
    up, down = model.layers[0].weight, model.layers[2].weight
    groups = [{"params": [up], "rank": 2, "scale": 1.0, "lr": 0.0}, {"params": [("down", down)], "refresh": 3}]
    before = up.detach().clone()
    optimizer = GaLore(groups, rank=5, lr=0.1)
    train(model, optimizer, 2)
    assert [matrix.rank for matrix in optimizer.matrices] == [2, 5]
    assert [group["refresh"] for group in optimizer.param_groups] == [200, 3]
    assert torch.equal(up, before)
    assert list(optimizer.captured()) == ["group 0, parameter 0", "down"]


def test_a_group_added_later_trains():
    model = network()
    optimizer = GaLore([("up", model.layers[0].weight)], rank=4, lr=0.1)
    train(model, optimizer, 1)
    before = model.layers[2].weight.detach().clone()
    optimizer.add_param_group({"params": [model.layers[2].weight, model.layers[2].bias], "lr": 0.2})
    train(model, optimizer, 1)
    assert not torch.equal(model.layers[2].weight, before)
    assert [group["lr"] for group in optimizer.inner.param_groups] == [0.1, 0.2, 0.2]
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [model.layers[2].bias]})


def test_a_group_that_does_not_fit_leaves_no_trace():
    weight = nn.Parameter(torch.zeros(8, 12))
    optimizer = GaLore([weight], rank=2)
    matrices = [nn.Parameter(torch.zeros(8, 12)), nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(5))]
    with pytest.raises(ValueError, match="at most the shorter side of group 1, parameter 1, which is 3, got 5"):
        optimizer.add_param_group({"params": matrices, "rank": 5})
    assert [len(optimizer.matrices), len(optimizer.param_groups), len(optimizer.inner.param_groups)] == [1, 1, 1]
    optimizer.add_param_group({"params": matrices[:1]})
    for each in (weight, matrices[0]):
        each.grad = torch.ones(8, 12)
    optimizer.step()
    assert list(optimizer.captured()) == ["group 0, parameter 0", "group 1, parameter 0"]


def test_schedulers_reach_the_inner_optimizer():
    model = network()
    optimizer = GaLore(model, rank=4, lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    train(model, optimizer, 4, after=scheduler.step)
    train(model, optimizer, 1)
    assert {group["lr"] for group in optimizer.inner.param_groups} == {optimizer.param_groups[0]["lr"]}
    assert {group["betas"] for group in optimizer.inner.param_groups} == {optimizer.param_groups[0]["betas"]}
    assert optimizer.param_groups[0]["lr"] != 0.1


def test_a_parameter_without_gradient_is_left_alone():
    model = network()
    optimizer = GaLore(model, rank=4, lr=0.1)
    optimizer.step()
    loss_of(model).backward()
    before = model.layers[0].weight.detach().clone()
    model.layers[0].weight.grad = None
    optimizer.step()
    assert torch.equal(model.layers[0].weight, before)
    assert [matrix.count for matrix in optimizer.matrices] == [0, 1]


def test_a_closure_is_evaluated_once():
    model = network()
    optimizer, calls = GaLore(model, rank=4, lr=0.1), []

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure).item() == calls[0]
    assert len(calls) == 1
    assert optimizer.matrices[0].count == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_have_a_state_in_float32_where_it_is_asked_for_or_needed(dtype):
    model, wide = network(dtype), network()
    asked = (
        {} if dtype == torch.float16 else {"projected": Projected(basis_dtype=torch.float32, state_dtype=torch.float32)}
    )
    optimizer = GaLore(model, rank=4, lr=0.01, eps=1e-4, **asked)  # 1e-8, added in float16 to what passes, is nothing
    train(model, optimizer, 3)
    assert model.layers[0].weight.dtype == dtype
    assert {matrix.basis.dtype for matrix in optimizer.matrices} == {torch.float32}
    assert optimizer.state[optimizer.matrices[0].parameter]["exp_avg"].dtype == torch.float32
    train(wide, GaLore(wide, rank=4, lr=0.01, eps=1e-4), 3)
    difference = (model.layers[0].weight.float() - wide.layers[0].weight).detach().abs().max()
    assert float(difference) < 0.02


def test_backward_inside_autocast_does_not_round_the_projection():
    model, other = network(), network()
    ours, plain = (
        GaLore(one, rank=4, lr=0.01, per_layer="project" if one is model else False) for one in (model, other)
    )
    for one, optimizer in ((model, ours), (other, plain)):
        with torch.autocast("cpu", torch.bfloat16):
            loss_of(one).backward()
            optimizer.step()
    assert same(model, other)


def test_clipping_by_the_norm_that_the_inner_optimizer_sees():
    model, other = network(), network()
    options = {"inner": torch.optim.SGD, "rank": 4, "lr": 0.1, "weight_decay": 0}
    train(model, GaLore(model, clip=1e-3, **options), 1)
    optimizer = GaLore(other, **options)
    loss_of(other).backward()
    exact = {m.name: find_projector(m.parameter.grad, 4).basis for m in optimizer.matrices}
    wide = {m.name: m.parameter.grad if m.side == "left" else m.parameter.grad.mT for m in optimizer.matrices}
    seen = [exact[name].mT @ wide[name] for name in wide] + [each.parameter.grad for each in optimizer.passing]
    norm = torch.cat([each.flatten() for each in seen]).norm()
    optimizer.zero_grad()
    (loss_of(other) * (1e-3 / norm)).backward()
    optimizer.step()
    assert near(model, other, 1e-7)
    assert not same(model, network())


def test_clipping_leaves_what_is_shorter_as_it_is():
    weight, clipped = (nn.Parameter(torch.zeros(8, 12)) for _ in range(2))
    for each, options in ((weight, {}), (clipped, {"clip": 100.0})):
        optimizer = GaLore([each], torch.optim.SGD, rank=2, lr=1.0, **options)
        each.grad = torch.ones_like(each)
        optimizer.step()
    assert weight.abs().max() > 0
    assert torch.equal(weight, clipped)


def test_clipping_half_precision_does_not_overflow():
    """4,000 entries of 3,000 have a norm above the largest float16: the update must be 1 long and not zero."""
    weight, long = nn.Parameter(torch.zeros(8, 12).half()), nn.Parameter(torch.zeros(4000).half())
    optimizer = GaLore([weight, long], torch.optim.SGD, rank=2, lr=1.0, clip=1.0)
    weight.grad, long.grad = torch.ones_like(weight), torch.full_like(long, 3000)
    optimizer.step()
    assert abs(float(long.detach().float().norm()) - 1) < 0.01


def test_large_float64_gradients_beside_float32_ones_are_finite():
    weight, bias = nn.Parameter(torch.zeros(8, 12).double()), nn.Parameter(torch.zeros(3))
    optimizer = GaLore([weight, bias], torch.optim.SGD, rank=2, lr=1.0, clip=1.0, scale=1.0)
    weight.grad, bias.grad = torch.full_like(weight, 1e100), torch.ones(3)
    optimizer.step()
    assert abs(float(weight.detach().norm()) - 1) < 1e-6


def test_gradients_without_entries():
    """Of a layer without inputs, and of a sparse table none of whose rows was used."""
    table, nothing, matrix = nn.Embedding(9, 8, sparse=True), nn.Parameter(torch.zeros(8, 0)), nn.Linear(8, 8)
    optimizer = GaLore([("embed", table.weight), ("no", nothing), *matrix.named_parameters()], torch.optim.SGD, rank=2)
    (matrix(table(torch.zeros(0, dtype=torch.long))).sum() + nothing.sum() + matrix(torch.ones(8)).sum()).backward()
    before = matrix.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(matrix.weight, before)


def test_a_rate_in_a_tensor_belongs_to_one_group():
    first, second = nn.Parameter(torch.zeros(8, 12)), nn.Parameter(torch.zeros(8, 12))
    optimizer = GaLore([{"params": [first]}, {"params": [second]}], rank=2, lr=torch.tensor(0.5), skip=())
    optimizer.param_groups[0]["lr"] = 0.25
    first.grad = torch.ones(8, 12)
    optimizer.step()
    assert [float(group["lr"]) for group in optimizer.inner.param_groups] == [0.25, 0.5]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [GaLore, APOLLO, Fira])
def test_a_rate_in_a_tensor_may_have_an_axis(kind, fused):
    """As torch's optimizers allow it; the rate changes on the way, in its memory or as another tensor."""
    rates = torch.tensor(0.1), torch.tensor([0.1])
    models = [network() for _ in rates]
    for model, rate in zip(models, rates, strict=True):
        optimizer = kind(model, rank=4, refresh=3, lr=rate, weight_decay=0.3, fused=fused)
        train(model, optimizer, 2)
        for group in optimizer.param_groups:
            group["lr"].mul_(0.5)
        train(model, optimizer, 2)
        for group in optimizer.param_groups:
            group["lr"] = torch.full_like(rate, 0.2)
        train(model, optimizer, 2)
    assert same(*models)
    assert not near(models[0], network(), 0.1)


def test_a_rate_with_an_axis_shrinks_what_is_trained_whole():
    """At a rate of its own, with decay that the inner optimizer would add to the gradient."""
    weights = [nn.Parameter(torch.ones(3, 8)) for _ in range(2)]
    for weight, rate in zip(weights, (torch.tensor(0.5), torch.tensor([0.5])), strict=True):
        named = [("whole", weight), ("projected", nn.Parameter(torch.ones(8, 8)))]
        optimizer = GaLore(named, torch.optim.SGD, rank=4, scale=0.25, lr=rate, weight_decay=0.1)
        assert [each.role for each in optimizer.passing] == ["scaled"]
        weight.grad = torch.zeros(3, 8)
        optimizer.step()
    assert torch.equal(*weights)
    torch.testing.assert_close(weights[1].detach(), torch.full((3, 8), 1 - 0.5 * 0.1))


def test_adadelta_turns_what_it_keeps_of_squares_as_squares():
    model = network()
    optimizer = GaLore(model, torch.optim.Adadelta, rank=4, refresh=1, projector="exact", on_move="rotate")
    train(model, optimizer, 6)
    kept = [optimizer.state[matrix.parameter]["acc_delta"] for matrix in optimizer.matrices]
    assert all((each >= 0).all() for each in kept)
    assert all(each.isfinite().all() for each in model.parameters())


def test_a_sparse_gradient_that_passes_goes_to_the_inner_optimizer():
    table, matrix = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 8, bias=False)
    model = nn.Sequential(table, matrix)
    before = table.weight.detach().clone()
    optimizer = GaLore(model, torch.optim.SGD, rank=2, lr=0.1, clip=1.0)
    model(torch.tensor([1, 2, 2])).sum().backward()
    optimizer.step()
    assert (table.weight != before).any(1).nonzero().flatten().tolist() == [1, 2]


def test_reset_gives_adagrad_the_state_it_began_with():
    weight = nn.Parameter(torch.zeros(6, 9))
    options = {"lr": 0.1, "initial_accumulator_value": 0.5}
    optimizer = GaLore([weight], torch.optim.Adagrad, rank=2, refresh=2, on_move="reset", **options)
    for _ in range(3):
        weight.grad = torch.full((6, 9), 1e-30)  # its square is zero
        optimizer.step()
    state = optimizer.state[optimizer.matrices[0].parameter]
    assert state["step"] == 1
    assert (state["sum"] == 0.5).all()


def test_compact_parameters_take_no_memory_between_steps():
    model = network()
    optimizer = GaLore(model, rank=4, lr=0.1)
    train(model, optimizer, 1)
    for pack in optimizer.packs:
        assert pack.compact.untyped_storage().nbytes() == 4
        assert pack.compact.grad is None
        assert not pack.compact.any()


def test_the_same_seed_gives_the_same_weights():
    first, second, other = network(), network(), network()
    for one, seed in ((first, 0), (second, 0), (other, 1)):
        train(one, GaLore(one, rank=4, refresh=3, projector="random", lr=0.1, seed=seed), 4)
    assert same(first, second)
    assert not same(first, other)
