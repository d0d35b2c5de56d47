"""Saving GaLore: plain tensors, resumed bit for bit, on any device, and refused where it does not fit."""

import copy
import io
from functools import partial

import pytest
import torch
from torch import nn
from training import COUPLED, loss_of, network, same, train

from joma.optim import Energy, GaLore, Projected, StateError

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # of bfloat16, on a CPU that has none

INNER = {
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "SGD": (torch.optim.SGD, {"lr": 0.5, "momentum": 0.9}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 1.0}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01}),
}


HOW: tuple[dict, ...] = ({}, {"per_layer": True}, {"per_layer": "project"})


def stored(state):
    """As a file would give it back, without unpickling anything."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def goes_on(make, model_of=network):
    """Whether a fresh model and optimizer, from what was saved after four steps, make the next four as the old do.

    With a refresh every three updates the fourth is in the midst of a subspace, and one more refresh follows.
    """
    model = model_of()
    optimizer = make(model)
    train(model, optimizer, 4)
    weights, state = stored(model.state_dict()), stored(optimizer.state_dict())
    fresh = model_of()
    fresh.load_state_dict(weights)
    again = make(fresh)
    again.load_state_dict(state)
    return same(train(fresh, again, 4), train(model, optimizer, 4))


@pytest.mark.parametrize("name", INNER)
def test_four_and_four_steps_are_eight(name):
    """Every inner optimizer with every move, and each of both in both ways of projecting."""
    inner, options = INNER[name]
    for place, on_move in enumerate(("keep", "rotate", "reset")):
        how = HOW[(place + [*INNER].index(name)) % 3]
        make = partial(GaLore, inner=inner, rank=4, refresh=3, on_move=on_move, **how, **options)
        assert goes_on(make), (on_move, how)


@pytest.mark.parametrize(
    "options",
    [
        {"projector": "random"},
        {"projector": "exact"},
        {"rank": Energy(0.6, most=6)},
        {"refresh": 4},
        {"refresh": 1},
        {"projected": COUPLED, "weight_decay": 0.3},
    ],
    ids=str,
)
def test_four_and_four_with_other_options(options):
    assert goes_on(partial(GaLore, **({"rank": 4, "refresh": 3, "lr": 0.01} | options)))


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float32])
def test_bfloat16_keeps_its_state(kept):
    make = partial(GaLore, rank=4, refresh=3, lr=0.01, projected=Projected(basis_dtype=kept, state_dtype=kept))
    assert goes_on(make, lambda: network(torch.bfloat16))


def test_a_state_with_other_ranks_parts_what_was_worked_on_together():
    """Two matrices of one shape and one rank have stepped as one batch; in the state that comes their ranks differ."""

    def made(*ranks):
        """After a step with gradients of these ranks."""
        weights = [nn.Parameter(torch.zeros(6, 9)) for _ in ranks]
        optimizer = GaLore(weights, torch.optim.SGD, rank=Energy(1.0, most=4), lr=1.0, scale=1.0, skip=())
        gradients = [torch.diag_embed(torch.tensor([3.0, 2.0, 1.0]) * (torch.arange(3) < rank)) for rank in ranks]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = nn.functional.pad(gradient, (0, 6, 0, 3))
        optimizer.step()
        return weights, optimizer

    (one, two), optimizer = made(2, 2)
    optimizer.load_state_dict(made(1, 3)[1].state_dict())
    assert [matrix.rank for matrix in optimizer.matrices] == [1, 3]
    before = one.detach().clone(), two.detach().clone()
    one.grad = two.grad = torch.ones(6, 9)
    optimizer.step()
    for weight, start, rank in ((one, before[0], 1), (two, before[1], 3)):  # the first directions are the first rows
        torch.testing.assert_close(weight.detach() - start, -(torch.arange(6) < rank)[:, None].expand(6, 9).float())


@pytest.mark.parametrize("shape", [(6, 9), (9, 6)])
def test_a_rank_that_the_second_gradient_settles_narrows_the_state_of_the_first(shape):
    """A gradient of zeros has no directions: its state has the largest rank, until the first real one chooses."""
    weight = nn.Parameter(torch.zeros(shape))
    options = {"lr": 1.0, "scale": 1.0, "momentum": 0.9, "skip": ()}
    optimizer = GaLore([weight], torch.optim.SGD, rank=Energy(0.99, most=4), **options)
    weight.grad = torch.zeros(shape)
    optimizer.step()
    assert optimizer.matrices[0].rank == 4
    weight.grad = torch.zeros(shape)
    weight.grad[0, 1], weight.grad[3, 2] = 3.0, 2.0
    optimizer.step()
    assert optimizer.matrices[0].rank == 2
    torch.testing.assert_close(weight.detach(), -weight.grad)
    (state,) = optimizer.inner.state.values()
    assert sorted(state["momentum_buffer"].shape) == [2, 9]


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
    optimizer = GaLore(model, rank=Energy(0.9, most=4), lr=0.1)
    train(model, optimizer, 1)
    state = optimizer.state_dict()
    flat = [value for entry in state["state"].values() for value in entry.values()]
    assert {type(value) for value in flat} <= {torch.Tensor, int}
    assert state["param_groups"][0]["rank"] == {"share": 0.9, "most": 4, "least": 1}
    moved = copy.deepcopy(state)
    for entry in moved["state"].values():
        for key, value in entry.items():
            entry[key] = value.double() if key == "basis" else value
    again = GaLore(network(), rank=Energy(0.9, most=4), lr=0.1)
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


def state_of(model=None, **options):
    model = model or network()
    optimizer = GaLore(model, **({"rank": 4, "lr": 0.1} | options))
    train(model, optimizer, 1)
    return optimizer.state_dict()


REFUSED = {
    "another rank": (lambda: state_of(rank=3), "saved with rank 3, this optimizer has rank 4"),
    "another inner": (
        lambda: state_of(inner=torch.optim.Adam),
        "inner Adam, this optimizer has inner AdamW",
    ),
    "not GaLore's": (lambda: torch.optim.AdamW(network().parameters()).state_dict(), "no entry 'galore_inner'"),
    "other groups": (
        lambda: state_of(nn.Sequential(nn.Embedding(30, 24), nn.Linear(24, 30))),
        r"groups of \[3\] parameters, this optimizer has groups of \[8\]",
    ),
    "projected elsewhere": (
        lambda: state_of(skip=()),
        "lm_head.weight is that of a projected matrix, here .* not",
    ),
}


@pytest.mark.parametrize("title", REFUSED)
def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(title):
    make, sentence = REFUSED[title]
    model = network()
    optimizer = GaLore(model, rank=4, lr=0.2)
    with pytest.raises(ValueError, match=sentence):
        optimizer.load_state_dict(make())
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert optimizer.matrices[0].basis is None


def test_a_subspace_of_another_shape_is_refused():
    state = copy.deepcopy(state_of())
    state["state"][1]["basis"] = torch.zeros(7, 4)
    optimizer = GaLore(network(), rank=4, lr=0.1)
    with pytest.raises(ValueError, match=r"layers.0.weight has shape \(7, 4\), its shorter side is 24"):
        optimizer.load_state_dict(state)
    state = copy.deepcopy(state_of())
    state["state"][1]["basis"] = torch.zeros(24, 3)
    with pytest.raises(ValueError, match=r"layers\.0\.weight has rank 3, this optimizer has rank 4"):
        optimizer.load_state_dict(state)
    state = copy.deepcopy(state_of())
    state["state"][1]["exp_avg"] = torch.zeros(4, 39)
    with pytest.raises(ValueError, match=r"saved exp_avg of layers.0.weight has shape \(4, 39\), expected \(40, 4\)"):
        optimizer.load_state_dict(state)


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


def test_torchs_checkpoints_keep_it():
    """They keep `state` and `param_groups` alone, and step an optimizer without state to make it some."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    def make(model):
        return GaLore(model, rank=4, refresh=3, lr=0.01)

    model, fresh = network(), network()
    optimizer = make(model)
    train(model, optimizer, 4)
    optimizer.zero_grad()
    state = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    fresh.load_state_dict(model.state_dict())
    again = make(fresh)
    set_optimizer_state_dict(fresh, again, state)
    assert same(train(fresh, again, 4), train(model, optimizer, 4))


def exponent_bit(basis):
    """The highest bit of the exponent of the largest entry."""
    at = int(basis.abs().argmax())
    basis.view(torch.int32).view(-1)[at] ^= 1 << 30


DAMAGE = {
    "NaN": lambda basis: basis[3].fill_(torch.nan),
    "infinity": lambda basis: basis[3, 0].fill_(-torch.inf),
    "a bit": exponent_bit,
    "zeros": lambda basis: basis[:, 1].zero_(),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_basis_that_is_damaged_is_refused_and_nothing_changes(kind):
    model = network()
    optimizer = GaLore(model, rank=4, refresh=3, lr=0.01)
    train(model, optimizer, 4)
    state, before = stored(optimizer.state_dict()), stored(optimizer.state_dict())
    DAMAGE[kind](state["state"][1]["basis"])
    with pytest.raises(ValueError, match="its directions do not have length 1"):
        optimizer.load_state_dict(state)
    assert_alike(optimizer.state_dict(), before)
    for share in (torch.nan, -0.5, 1.5, torch.inf):
        state = stored(before)
        state["state"][1]["energies"][2] = share
        with pytest.raises(ValueError, match=r"energies of layers.0.weight are damaged"):
            optimizer.load_state_dict(state)
        assert_alike(optimizer.state_dict(), before)


def assert_alike(state, wanted):
    assert plain(state) == plain(wanted)


def plain(value):
    """Tensors as numbers, which can be compared where they stand."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


JUNK = (None, "x", -1, 2**70, float("nan"), [], {}, torch.ones(()), torch.ones(2, 2), torch.full((3,), torch.nan), b"")


@pytest.mark.parametrize("inner", ["AdamW", "SGD", "Adafactor"])
def test_whatever_stands_in_a_state_it_is_loaded_or_refused_whole(inner):
    """Each entry of a matrix, of a bias and of the groups in turn, replaced by everything else."""
    kind, options = INNER[inner]
    model = network()
    make = partial(GaLore, model, rank=4, refresh=3, inner=kind, **options)
    optimizer = make()
    train(model, optimizer, 2)
    honest, refused = stored(optimizer.state_dict()), 0
    places = [("state", number, key) for number in (1, 2) for key in honest["state"][number]]
    places += [("param_groups", 0, key) for key in honest["param_groups"][0]]
    for part, at, key in places:
        for junk in JUNK:
            state = copy.deepcopy(honest)
            state[part][at][key] = junk
            try:
                optimizer.load_state_dict(state)
            except ValueError:
                refused += 1
                assert_alike(optimizer.state_dict(), honest)
            else:  # an option may be anything that the inner optimizer takes
                optimizer = make()
                optimizer.load_state_dict(honest)
    assert refused > len(JUNK)


class Particular(torch.optim.AdamW):
    """Nothing is known of what it keeps; it takes no rate above 0.1."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        if any(group["lr"] > 0.1 for group in self.param_groups):
            raise RuntimeError("rate above 0.1")


def test_what_the_inner_optimizer_refuses_late_is_forgotten():
    model = network()
    optimizer = GaLore(model, Particular, rank=4, refresh=3, lr=0.01)
    train(model, optimizer, 2)
    before, state = stored(optimizer.state_dict()), stored(optimizer.state_dict())
    state["param_groups"][0] |= {"lr": 0.5, "initial_lr": 0.5}
    state["state"][1]["exp_avg"].fill_(2.0)
    with pytest.raises(StateError, match="nothing was changed"):
        optimizer.load_state_dict(state)
    assert_alike(optimizer.state_dict(), before)
