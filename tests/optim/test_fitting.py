"""A state that was cut short or is for other parameters is refused in one sentence, before anything changes."""

import copy
import re
from functools import cache, partial

import pytest
import torch
from test_galore_state import INNER, pair, stored
from torch import nn
from training import IN_8_BITS, network, train

from joma.optim import APOLLO, Fira, GaLore, Muon, StateError


def made(model, **options):
    return GaLore(model, **({"rank": 4, "lr": 0.1} | options))


@cache
def _trained():
    return state_of(rank=4)


def state_of(**options):
    if not options:
        return copy.deepcopy(_trained())
    optimizer = made(model := network(), **options)
    train(model, optimizer, 2)
    return copy.deepcopy(optimizer.state_dict())


def without(*path):
    def spoil():
        state = place = state_of()
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]
        return state

    return spoil


def replaced(value, *path):
    def spoil():
        state = place = state_of()
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return state

    return spoil


def changed(change, *path):
    def spoil():
        state = place = state_of()
        for key in path:
            place = place[key]
        change(place)
        return state

    return spoil


GROUP = ("param_groups", 0)
MATRIX = ("state", 1)


def exponent_bit(basis):
    at = int(basis.abs().argmax())
    basis.view(torch.int32).view(-1)[at] ^= 1 << 30


def recast(make, **options):
    """A state whose bases are others, as a tool that copies into the memory of another precision would leave them."""

    def spoil():
        state = state_of(**options)
        for entry in state["state"].values():
            entry |= {"basis": make(entry["basis"])} if "basis" in entry else {}
        return state

    return spoil


REFUSED = {
    "another rank": (lambda: state_of(rank=3), "saved with rank 3, this optimizer has rank 4"),
    "another inner": (lambda: state_of(inner=torch.optim.Adam), "inner Adam, this optimizer has inner AdamW"),
    "not GaLore's": (lambda: torch.optim.AdamW(network().parameters()).state_dict(), "no entry 'galore_inner'"),
    "other groups": (
        lambda: GaLore(nn.Sequential(nn.Embedding(30, 24), nn.Linear(24, 30)), rank=4).state_dict(),
        r"groups of \[3\] parameters, this optimizer has groups of \[8\]",
    ),
    "projected elsewhere": (lambda: state_of(skip=()), "lm_head.weight is that of a projected matrix, here .* not"),
    "a basis of another side": (
        replaced(torch.zeros(7, 4), *MATRIX, "basis"),
        r"layers.0.weight has shape \(7, 4\), its shorter side is 24",
    ),
    "a basis of one direction alone": (replaced(torch.ones(24), *MATRIX, "basis"), "its shorter side is 24"),
    "a basis of another rank": (
        replaced(torch.zeros(24, 3), *MATRIX, "basis"),
        r"layers\.0\.weight has rank 3, this optimizer has rank 4",
    ),
    "a moment of another shape": (
        replaced(torch.zeros(4, 39), *MATRIX, "exp_avg"),
        r"saved exp_avg of layers.0.weight has shape \(4, 39\), expected \(40, 4\)",
    ),
    **{
        f"a basis with {kind}": (changed(damage, *MATRIX, "basis"), "its directions do not have length 1")
        for kind, damage in {
            "NaN": lambda basis: basis[3].fill_(torch.nan),
            "infinity": lambda basis: basis[3, 0].fill_(-torch.inf),
            "a bit turned": exponent_bit,
            "zeros": lambda basis: basis[:, 1].zero_(),
        }.items()
    },
    "numbers cast to codes": (recast(lambda basis: basis.to(torch.int8)), "do not have length 1"),
    "codes of zeros": (
        recast(lambda codes: codes * (torch.arange(4) != 2), projected=IN_8_BITS),
        "do not have length 1",
    ),
    "codes as numbers": (recast(lambda codes: codes.float(), projected=IN_8_BITS), "do not have length 1"),
    "codes with a row less": (recast(lambda codes: codes[:-1], projected=IN_8_BITS), "its shorter side is 24"),
    "codes with a direction less": (recast(lambda codes: codes[:, :-1], projected=IN_8_BITS), "has rank 3, this"),
    **{
        f"energies of {share}": (
            changed(lambda one, share=share: one[2:3].fill_(share), *MATRIX, "energies"),
            r"energies of layers.0.weight are damaged",
        )
        for share in (torch.nan, -0.5, 1.5, torch.inf)
    },
    "nothing": (dict, r"must be a dictionary with 'state' and 'param_groups', got \[\]"),
    "a list": (list, "must be a dictionary .* got list"),
    "no state": (without("state"), r"got \['param_groups'\]"),
    "no groups": (without("param_groups"), r"got \['state'\]"),
    "groups of none": (lambda: {"state": {}, "param_groups": []}, r"groups of \[\] parameters"),
    "no rank": (without(*GROUP, "rank"), "group 0 of the state has no entry 'rank': the state is not whole"),
    "no params": (without(*GROUP, "params"), "has no entry 'params'"),
    "no count of skipped steps": (without(*GROUP, "galore_skipped"), "has no entry 'galore_skipped'"),
    "a later version": (replaced(3, *GROUP, "galore_version"), "has version 3, this GaLore reads 2"),
    "a refresh of 0": (replaced(0, *GROUP, "refresh"), "refresh must be .* got 0"),
    "a rank that is none": (replaced({"a": 1}, *GROUP, "rank"), "saved with rank {'a': 1}"),
    "no basis": (without(*MATRIX, "basis"), "of layers.0.weight has no 'basis': the state is not whole"),
    "no energies": (without(*MATRIX, "energies"), "has no 'energies'"),
    "no count": (without(*MATRIX, "count"), "has no 'count'"),
    "no step of the inner optimizer": (without(*MATRIX, "step"), "has no 'step'"),
    "no moment": (without("state", 0, "exp_avg"), "of embed_tokens.weight has no 'exp_avg'"),
    "an entry that is none": (replaced(None, *MATRIX), "of layers.0.weight must be a dictionary, got NoneType"),
    "a basis in a list": (replaced([1.0], *MATRIX, "basis"), "basis of layers.0.weight must be a tensor, got list"),
    "energies of another rank": (replaced(torch.ones(9), *MATRIX, "energies"), r"shape \(9,\), .* has 4 directions"),
    "a count in words": (replaced("two", *MATRIX, "count"), "must be a whole number, got 'two'"),
    "a moment that passes": (
        replaced(torch.ones(3, 3), "state", 0, "exp_avg"),
        r"saved exp_avg of embed_tokens.weight has shape \(3, 3\), expected \(30, 24\)",
    ),
    "a moment of NaN": (
        changed(lambda one: one[0].fill_(torch.nan), *MATRIX, "exp_avg"),
        "exp_avg of layers.0.weight is not",
    ),
    "a second moment below zero": (
        changed(lambda one: one[1].neg_(), *MATRIX, "exp_avg_sq"),
        "step .* would not be finite",
    ),
    "a moment that is far too large": (changed(lambda one: one.fill_(1e30), *MATRIX, "exp_avg"), "would not be finite"),
    "a moment of whole numbers": (replaced(torch.ones(40, 4, dtype=torch.int64), *MATRIX, "exp_avg"), "floating-point"),
    "a step count of -1": (
        replaced(torch.tensor(-1.0), *MATRIX, "step"),
        "step of .* whole number of at least 0, got -1",
    ),
    "a step count of NaN": (replaced(torch.tensor(torch.nan), "state", 2, "step"), "must be a finite number"),
    "a moment that passes and is infinite": (
        changed(lambda one: one[-1].fill_(torch.inf), "state", 7, "exp_avg_sq"),
        "exp_avg_sq of lm_head.weight is not finite",
    ),
    "a count below zero": (replaced(-1, *MATRIX, "count"), "counts of layers.0.weight are damaged: count -1"),
    "a refresh in the future": (replaced(9, *MATRIX, "refreshed"), "refreshed 9"),
    "a refresh that was followed too often": (replaced(-4, *MATRIX, "refreshed"), "count 2, refreshed -4"),
    "a rate that is infinite": (
        replaced(torch.inf, *GROUP, "lr"),
        "options of group 0 .* next step would not be finite",
    ),
    "a rate in words": (replaced("fast", *GROUP, "lr"), "options of group 0 of the state do not work with AdamW"),
    "no betas": (replaced(None, *GROUP, "betas"), "do not work with AdamW"),
    "betas in one tensor": (replaced(torch.tensor([0.9, 0.999]), *GROUP, "betas"), "betas of group 0 .* one number"),
    "a graph on a CPU": (replaced(True, *GROUP, "capturable"), "do not work with AdamW"),
    "steps skipped in words": (replaced("two", *GROUP, "galore_skipped"), "must be a whole number, got 'two'"),
    "a parameter twice": (replaced([0, 0, *range(2, 8)], *GROUP, "params"), "a parameter twice"),
    "a matrix without an entry": (without(*MATRIX), "no entry for layers.0.weight: the state is not whole"),
    "two entries for one parameter": (replaced({}, "state", "1"), "has two entries for one parameter"),
    "a parameter of no group": (replaced({}, "state", 99), "an entry for parameter 99, but no group"),
    "a matrix that passed": (
        lambda: state_of(skip=["layers.0.weight"]),
        r"of layers\.0\.weight is not that of a projected matrix",
    ),
}


def plain(value):
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
@pytest.mark.parametrize("title", REFUSED)
def test_refused_in_one_sentence_and_nothing_changes(title, used):
    """An optimizer that has trained keeps every number that it had."""
    spoil, sentence = REFUSED[title]
    optimizer = made(model := network(), lr=0.2)
    train(model, optimizer, 2 if used else 0)
    before = plain(stored(optimizer.state_dict()))
    with pytest.raises(StateError, match=sentence) as refused:
        optimizer.load_state_dict(spoil())
    assert "\n" not in str(refused.value)
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert (optimizer.matrices[0].basis is None) == (not used)
    assert plain(optimizer.state_dict()) == before


def test_the_same_parameters_in_another_order_are_refused():
    with pytest.raises(ValueError, match="in another order: parameter 0 is a there and b here"):
        pair("b", "a").load_state_dict(pair("a", "b").state_dict())


TORCHS = {
    "Adadelta": {},
    "Adam": {"amsgrad": True, "maximize": True},
    "Adamax": {},
    "ASGD": {},
    "NAdam": {"decoupled_weight_decay": True},
    "RAdam": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Rprop": {},
    "SGD": {},
    "Muon": {},
}


@pytest.mark.parametrize("name", TORCHS)
def test_what_any_optimizer_of_torch_saved_is_taken_and_a_part_of_it_or_nan_is_not(name):
    """Most rows of the matrices never have a gradient."""

    def made_of(seed):
        torch.manual_seed(seed)
        named = [("a", nn.Parameter(torch.randn(6, 9))), ("b", nn.Parameter(torch.randn(6, 9)))]
        return named, GaLore(named, getattr(torch.optim, name), rank=2, refresh=2, lr=0.01, skip=(), **TORCHS[name])

    def stepped(named, optimizer):
        for seed in range(3):
            for _, each in named:
                each.grad = torch.randn(6, 9, generator=torch.Generator().manual_seed(seed)) * torch.eye(6, 1)
            optimizer.step()
        return [each.detach().clone() for _, each in named]

    (named, optimizer), (others, again) = made_of(0), made_of(0)
    stepped(named, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    for (_, ours), (_, theirs) in zip(named, others, strict=True):
        theirs.data.copy_(ours.data)
    again.load_state_dict(copy.deepcopy(state))
    assert all(map(torch.equal, stepped(named, optimizer), stepped(others, again)))
    own = {"basis", "energies", "count", "refreshed"}
    for key in state["state"][0].keys() - own:
        spoiled = copy.deepcopy(state)
        if len(state["state"][0].keys() - own) > 1:
            del spoiled["state"][0][key]
            with pytest.raises(StateError, match=f"a has no '{key}': the state is not whole"):
                again.load_state_dict(spoiled)
        spoiled["state"][0][key] = torch.full_like(state["state"][0][key], torch.nan)
        with pytest.raises(StateError, match=f"saved {key} of a (is not finite|must be a finite number)"):
            again.load_state_dict(spoiled)


@pytest.mark.parametrize("kind", [APOLLO, Fira])
def test_the_last_norm_is_checked_too(kind):
    def trained():
        model = network()
        return train(model, optimizer := kind(model, rank=4, lr=0.01), 2), optimizer

    _, optimizer = trained()
    for value, why in (
        (torch.tensor([torch.nan]), "is not finite"),
        (torch.ones(4), r"has shape \(4,\), expected \(1,\)"),
    ):
        state = copy.deepcopy(optimizer.state_dict())
        state["state"][1]["last_norm"] = value
        with pytest.raises(StateError, match=f"last_norm of layers.0.weight {why}"):
            optimizer.load_state_dict(state)


MUONS = {
    "other numbers": (lambda state: state["state"][0].update(momentum_buffer=torch.ones(3, 3)), "expected (4, 6)"),
    "NaN": (lambda state: state["state"][0]["momentum_buffer"].fill_(torch.nan), "is not finite"),
    "a part": (lambda state: state["state"][0].update(x=state["state"][0].pop("momentum_buffer")), "not whole"),
    "no rate": (lambda state: state["param_groups"][0].pop("lr"), "no entry 'lr'"),
    "rounds in words": (lambda state: state["param_groups"][0].update(rounds="x"), "not one of Muon"),
    "endless rounds": (lambda state: state["param_groups"][0].update(rounds=2**40), "from 1 to 100, got"),
    "another parameter": (lambda state: state["state"].update({7: {}}), "parameter 7"),
}


@pytest.mark.parametrize("title", MUONS)
def test_a_state_of_muon_is_checked(title):
    spoil, why = MUONS[title]
    weight = nn.Parameter(torch.zeros(4, 6))
    optimizer = Muon([weight], lr=0.1)
    weight.grad = torch.eye(4, 6)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(before)
    state = copy.deepcopy(before)
    spoil(state)
    with pytest.raises(StateError, match=re.escape(why)):
        optimizer.load_state_dict(state)
    assert repr(optimizer.state_dict()) == repr(before)


JUNK = (None, "x", -1, 2**70, float("nan"), [], {}, torch.ones(()), torch.ones(2, 2), torch.full((3,), torch.nan), b"")


@pytest.mark.parametrize("inner", ["AdamW", "SGD with momentum", "Adafactor"])
def test_whatever_stands_in_a_state_it_is_loaded_or_refused_whole(inner):
    """Each entry of a matrix, of a bias and of the groups in turn, replaced by everything else."""
    model = network()
    make = partial(GaLore, model, rank=4, refresh=3, **INNER[inner])
    optimizer = make()
    train(model, optimizer, 2)
    honest, refused = stored(optimizer.state_dict()), 0
    whole = inner == "AdamW"  # what is GaLore's own is the same for all
    places = [("state", number, key) for number in ((1, 2) if whole else (1,)) for key in honest["state"][number]]
    places += [("param_groups", 0, key) for key in (honest["param_groups"][0] if whole else optimizer.inner.defaults)]
    for part, at, key in places:
        for junk in JUNK:
            state = copy.deepcopy(honest)
            state[part][at][key] = junk
            try:
                optimizer.load_state_dict(state)
            except ValueError:
                refused += 1
                assert plain(optimizer.state_dict()) == plain(honest)
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
    assert plain(optimizer.state_dict()) == plain(before)
