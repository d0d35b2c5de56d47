"""Parameters without names: embeddings and heads cannot be told from other matrices, and GaLore says so once."""

import warnings

import pytest
import torch
from torch import nn

from joma.optim import GaLore


def wide():
    return nn.ModuleList([nn.Embedding(900, 16), nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 900)])


def warned(make):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made = make()
    return [str(one.message) for one in seen], made, [one.filename for one in seen]


def test_parameters_without_names_are_all_projected_and_one_warning_says_so():
    said, optimizer, places = warned(lambda: GaLore(wide().parameters(), rank=4))
    assert said == [
        "params has 4 matrices without names, so GaLore projects embeddings and heads among them: give the model or "
        "model.named_parameters() to leave those out, or skip=() to project all"
    ]
    assert places == [__file__]
    assert [tuple(matrix.parameter.shape) for matrix in optimizer.matrices] == [
        (900, 16),
        (64, 16),
        (16, 64),
        (900, 16),
    ]


def test_matrices_with_names_are_not_counted_among_those_without():
    tables = [nn.Parameter(torch.zeros(900, 8)) for _ in range(4)]
    (said,), _, _ = warned(lambda: GaLore([("a", tables[0]), tables[1], ("b", tables[2]), tables[3]], rank=4))
    assert said.startswith("params has 2 matrices without names")
    said, optimizer, _ = warned(lambda: GaLore([("a", tables[0]), tables[1], ("b", tables[2])], rank=4))
    assert said == []
    assert [matrix.name for matrix in optimizer.matrices] == ["a", "group 0, parameter 1", "b"]


def test_embeddings_of_a_module_are_known_by_their_kind():
    """Whatever their names, in the midst of a model or as the model itself."""
    model = nn.ModuleDict({"table": nn.Embedding(90, 16), "bag": nn.EmbeddingBag(90, 16), "up": nn.Linear(16, 64)})
    for deeper in (model, nn.Sequential(model)):
        assert [matrix.name.split(".")[-2] for matrix in GaLore(deeper, rank=4).matrices] == ["up"]
    for alone in (nn.Embedding(90, 16), nn.EmbeddingBag(90, 16)):
        with pytest.raises(ValueError, match="no matrix is projected"):
            GaLore(alone, rank=4)
    named = GaLore(model.named_parameters(), rank=4)  # names alone say nothing of the kind
    assert [matrix.name.split(".")[0] for matrix in named.matrices] == ["table", "bag", "up"]


@pytest.mark.parametrize(
    "make",
    [
        lambda model: GaLore(model, rank=4),
        lambda model: GaLore(model.named_parameters(), rank=4),
        lambda model: GaLore(model.parameters(), rank=4, skip=()),
        lambda model: GaLore([{"params": model.parameters(), "rank": 4}]),
        lambda model: GaLore([model[1].weight, model[1].bias], rank=4),
        lambda model: GaLore([{"params": list(model[1].parameters()), "param_names": ["up", "bias"]}], rank=4),
    ],
    ids=["a model", "named", "nothing is skipped", "the group states its rank", "one matrix", "names in the group"],
)
def test_there_is_no_warning_where_names_are_known_or_matrices_were_chosen(make):
    said, _, _ = warned(lambda: make(wide()))
    assert said == []


@pytest.mark.parametrize(("options", "named"), [({}, ["params has 2 matrices without names"]), ({"skip": ()}, [])])
def test_a_group_without_names_that_is_added_later_is_warned_of_unless_nothing_is_skipped(options, named):
    model = wide()
    optimizer = GaLore([("up", model[1].weight)], rank=4, **options)
    said, _, places = warned(lambda: optimizer.add_param_group({"params": [model[0].weight, model[3].weight]}))
    assert [one.split(",")[0] for one in said] == named
    assert places == [__file__] * len(named)
    assert len(optimizer.matrices) == 3


def test_a_group_that_is_refused_because_of_the_warning_leaves_nothing_behind():
    model = wide()
    optimizer = GaLore([("up", model[1].weight)], rank=4)
    with pytest.raises(UserWarning, match="without names"):
        optimizer.add_param_group({"params": [model[0].weight, model[3].weight]})
    assert len(optimizer.matrices) == len(optimizer.param_groups) == len(optimizer.inner.param_groups) == 1
