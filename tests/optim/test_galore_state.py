"""Saving GaLore: plain tensors, resumed bit for bit, by torch's checkpoints (DCP) too, on any device."""

import copy
import io
import pickle
from itertools import product

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from training import IN_8_BITS, loss_of, network, same, train

from joma.optim import APOLLO, Fira, GaLore, Projected

pytestmark = [
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),  # of bfloat16, on a CPU that has none
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # one process is what is meant
]

INNER: dict[str, dict] = {
    "AdamW": {"inner": torch.optim.AdamW, "lr": 0.01, "weight_decay": 0.1},
    "SGD": {"inner": torch.optim.SGD, "lr": 0.5},
    "SGD with momentum": {"inner": torch.optim.SGD, "lr": 0.5, "momentum": 0.9},
    "Adafactor": {"inner": torch.optim.Adafactor, "lr": 1.0},
    "Adagrad": {"inner": torch.optim.Adagrad, "lr": 0.1},
    "RMSprop": {"inner": torch.optim.RMSprop, "lr": 0.01},
}
HOW: tuple[dict, ...] = ({}, {"per_layer": True}, {"per_layer": "project"})
MOVES = ("keep", "rotate", "reset")


def stored(state):
    """As a file would give it back, without unpickling anything."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def precise(dtype):
    return Projected(basis_dtype=dtype, state_dtype=dtype)


GOES_ON = {  # every inner optimizer with every move, and each of both in both ways of projecting
    **{
        f"{name}, {on_move}": INNER[name] | {"on_move": on_move} | HOW[(place + number) % 3]
        for number, name in enumerate(INNER)
        for place, on_move in enumerate(MOVES)
    },
    **{
        f"8 bits, {on_move}": {"on_move": on_move, "projected": IN_8_BITS} | HOW[place]
        for place, on_move in enumerate(MOVES)
    },
    "random": {"projector": "random"},
    "exact": {"projector": "exact"},
    "every four": {"refresh": 4},
    "every one": {"refresh": 1},
    "bfloat16": {"dtype": torch.bfloat16, "projected": precise(torch.bfloat16)},
    "bfloat16, a state in float32": {"dtype": torch.bfloat16, "projected": precise(torch.float32)},
    "bfloat16, 8 bits": {"dtype": torch.bfloat16, "projected": IN_8_BITS, "on_move": "rotate"},
    "Fira, 8 bits": {"kind": Fira, "projected": IN_8_BITS},
    **{
        f"{kind.__name__}, {dtype}": {"kind": kind, "dtype": dtype, "lr": 0.05, "growth": 1.01}
        for kind in (APOLLO, Fira)
        for dtype in (torch.float32, torch.bfloat16)
    },
}


@pytest.mark.parametrize("name", GOES_ON)
def test_four_and_four_steps_are_eight(name):
    """A fresh model and optimizer, from what was saved after four steps, make the next four as the old do.

    With a refresh every three updates the fourth is in the midst of a subspace, and one more refresh follows.
    """
    options = {"rank": 4, "refresh": 3, "lr": 0.01} | GOES_ON[name]
    dtype, kind = options.pop("dtype", torch.float32), options.pop("kind", GaLore)
    model, fresh = network(dtype), network(dtype)
    optimizer, again = kind(model, **options), kind(fresh, **options)
    train(model, optimizer, 4)
    fresh.load_state_dict(stored(model.state_dict()))
    again.load_state_dict(stored(optimizer.state_dict()))
    assert same(train(fresh, again, 4), train(model, optimizer, 4))


@pytest.mark.parametrize(
    ("flat", "options"), [*product((False, True), (*HOW, *INNER.values(), {"projected": IN_8_BITS}))], ids=str
)
def test_torchs_checkpoints_keep_it(flat, options):
    """They keep `state` and `param_groups` alone, and step an optimizer without state to make it some."""
    options = {"rank": 4, "refresh": 3, "lr": 0.01} | options
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
    assert same(train(fresh, again, 4), train(model, optimizer, 4))


@pytest.mark.parametrize("options", [*HOW, {"projected": IN_8_BITS, "dtype": torch.bfloat16}], ids=str)
def test_on_disk(options, tmp_path):
    options = {"rank": 4, "refresh": 3, "lr": 0.01} | options
    dtype = options.pop("dtype", torch.float32)
    asked = StateDictOptions(flatten_optimizer_state_dict=True)
    model, fresh = network(dtype), network(dtype)
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


@pytest.mark.parametrize(
    "options", [*HOW, {"projected": IN_8_BITS, "dtype": torch.bfloat16}, {"kind": APOLLO}, {"kind": Fira}], ids=str
)
@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copied", "pickled"]
)
def test_a_copy_goes_on_by_itself(way, options):
    options = {"rank": 4, "refresh": 3, "lr": 0.01} | options
    model = network(options.pop("dtype", torch.float32))
    optimizer = options.pop("kind", GaLore)(model, **options)
    train(model, optimizer, 4)
    other, again = way((model, optimizer))
    before = copy.deepcopy(model.state_dict())
    train(other, again, 4)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert same(train(model, optimizer, 4), other)
    assert again.state[other.layers[0].weight]["count"] == 8
    assert again.skipped == 0


def test_what_a_scheduler_changed_comes_back():
    model = network()
    optimizer = GaLore(model, rank=4, lr=0.1)
    optimizer.param_groups[0]["lr"] = 0.03
    optimizer.param_groups[0]["galore_skipped"] = 5
    again = GaLore(network(), rank=4, lr=0.1)
    again.load_state_dict(stored(optimizer.state_dict()))
    assert again.param_groups[0]["lr"] == 0.03
    assert again.inner.param_groups[0]["lr"] == 0.03
    assert again.skipped == 5
    again.param_groups[0]["lr"] = 0.07  # and what it changes later is heard
    again.step()
    assert {group["lr"] for group in again.inner.param_groups} == {0.07}


@pytest.mark.parametrize("how", HOW[1:], ids=str)
def test_a_state_of_plain_steps_goes_on_in_backward(how):
    whole, model = network(), network()
    train(whole, GaLore(whole, rank=4, refresh=5, lr=0.01), 9)
    optimizer = GaLore(model, rank=4, refresh=5, lr=0.01)
    train(model, optimizer, 4)
    again = GaLore(model, rank=4, refresh=5, lr=0.01, **how)
    again.load_state_dict(stored(optimizer.state_dict()))
    assert same(train(model, again, 5), whole)


def test_the_state_is_plain_and_follows_its_parameter():
    model = network()
    optimizer = GaLore(model, rank=4, lr=0.1)
    train(model, optimizer, 1)
    state = optimizer.state_dict()
    flat = [value for entry in state["state"].values() for value in entry.values()]
    assert {type(value) for value in flat} <= {torch.Tensor, int}
    moved = copy.deepcopy(state)
    for entry in moved["state"].values():
        for key, value in entry.items():
            entry[key] = value.double() if key == "basis" else value
    again = GaLore(network(), rank=4, lr=0.1)
    again.load_state_dict(moved)
    assert {matrix.basis.dtype for matrix in again.matrices} == {torch.float32}
    assert {matrix.basis.device for matrix in again.matrices} == {torch.device("cpu")}


def test_loading_moves_the_state_to_the_device_of_the_parameter():
    """The device `meta` has no numbers, but every machine has it."""
    optimizer = GaLore(train_once := network(), rank=4, lr=0.1)
    train(train_once, optimizer, 1)
    elsewhere = GaLore(network().to("meta"), rank=4, lr=0.1)
    elsewhere.load_state_dict(optimizer.state_dict())
    (matrix, *_) = elsewhere.matrices
    assert {matrix.basis.device.type, matrix.pack.compact.device.type} == {"meta"}
    assert elsewhere.state[matrix.parameter]["exp_avg"].device.type == "meta"


def test_loading_does_not_share_memory_with_what_was_loaded():
    model = network()
    optimizer = GaLore(model, rank=4, refresh=1, lr=0.1)
    train(model, optimizer, 1)
    state = optimizer.state_dict()
    kept = copy.deepcopy(state)
    again = GaLore(network(), rank=4, refresh=1, lr=0.1)
    again.load_state_dict(kept)
    before = kept["state"][1]["basis"].clone()
    loss_of(model).backward()
    optimizer.step()
    assert torch.equal(kept["state"][1]["basis"], before)
    assert torch.equal(again.matrices[0].basis, before)


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


def test_numbers_that_became_text_are_read():
    """As a file with names for tensors keeps them; before, such a state was taken for none at all."""
    whole, model = network(), network()
    train(whole, GaLore(whole, rank=4, lr=0.1), 4)
    optimizer = GaLore(model, rank=4, lr=0.1)
    train(model, optimizer, 2)
    state = optimizer.state_dict()
    state["state"] = {str(number): entry for number, entry in state["state"].items()}
    again = GaLore(model, rank=4, lr=0.1)
    again.load_state_dict(state)
    assert same(train(model, again, 2), whole)


@pytest.mark.parametrize("inner", [torch.optim.Adagrad, torch.optim.AdamW])
def test_a_state_from_before_the_first_step_is_taken(inner):
    """Adagrad has a state then, without a subspace. An optimizer that has trained begins anew with it."""
    fresh = copy.deepcopy(GaLore(network(), inner, rank=4, lr=0.1).state_dict())
    used, whole = network(), network()
    optimizer = GaLore(used, inner, rank=4, lr=0.1)
    train(used, optimizer, 2)
    optimizer.load_state_dict(fresh)
    assert not optimizer.state
    used.load_state_dict(whole.state_dict())
    train(whole, GaLore(whole, inner, rank=4, lr=0.1), 3)
    assert same(train(used, optimizer, 3), whole)


def test_a_state_after_a_first_step_that_was_skipped_is_taken():
    model = network()
    optimizer = GaLore(model, rank=4, lr=0.1, nonfinite="skip")
    loss_of(model).backward()
    model.lm_head.weight.grad.fill_(torch.nan)
    optimizer.step()
    state = optimizer.state_dict()
    assert set(state["state"][1]) == {"basis", "energies", "count", "refreshed"}
    again = GaLore(network(), rank=4, lr=0.1)
    again.load_state_dict(state)
    assert again.skipped == 1


def pair(*names):
    torch.manual_seed(0)
    matrices = [(name, nn.Parameter(torch.randn(8, 12))) for name in names]
    optimizer = GaLore(matrices, rank=2)
    for _, each in matrices:
        each.grad = torch.randn(8, 12)
    optimizer.step()
    return optimizer


def test_the_same_parameters_under_other_names_are_taken():
    state, again = pair("a", "b").state_dict(), pair("module.a", "module.b")
    again.load_state_dict(state)
    assert torch.equal(again.matrices[1].basis, state["state"][1]["basis"])
