"""What the command line says when something is missing or misspelt: whose fault, which option, what to do."""

import sys

import pytest
import torch
from safetensors.torch import save_file

from joma.cli.main import main


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"model.layers.0.mlp.up_proj.weight": torch.ones(4, 4)}, path)
    return str(path)


def test_without_ray_one_sentence_says_how_to_get_it(checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for command in (["scan", checkpoint], ["verify", "thm5"]):
        assert main([*command, "--out", str(tmp_path / command[0]), "--on", "ray"]) == 2
        said = capsys.readouterr().err
        assert said == "joma: ray is not installed: pip install -e '.[ray]', in the checkout of joma\n"
    assert not list((tmp_path / "verify").iterdir())


def test_names_keep_their_capitals_and_defaults_are_said(capsys):
    for command, words in (
        ("export", ("an RO-Crate with figures",)),
        ("scan", ("(default: joma-out)", "(default: 20)")),
        ("cache", ("(default: joma-out)",)),
        ("show", ("(default: joma-out)", "--scale paper")),
    ):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        said = " ".join(capsys.readouterr().out.split()).replace("joma- out", "joma-out")
        assert all(one in said for one in words), command
