"""The options of groups: read, translated from galore-torch's, or refused; what is changed in mid-run."""

import copy

import numpy as np
import pytest
import torch
from test_galore_state import stored
from torch import nn
from training import network, same, train

from joma.optim import APOLLO, Fira, GaLore, Projected, StateError


def matrices(count=2):
    model = nn.Sequential(*(nn.Linear(12, 9, bias=False) for _ in range(count)))
    return [(f"m{number}", each) for number, each in enumerate(model.parameters())]


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "near"),
    [("refesh", "refresh"), ("ranks", "rank"), ("scales", "scale"), ("weight_decy", "weight_decay"), ("lrr", "lr")],
)
def test_a_misspelt_key_is_refused_with_the_nearest(key, near):
    with pytest.raises(ValueError, match=f"group 0 has an option '{key}' that nobody reads: did you mean '{near}'"):
        GaLore([{"params": matrices(), key: 1}], rank=3)
    optimizer = GaLore([{"params": matrices()}], rank=3)
    with pytest.raises(ValueError, match=f"group 1 has an option '{key}'"):
        optimizer.add_param_group({"params": [("later", nn.Parameter(matrices()[0][1].detach()))], key: 1})
    assert len(optimizer.param_groups) == 1
    assert len(optimizer.matrices) == 2


def test_a_key_like_no_other_is_refused_with_all_that_there_are():
    with pytest.raises(ValueError, match=r"group 1 has an option 'q' that nobody reads: there are .*betas, .*scale"):
        GaLore([{"params": matrices()[:1]}, {"params": matrices()[1:], "q": 1}], rank=3)


def test_labels_of_schedulers_and_trainers_are_kept():
    optimizer = GaLore([{"params": matrices(), "name": "all", "initial_lr": 0.1, "lr_scale": 0.5}], rank=3)
    assert optimizer.param_groups[0]["name"] == "all"
    assert optimizer.param_groups[0]["lr_scale"] == 0.5


def test_groups_of_another_galore_can_be_given():
    first = GaLore(network(), rank=4)
    again = GaLore([dict(group) for group in first.param_groups], rank=4)
    assert len(again.matrices) == len(first.matrices)


@pytest.mark.parametrize("key", ["refesh", "on_mov", "projectr", "per_layr"])
def test_a_misspelt_option_is_refused_though_the_inner_optimizer_takes_any(key):
    po = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer is not installed")
    with pytest.raises(ValueError, match=f"there is no option '{key}': did you mean '"):
        GaLore(network(), po.Lion, **{key: 5})
    with pytest.raises(ValueError, match=f"there is no option '{key}': did you mean '"):
        GaLore(network(), **{key: 5})


# ---- those of galore-torch -------------------------------------------------------------------------------------------


def test_groups_of_galore_torch_are_translated():
    theirs = {"rank": 3, "update_proj_gap": 7, "scale": 0.5, "proj_type": "std"}
    optimizer = GaLore([{"params": matrices(), **theirs}])
    (group,) = optimizer.param_groups
    assert {key: group[key] for key in ("rank", "refresh", "scale")} == {"rank": 3, "refresh": 7, "scale": 0.5}
    assert not {"update_proj_gap", "proj_type"} & {*group}
    optimizer.add_param_group({"params": [("later", nn.Parameter(matrices()[0][1].detach()))], **theirs})
    assert optimizer.param_groups[1]["refresh"] == 7


@pytest.mark.parametrize("side", ["reverse_std", "left", "right", "full"])
def test_what_galore_torch_has_and_this_has_not_is_refused_by_name(side):
    with pytest.raises(ValueError, match=f"proj_type must be 'std', .* got '{side}'"):
        GaLore([{"params": matrices(), "proj_type": side}], rank=3)
    with pytest.raises(ValueError, match="refresh and update_proj_gap"):
        GaLore([{"params": matrices(), "refresh": 5, "update_proj_gap": 7}], rank=3)


# ---- in mid-run ------------------------------------------------------------------------------------------------------


def test_refresh_and_scale_hold_at_the_next_step():
    model, other = network(), network()
    changed = GaLore(model, rank=4, refresh=100, scale=0.25, lr=0.01, projector="exact")
    kept = GaLore(other, rank=4, refresh=100, scale=0.25, lr=0.01, projector="exact")
    for one, optimizer in ((model, changed), (other, kept)):
        train(one, optimizer, 4)
    changed.param_groups[0].update(refresh=2, scale=0.75)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    for one, optimizer in ((model, changed), (other, kept)):
        train(one, optimizer, 1)
    assert [matrix.refreshed for matrix in changed.matrices] == [4, 4]
    assert [matrix.refreshed for matrix in kept.matrices] == [0, 0]
    assert changed.inner.param_groups[0]["lr"] == 0.01
    moved = {name: (each.detach() - before[name]).norm() for name, each in model.named_parameters()}
    small = {name: (each.detach() - before[name]).norm() for name, each in other.named_parameters()}
    assert all(moved[matrix.name] > 1.5 * small[matrix.name] for matrix in changed.matrices)


def ranks_of(optimizer):
    return [matrix.rank for matrix in optimizer.matrices]


@pytest.mark.parametrize("kind", [GaLore, APOLLO, Fira])
@pytest.mark.parametrize("per_layer", [False, "project", True])
@pytest.mark.parametrize("on_move", ["keep", "rotate", "reset"])
def test_a_rank_holds_from_the_next_refresh_of_each_matrix(kind, per_layer, on_move):
    if kind is not GaLore and per_layer == "project":
        pytest.skip("needs the gradient itself")
    model = network()
    optimizer = kind(model, rank=8, refresh=3, lr=0.01, per_layer=per_layer, on_move=on_move)
    train(model, optimizer, 4)
    seen = []
    for rank in (4, 12):
        optimizer.param_groups[0]["rank"] = rank
        for _ in range(4):
            train(model, optimizer, 1)
            seen.append(ranks_of(optimizer))
            for matrix in optimizer.matrices:  # it changes at a refresh alone
                assert (matrix.rank == rank) == (matrix.refreshed + 1 >= (5 if rank == 4 else 9))
    assert seen[3] == [4, 4]
    assert seen[-1] == [12, 12]
    assert [matrix.count for matrix in optimizer.matrices] == [12, 12]
    for matrix in optimizer.matrices:
        state = optimizer.state[matrix.parameter]
        assert tuple(state["basis"].shape) == (24, 12)
        assert tuple(state["exp_avg"].shape) == tuple(state["exp_avg_sq"].shape) == matrix.compact_shape
        torch.testing.assert_close(state["basis"].T @ state["basis"], torch.eye(12), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rank", [3, 6])
@pytest.mark.parametrize("shape", [(10, 14), (14, 10)])
def test_what_a_change_of_rank_keeps_by_formula(rank, shape):
    """The first directions keep their state; a new one has no momentum, and the mean of the second moments."""
    weight = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    optimizer = GaLore([weight], torch.optim.Adam, rank=5, refresh=3, lr=0.01, projector="exact", skip=())
    drawn = torch.Generator().manual_seed(0)
    for _ in range(3):
        weight.grad = torch.randn(shape, dtype=torch.float64, generator=drawn)
        optimizer.step()
    axis = 0 if shape == (10, 14) else 1
    before = {key: optimizer.state[weight][key].movedim(axis, 0).numpy().copy() for key in ("exp_avg", "exp_avg_sq")}
    optimizer.param_groups[0]["rank"] = rank
    gradient = torch.randn(shape, dtype=torch.float64, generator=drawn)
    weight.grad = gradient.clone()
    optimizer.step()

    state = optimizer.state[weight]
    basis = state["basis"]
    seen = ((basis.T @ gradient) if axis == 0 else (gradient @ basis).T).numpy()
    for key, decay, what in (("exp_avg", 0.9, seen), ("exp_avg_sq", 0.999, seen**2)):
        old = before[key]
        fill = old.mean(0) * (key == "exp_avg_sq")
        wide = np.concatenate([old, np.tile(fill, (max(rank - 5, 0), 1))])[:rank]
        found = state[key].movedim(axis, 0).numpy()
        np.testing.assert_allclose(found, decay * wide + (1 - decay) * what, rtol=1e-9, atol=1e-12, err_msg=key)
    vectors = np.linalg.svd(gradient.numpy())[0 if axis == 0 else 2]
    vectors = (vectors if axis == 0 else vectors.T)[:, :rank]
    assert np.abs(np.abs((vectors * basis.numpy()).sum(0)) - 1).max() < 1e-9


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_run_resumes_amid_a_change_of_ranks(steps):
    model = network()
    optimizer = GaLore(model, rank=8, refresh=4, lr=0.01)
    train(model, optimizer, 5)
    optimizer.param_groups[0]["rank"] = 4
    train(model, optimizer, steps)
    assert len({*ranks_of(optimizer)}) == (2 if steps == 2 else 1)
    state = stored(optimizer.state_dict())
    again = network()
    again.load_state_dict(model.state_dict())
    resumed = GaLore(again, rank=4, refresh=4)
    resumed.load_state_dict(state)
    assert ranks_of(resumed) == ranks_of(optimizer)
    train(model, optimizer, 5)
    train(again, resumed, 5)
    assert same(model, again)
    assert ranks_of(resumed) == [4, 4]
    with pytest.raises(StateError, match="was saved with rank 4, this optimizer has rank 8"):
        GaLore(network(), rank=8).load_state_dict(state)


def test_a_state_that_cannot_be_cut_begins_anew():
    po = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer is not installed")
    model = network()
    optimizer = GaLore(model, po.SOAP, rank=8, refresh=2, lr=0.01)
    train(model, optimizer, 3)
    optimizer.param_groups[0]["rank"] = 4
    train(model, optimizer, 3)
    assert ranks_of(optimizer) == [4, 4]
    assert all(value.isfinite().all() for value in model.state_dict().values())
    assert {tuple(one.shape) for one in optimizer.state[optimizer.matrices[0].parameter]["GG"]} == {(40, 40), (4, 4)}


@pytest.mark.parametrize("shape", [(10, 14), (14, 10)])
@pytest.mark.parametrize("rank", [3, 6])
def test_factors_of_a_second_moment_change_along_the_side_of_the_rank(shape, rank):
    """Adafactor keeps one number per row and one per column: those along the other side have nothing to change."""
    weight = nn.Parameter(torch.zeros(shape))
    optimizer = GaLore([weight], torch.optim.Adafactor, rank=5, refresh=3, lr=0.01, projector="exact", skip=())
    drawn = torch.Generator().manual_seed(0)
    for _ in range(3):
        weight.grad = torch.randn(shape, generator=drawn)
        optimizer.step()
    before = weight.detach().clone()
    optimizer.param_groups[0]["rank"] = rank
    weight.grad = torch.randn(shape, generator=drawn)
    optimizer.step()
    rows, columns = (rank, 14) if shape == (10, 14) else (14, rank)
    state = optimizer.state[weight]
    assert (tuple(state["row_var"].shape), tuple(state["col_var"].shape)) == ((rows, 1), (1, columns))
    assert weight.isfinite().all()
    assert not torch.equal(weight, before)


def test_a_group_without_gradients_in_one_step_is_trained_in_the_next():
    first, second = (nn.Parameter(torch.randn(12, 9)) for _ in range(2))
    optimizer = GaLore([{"params": [first]}, {"params": [second]}], rank=3, lr=0.1, skip=())
    for given in ((first, second), (first,), (first, second)):
        before = {one: one.detach().clone() for one in (first, second)}
        for one in (first, second):
            one.grad = torch.ones_like(one) if any(one is other for other in given) else None
        inner = [*optimizer.inner.param_groups]
        optimizer.step()
        assert optimizer.inner.param_groups == inner  # the inner optimizer saw some of them, and has all again
        assert not torch.equal(first, before[first])
        assert torch.equal(second, before[second]) == (len(given) == 1)


def test_experts_of_a_weight_change_together():
    weight = nn.Parameter(torch.randn(6, 9, 12, generator=torch.Generator().manual_seed(0)))
    optimizer = GaLore([("experts", weight)], rank=5, refresh=4, lr=0.01, projected=Projected(experts=True))
    optimizer.param_groups[0]["rank"] = 5
    for step in range(9):
        weight.grad = torch.randn(6, 9, 12, generator=torch.Generator().manual_seed(step))
        if step == 2:
            optimizer.param_groups[0]["rank"] = 3
        optimizer.step()
        assert len({*ranks_of(optimizer)}) == 1
    assert ranks_of(optimizer) == [3] * 6
    assert tuple(optimizer.state[weight]["basis"].shape) == (6, 9, 3)


def test_a_rank_above_a_shorter_side_is_that_side():
    model = network()
    optimizer = GaLore(model, rank=4, refresh=1, lr=0.01, projector="exact")
    train(model, optimizer, 1)
    optimizer.param_groups[0]["rank"] = 99
    train(model, optimizer, 2)
    assert ranks_of(optimizer) == [24, 24]


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"rank": 2.5}, {"refresh": -1}, {"scale": -1.0}, {"scale": "1"}])
def test_what_cannot_be_is_refused_at_the_next_step(wrong):
    model = network()
    optimizer = GaLore(model, rank=4, lr=0.01)
    train(model, optimizer, 1)
    before = copy.deepcopy(model.state_dict())
    optimizer.param_groups[0].update(wrong)
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        train(model, optimizer, 1)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


# ---- what is printed -------------------------------------------------------------------------------------------------


def test_repr_shows_what_each_group_has():
    first, second = ([one] for one in matrices())
    groups = [{"params": first, "rank": 3, "lr": 0.5 / 3}, {"params": second, "scale": 0.75, "name": "late"}]
    optimizer = GaLore(groups, torch.optim.SGD, rank=4, momentum=0.9)
    common = "momentum=0.9, dampening=0, weight_decay=0"
    assert repr(optimizer).splitlines() == [
        "GaLore(SGD, 2 matrices projected)",
        f"  group 0: 1 matrix and 0 others, rank=3, refresh=200, scale=0.25, lr=0.166667, {common}",
        f"  group 1: 1 matrix and 0 others, rank=4, refresh=200, scale=0.75, name='late', lr=0.001, {common}",
    ]
    optimizer.param_groups[1]["rank"] = 5
    assert "rank=5" in repr(optimizer).splitlines()[2]
