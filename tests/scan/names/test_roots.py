"""One root per checkpoint: which of several models in a file is scanned."""

import re

import pytest

from joma.scan.errors import UnknownNames
from joma.scan.names.architecture import coverage, find_groups
from joma.scan.names.roots import choose_root, root_notes, roots

LAYER = ("h.0.mlp.c_fc.weight", "h.1.mlp.c_fc.weight", "ln.weight")


def under(*words):
    return [f"{word}.{name}" if word else name for word in words for name in LAYER]


@pytest.mark.parametrize(("words", "expected"), [
    (("model", "ema"), ("model", "ema")),
    (("state_dict.model", "state_dict.model_ema"), ("state_dict.model", "state_dict.model_ema")),
    (("state_dict", "state_dict_ema"), ("state_dict", "state_dict_ema")),
    (("", "ema"), (".", "ema")),
    (("module", "swa_model.module"), (".", "swa_model")),
    (("student", "teacher"), ("student", "teacher")),
    (("", "module"), (".", "module")),
    (("encoder", "decoder"), (".",)),
    (("module._orig_mod.model",), (".",)),
    (("ema",), (".",)),
])  # fmt: skip
def test_roots(words, expected):
    names = under(*words)
    assert roots(names) == expected
    for root in expected:
        found = find_groups(names, {}, root=root)["mlp"]
        assert len(found) == (4 if words == ("encoder", "decoder") else 2)
        assert len({re.split(r"h\.\d", name)[0] for name in found}) == (2 if words == ("encoder", "decoder") else 1)
        assert coverage({"mlp": found}, names)["mlp"][1] == len(found)


def test_raw_weights_before_their_average_and_both_by_name():
    names = under("state_dict.model", "state_dict.model_ema")
    assert find_groups(names, {})["mlp"][0].startswith("state_dict.model.")
    assert find_groups(names, {}, root="model_ema")["mlp"][0].startswith("state_dict.model_ema.")
    assert "state_dict.model_ema were left aside: choose them as root state_dict.model_ema" in root_notes(names)[0]
    assert root_notes(under("model")) == ()
    assert find_groups(names, {}, root=".") == find_groups(names, {})


def test_which_of_two_models_is_not_guessed():
    names = under("student", "teacher")
    with pytest.raises(UnknownNames, match="several sets of weights, student and teacher; choose one as root student"):
        find_groups(names, {})
    assert len(find_groups(names, {}, root=".")["mlp"]) == 4
    with pytest.raises(UnknownNames, match="no weights under 'other'; root must be one of student, teacher"):
        choose_root(names, "other")


def test_parts_of_a_larger_model_are_no_models():
    names = [*under("model.left", "model.right"), "model.text.layers.0.mlp.fc1.weight"]
    assert roots(names) == (".",)


def test_an_average_never_joins_the_optimizer():
    names = [
        *under("model"),
        *(f"optimizer.state.{name}.exp_avg" for name in LAYER),
        "optimizer.ema.h.0.mlp.c_fc.weight",
    ]
    assert roots(names) == (".",)
    assert find_groups(names, {})["mlp"] == ("model.h.0.mlp.c_fc.weight", "model.h.1.mlp.c_fc.weight")
