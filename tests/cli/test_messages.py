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


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--device", "tpu"], "device must be cpu, cuda or cuda:NUMBER, got 'tpu'"),
        (["--measures", "entropi"], "got 'entropi' (--measures NAMES)"),
        (["--root", "ema"], "no weights under 'ema'; it holds one model, so no root is needed (--root NAME)"),
        (["--measures", "entropy"], "no text is given (--text FILE)"),
        (["--on", "slurm"], "on must be local, ray, ray:ADDRESS or ray://HOST:PORT, got 'slurm' (--on PLACE)"),
        (["--on", "local", "--jobs", "0"], "jobs must be at least 1, got 0 (--jobs N)"),
        (["--on", "local", "--device", "cuda:1"], "and `on` chooses one itself; say cuda (--device)"),
        (["--steps", "1" * 5000], "got '111111111111111111111111111111111111...' (--steps STEPS)"),
        (["--steps", f"0:{'1' * 5000}"], "got '0:1111111111111111111111111111111111...' (--steps STEPS)"),
    ],
)
def test_a_wrong_option_of_a_scan_is_bad_input_and_is_named(checkpoint, tmp_path, capsys, options, sentence):
    assert main(["scan", checkpoint, "--out", str(tmp_path / "out"), *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith("joma: ")
    assert said.endswith(f"{sentence}\n")
    assert "a fault of joma" not in said


def test_without_ray_one_sentence_says_how_to_get_it(checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for command in (["scan", checkpoint], ["verify", "thm5"]):
        assert main([*command, "--out", str(tmp_path / command[0]), "--on", "ray"]) == 2
        said = capsys.readouterr().err
        assert said == "joma: ray is not installed: pip install -e '.[ray]', in the checkout of joma\n"
    assert not list((tmp_path / "verify").iterdir())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--bogus"], "joma: unknown option '--bogus'; see `joma --help`\n"),
        (
            ["zzz"],
            "joma: no command is called 'zzz'; there are verify, run, list, show, report, scan, merge, cache, "
            "forecast, watch, view, export; ",
        ),
        (["run", "thm1-rates", "--rates", "1", "2", "3"], "joma: --rates takes values in groups of 2, got 3 values\n"),
        (["report", "/nowhere", "/etc"], "joma: joma report takes one folder, or several runs: there is no /nowhere\n"),
        (["report", "/etc", "/usr"], "joma: joma report takes one folder, or several runs: got 2 folders of 2 paths\n"),
        (["verify", "thm2", "--claims", "wrong"], "joma: a verdict is one of holds, "),
    ],
)
def test_a_wrong_command_is_one_sentence(arguments, sentence, capsys):
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    assert status == 2
    said = capsys.readouterr().err
    assert said.startswith(sentence)
    assert said.count("\n") == 1


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


def test_a_limit_that_is_no_number_is_refused_before_anything_is_done(monkeypatch, capsys):
    monkeypatch.setenv("JOMA_LIMITS", "LAYERS=many")
    assert main(["list"]) == 2
    said = capsys.readouterr()
    assert said.err == "joma: JOMA_LIMITS takes NAME=NUMBER, a positive one, as in LAYERS=5000, got 'LAYERS=many'\n"
    assert not said.out
