"""A state that was cut short or is for other parameters is refused in one sentence, before anything changes."""

import copy
import re

import pytest
import torch
from torch import nn
from training import loss_of, network, same, train

from joma.optim import APOLLO, Energy, Fira, GaLore, Muon, StateError


def made(model, **options):
    return GaLore(model, **({"rank": 4, "lr": 0.1} | options))


def state_of(**options):
    model = network()
    optimizer = made(model, **options)
    train(model, optimizer, 2)
    return copy.deepcopy(optimizer.state_dict())


def without(*path):
    """A state that lacks one entry."""

    def spoil():
        state = place = state_of()
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]
        return state

    return spoil


def replaced(value, *path):
    """A state with one entry of another value."""

    def spoil():
        state = place = state_of()
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return state

    return spoil


def changed(change, *path):
    """A state with the numbers of one tensor changed in place."""

    def spoil():
        state = place = state_of()
        for key in path:
            place = place[key]
        change(place)
        return state

    return spoil


GROUP = ("param_groups", 0)
MATRIX = ("state", 1)
REFUSED = {
    "nothing": (dict, r"must be a dictionary with 'state' and 'param_groups', got \[\]"),
    "a list": (list, "must be a dictionary .* got list"),
    "no state": (without("state"), r"got \['param_groups'\]"),
    "no groups": (without("param_groups"), r"got \['state'\]"),
    "groups of none": (lambda: {"state": {}, "param_groups": []}, r"groups of \[\] parameters"),
    "no rank": (without(*GROUP, "rank"), "group 0 of the state has no entry 'rank': the state is not whole"),
    "no params": (without(*GROUP, "params"), "has no entry 'params'"),
    "no count of skipped steps": (without(*GROUP, "galore_skipped"), "has no entry 'galore_skipped'"),
    "a later version": (replaced(3, *GROUP, "galore_version"), "has version 3, this GaLore reads versions up to 2"),
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
    "a rate that is infinite": (
        replaced(torch.inf, *GROUP, "lr"),
        "options of group 0 .* next step would not be finite",
    ),
    "a rate in words": (replaced("fast", *GROUP, "lr"), "options of group 0 of the state do not work with AdamW"),
    "no betas": (replaced(None, *GROUP, "betas"), "do not work with AdamW"),
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


@pytest.mark.parametrize("title", REFUSED)
def test_refused_in_one_sentence_and_nothing_changes(title):
    spoil, sentence = REFUSED[title]
    optimizer = made(network(), lr=0.2)
    with pytest.raises(StateError, match=sentence) as refused:
        optimizer.load_state_dict(spoil())
    assert "\n" not in str(refused.value)
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert optimizer.matrices[0].basis is None


def pair(*names):
    """Named matrices of one shape, and GaLore after a step on them."""
    torch.manual_seed(0)
    matrices = [(name, nn.Parameter(torch.randn(8, 12))) for name in names]
    optimizer = GaLore(matrices, rank=2)
    for _, each in matrices:
        each.grad = torch.randn(8, 12)
    optimizer.step()
    return optimizer


def test_the_same_parameters_in_another_order_are_refused():
    with pytest.raises(ValueError, match="in another order: parameter 0 is a there and b here"):
        pair("b", "a").load_state_dict(pair("a", "b").state_dict())


def test_the_same_parameters_under_other_names_are_taken():
    state, again = pair("a", "b").state_dict(), pair("module.a", "module.b")
    again.load_state_dict(state)
    assert torch.equal(again.matrices[1].basis, state["state"][1]["basis"])


def test_numbers_that_became_text_are_read():
    """As a file with names for tensors keeps them; before, such a state was taken for none at all."""
    whole, model = network(), network()
    train(whole, made(whole), 4)
    optimizer = made(model)
    train(model, optimizer, 2)
    state = optimizer.state_dict()
    state["state"] = {str(number): entry for number, entry in state["state"].items()}
    again = made(model)
    again.load_state_dict(state)
    assert same(train(model, again, 2), whole)


@pytest.mark.parametrize("rank", [4, Energy(0.6, most=4)], ids=str)
@pytest.mark.parametrize("inner", [torch.optim.Adagrad, torch.optim.AdamW])
def test_a_state_from_before_the_first_step_is_taken(inner, rank):
    """Adagrad has a state then, without a subspace. An optimizer that has trained begins anew with it."""
    fresh = copy.deepcopy(GaLore(network(), inner, rank=rank, lr=0.1).state_dict())
    used, whole = network(), network()
    optimizer = GaLore(used, inner, rank=rank, lr=0.1)
    train(used, optimizer, 2)
    optimizer.load_state_dict(fresh)
    assert not optimizer.state
    used.load_state_dict(whole.state_dict())
    train(whole, GaLore(whole, inner, rank=rank, lr=0.1), 3)
    assert same(train(used, optimizer, 3), whole)


def test_a_state_after_a_first_step_that_was_skipped_is_taken():
    model = network()
    optimizer = made(model, nonfinite="skip")
    loss_of(model).backward()
    model.lm_head.weight.grad.fill_(torch.nan)
    optimizer.step()
    state = optimizer.state_dict()
    assert set(state["state"][1]) == {"basis", "energies", "count", "refreshed"}
    again = made(network())
    again.load_state_dict(state)
    assert again.skipped == 1


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
