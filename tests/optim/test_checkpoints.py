"""GaLore in torch's checkpoints (DCP): whole or flattened, in every way of stepping; and files of older versions."""

import copy

import pytest
import torch
import torch.distributed.checkpoint as dcp
from test_galore_state import HOW, stored
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from training import loss_of, network, same, train

from joma.optim import Energy, GaLore, Projected

pytestmark = [
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),  # of bfloat16, on a CPU that has none
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # one process is what is meant
]

INNER = {
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "SGD": (torch.optim.SGD, {"lr": 0.5}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.5, "momentum": 0.9}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 1.0}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
}


def resumes(how, flat, name="AdamW", **more):
    """Whether a fresh model goes on bit for bit from what torch's functions give and take."""
    inner, options = INNER[name]
    options = {"rank": 4, "refresh": 3, "inner": inner} | options | how | more
    model, fresh = network(), network()
    optimizer = GaLore(model, **options)
    train(model, optimizer, 4)
    optimizer.zero_grad()
    asked = StateDictOptions(flatten_optimizer_state_dict=flat)
    state = copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=asked))
    assert all("." in key for key in state) == flat
    fresh.load_state_dict(model.state_dict())
    again = GaLore(fresh, **options)
    set_optimizer_state_dict(fresh, again, state, options=asked)
    return same(train(fresh, again, 4), train(model, optimizer, 4))


@pytest.mark.parametrize("flat", [False, True], ids=["whole", "flat"])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_torchs_checkpoints_keep_it_in_every_way_of_stepping(how, flat):
    assert resumes(how, flat)


@pytest.mark.parametrize("name", INNER)
def test_flat_with_every_kind_of_inner_state(name):
    assert resumes({}, True, name)
    assert resumes({}, False, name)


def test_a_rank_by_energy_is_kept():
    assert resumes({}, False, rank=Energy(0.6, most=4))


@pytest.mark.parametrize("how", HOW, ids=str)
def test_on_disk(how, tmp_path):
    options = {"rank": 4, "refresh": 3, "lr": 0.01} | how
    asked = StateDictOptions(flatten_optimizer_state_dict=True)
    model, fresh = network(), network()
    optimizer, again = GaLore(model, **options), GaLore(fresh, **options)
    train(model, optimizer, 4)
    optimizer.zero_grad()
    weights, state = get_state_dict(model, optimizer, options=asked)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=tmp_path / "at4", no_dist=True)
    weights, state = get_state_dict(fresh, again, options=asked)
    loaded = {"model": weights, "optimizer": state}
    dcp.load(loaded, checkpoint_id=tmp_path / "at4", no_dist=True)
    set_state_dict(fresh, again, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"], options=asked)
    assert same(train(fresh, again, 4), train(model, optimizer, 4))


def as_version_1(state):
    """As files were until inner state and subspace had one place: `inner.` before the keys, the rest the same."""
    own = ("basis", "energies", "count", "refreshed")
    old = copy.deepcopy(state)
    for group in old["param_groups"]:
        group["galore_version"] = 1
    old["state"] = {
        number: {key if key in own else f"inner.{key}": value for key, value in entry.items()}
        for number, entry in old["state"].items()
    }
    return old


@pytest.mark.parametrize("name", INNER)
def test_files_of_version_1_are_read(name):
    inner, options = INNER[name]
    options = {"rank": 4, "refresh": 3, "inner": inner} | options
    model, fresh = network(), network()
    optimizer = GaLore(model, **options)
    train(model, optimizer, 4)
    old = stored(as_version_1(optimizer.state_dict()))
    fresh.load_state_dict(model.state_dict())
    again = GaLore(fresh, **options)
    again.load_state_dict(old)
    assert again.param_groups[0]["galore_version"] == 2
    assert same(train(fresh, again, 4), train(model, optimizer, 4))


def test_a_state_of_more_precision_is_read_into_less():
    """A bfloat16 network had a float32 state once."""
    model = network(torch.bfloat16)
    wide = {"projected": Projected(basis_dtype=torch.float32, state_dtype=torch.float32)}
    optimizer = GaLore(model, rank=4, lr=0.01, **wide)
    train(model, optimizer, 2)
    again = GaLore(model, rank=4, lr=0.01)
    again.load_state_dict(stored(optimizer.state_dict()))
    for entry, old in ((again.state[each], optimizer.state[each]) for each in again.state):
        for key in {"basis", "exp_avg", "exp_avg_sq"} & {*entry}:
            assert entry[key].dtype == torch.bfloat16
            assert torch.equal(entry[key], old[key].bfloat16())


def test_compiling_the_step_changes_nothing():
    model, other = network(), network()
    optimizer, plain = (GaLore(each, rank=4, refresh=3, lr=0.01) for each in (model, other))
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(model).backward()
        step()
    train(other, plain, 4)
    assert same(model, other)
