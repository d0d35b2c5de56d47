"""A file of roles: lines that say what further names are for."""

import json
import tomllib

import numpy as np
import pytest
import torch
from checkpoint_series import scan
from safetensors.torch import save_file

from joma.host.errors import BadInput
from joma.scan import scan as scan_series
from joma.scan.names.architecture import find_groups, not_taken_notes, others
from joma.scan.names.roles import TABLE, check_roles, read_roles, taken
from joma.scan.names.roots import choose_root, roots


def named(lines):
    return "[names]\n" + "".join(f"{json.dumps(name)} = {json.dumps(group)}\n" for name, group in lines.items())


@pytest.fixture
def wild(tmp_path):
    """Two layers of a family that nobody knows, at two steps, and a matrix outside of them."""
    for step in (0, 10):
        generator = torch.Generator().manual_seed(step)
        tensors = {
            f"net.layers.{layer}.swirl.{leaf}.weight": torch.randn(6, 4, generator=generator)
            for layer in range(2)
            for leaf in ("in", "out")
        }
        tensors |= {"bridge.fold.weight": torch.randn(6, 4, generator=generator), "lm_head.weight": torch.eye(4)}
        save_file(tensors, tmp_path / f"step{step}.safetensors")
    return tmp_path


def test_the_suggested_line_takes_what_was_not_taken(wild, tmp_path, capsys):
    """A user copies the lines that notes suggest, one after the other, until nothing is left."""
    table, lines = tmp_path / "roles.toml", {}
    for left in (2, 1, 0):
        status, found = scan(wild, "--roles", table, "--strict", out=tmp_path / f"out{left}") if lines else (
            scan(wild, "--pattern", r"mine=bridge\.fold\.weight", "--strict", out=tmp_path / "out2")
        )  # fmt: skip
        told = [note for note in found["notes"] if "not taken" in note]
        assert (status, len(told)) == ((3, 1) if left else (0, 0))
        if left:
            line = told[0].partition("a line of roles: ")[2]
            lines |= tomllib.loads(f"[names]\n{line}")["names"]
            table.write_text(named({**lines, "bridge.fold": "bridge"}))
    assert lines == {"swirl.in": "swirl_in", "swirl.out": "swirl_out"}
    assert set(found["curves"]) == {f"stable_rank/{group}" for group in ("swirl_in", "swirl_out", "bridge")}
    rows = found["curves"]["stable_rank/swirl_in"]["rows"]
    assert [row["layer"] for row in rows] == [0, 1]
    assert found["coverage"]["swirl_in"] == {"layers": 2, "of": 2}
    again, here = {}, scan_series(wild, roles=lines)
    for group in ("swirl_in", "swirl_out"):
        again[group] = np.array(found["curves"][f"stable_rank/{group}"]["values"])[..., 0]
        np.testing.assert_array_equal(here.curves[f"stable_rank/{group}"].values, again[group])
    assert not np.array_equal(again["swirl_in"], again["swirl_out"])


def test_scans_with_other_roles_go_to_other_runs(wild, tmp_path):
    runs = [scan_series(wild, roles={"swirl.in": group}, out=tmp_path / "out").run for group in ("a", "b", "a")]
    assert runs[0] == runs[2] != runs[1]


def test_a_line_of_ones_own_decides_before_the_table():
    names = {"h.0.mlp.c_fc.weight": (6, 4), "h.0.attn.c_q.weight": (4, 4), "h.0.mixer.A_log": (4, 2)}
    assert set(find_groups(names, {})) == {"mlp", "attention_q"}
    own = {"mlp.c_fc": "mine", "attn.c_q": "none", "mixer.A_log": "state"}
    found = find_groups(names, {}, roles=own, shape=names.__getitem__)
    assert found == {"mine": ("h.0.mlp.c_fc.weight",), "state": ("h.0.mixer.A_log",)}
    assert others(names, found, roles=own) == {"h.0.attn.c_q.weight": "state"}


def test_the_longest_line_decides_and_a_star_is_one_word():
    lines = {
        "*.wkv": "any",
        "indexer.wkv": "indexer",
        "a.*.b": "between",
        "a.x.b": "exact",
        "c.d.*": "long",
        "e": "short",
    }
    took = lambda name: [one.group for one in taken([name], None, None, lines)]
    assert took("h.0.indexer.wkv.weight") == ["indexer"]
    assert took("h.0.other.wkv") == ["any"]
    assert took("wkv") == []
    assert took("a.7.b") == ["between"]
    assert took("q.a.x.b.weight") == ["exact"]
    assert took("a.7.8.b") == []
    assert took("h.0.c.d.e") == ["long"]
    assert took("h.0.c.x.e") == ["short"]
    assert took("h.0.indexer.wkv.bias") == []


def test_a_stack_is_cut_and_what_is_no_matrix_is_not_taken():
    shapes = {"h.0.wild": (3, 6, 4), "h.1.wild": (6,), "h.2.wild": (1, 6), "h.3.wild": (2, 3, 4, 4)}
    found = find_groups(shapes, {}, shape=shapes.__getitem__, roles={"wild": "wild"})
    assert found == {"wild": tuple(f"h.0.wild[{at}]" for at in range(3))}


def test_averages_of_a_mixer_come_into_no_group_with_raw_weights():
    """What a line of the table or no line at all is for: the layers tell that there are two models."""
    for leaf in ("mixer.in_proj", "swirl.in"):
        names = [f"{root}.layers.{layer}.{leaf}.weight" for root in ("model", "ema") for layer in range(2)]
        assert roots(names) == ("model", "ema")
        assert choose_root(names) == "model"
        (group,) = find_groups(names, {}, roles={"swirl.in": "swirl"}).values()
        assert all(name.startswith("model.") for name in group)


def test_what_is_known_outside_of_layers_is_named(wild, tmp_path, capsys):
    names = ["lm_head.weight", "wpe.weight", "bert.embeddings.token_type_embeddings.weight", "bridge.fold.weight",
             "h.0.output.weight", "norm.weight", "mm.bias"]  # fmt: skip
    assert others(names, {}) == dict(zip(names, ("head", "table", "table", None, None, "norm", "bias"), strict=True))
    scan(wild, "--list", out=tmp_path)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("lm_head"))
    assert "(head)" in line


@pytest.mark.parametrize(("text", "why"), [
    ("[names", "is no TOML"),
    ("names = 3", r"no table \[names\] alone"),
    ('[names]\n"a" = "b"\n[more]\nx = 1', r"no table \[names\] alone"),
    ("[roles]", r"no table \[names\] alone"),
    ('[names]\n"" = "a"', "does not begin with the end of a name"),
    ('[names]\n"a..b" = "a"', "does not begin with"),
    ('[names]\n"*.*" = "a"', "does not begin with"),
    ('[names]\n"a" = 3', "names no group"),
    ('[names]\na.b = "c"', "names no group"),  # without quotes TOML takes it for a table in a table
    ('[names]\n"a" = "two words"', "names no group"),
    ('[names]\n"a" = "../up"', "names no group"),
    (named({f"{'x' * 300}": "a"}), "does not begin with"),
    (named({f"a{at}": "b" for at in range(1001)}), "1,000 are read"),
    ("x = " + "[" * 100_000, "is no TOML"),
])  # fmt: skip
def test_files_that_are_none(text, why, tmp_path):
    (tmp_path / "roles.toml").write_text(text)
    with pytest.raises(BadInput, match=why) as caught:
        read_roles(tmp_path / "roles.toml")
    assert "\n" not in str(caught.value)
    assert caught.value.argument == "roles"


def test_bytes_that_are_no_text_and_a_file_that_is_not_there(wild, tmp_path):
    (tmp_path / "roles.toml").write_bytes(b'[names]\n"\xff" = "a"')
    with pytest.raises(BadInput, match="is no TOML"):
        read_roles(tmp_path / "roles.toml")
    with pytest.raises(ValueError, match=r"none\.toml"):
        scan_series(wild, roles=tmp_path / "none.toml")


def test_the_table_of_joma_keeps_its_own_rules():
    assert check_roles(TABLE["names"]) == TABLE["names"]
    assert not_taken_notes({}, dict.__getitem__) == ()
