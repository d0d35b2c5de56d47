"""The options of groups: read, translated from galore-torch's, or refused; what is changed in mid-run."""

import pytest
from torch import nn
from training import network, train

from joma.optim import GaLore


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
