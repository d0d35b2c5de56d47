"""A state that was cut short or is for other parameters is refused in one sentence, before anything changes."""

import copy

import pytest
import torch
from torch import nn
from training import loss_of, network, same, train

from joma.optim import Energy, GaLore


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
    with pytest.raises(ValueError, match=sentence) as refused:
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
