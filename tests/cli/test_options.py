"""What can be asked for, what is refused and how, and what is loaded for that."""

import argparse
import dataclasses
import importlib
import inspect
import json
import shlex
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from joma import studies
from joma.claims.contract import SCALES
from joma.claims.execute import command_line, plain_config
from joma.cli.main import main
from joma.cli.options import parse


def test_case_does_not_matter(capsys):
    assert main(["LIST", "THM2"]) == 0
    assert capsys.readouterr().out == "thm2  Theorem 2: winner take all under a linear MLP\n"
    assert main([]) == 0
    assert "usage: joma" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["verify", "list", "show", "report", "scan", "export"])
def test_an_unknown_option_is_one_sentence_with_the_command_that_helps(command, capsys):
    required = {"show": ["thm2"], "report": ["x"], "scan": ["x"], "export": ["x", "--to", "csv"]}.get(command, [])
    with pytest.raises(SystemExit) as exit:
        main([command, *required, "--verbos"])
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"joma {command} --help" in error


def test_the_list_is_instant_and_loads_no_torch():
    command = [sys.executable, "-X", "importtime", "-m", "joma", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "| torch" not in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(studies.names())
    assert all(studies.title(name) == studies.load(name).title for name in studies.names())


def test_options_of_every_study_can_be_read_and_say_what_they_are():
    for name in studies.names():
        study = studies.load(name)
        for scale in SCALES:
            assert parse(study, ["--scale", scale]).config == study.preset(scale)
    rates = parse(studies.load("thm1-rates"), ["--rates", "1", "1", "3", "4"]).config.rates
    assert rates == ((1.0, 1.0), (3.0, 4.0))
    with pytest.raises(ValueError, match="groups of 2"):
        parse(studies.load("thm1-rates"), ["--rates", "1", "2", "3"])


def test_the_command_that_repeats_a_run_gives_its_config_back():
    study = studies.load("thm1-rates")
    config = dataclasses.replace(study.quick, rates=((1.0, 1.0), (3.0, 4.0)), steps=30)
    _, _, name, *options = shlex.split(command_line(study, plain_config(config)))
    assert name == "thm1-rates"
    assert parse(study, options).config == config


def test_options_are_typed_and_the_nearest_name_is_suggested(with_toy, tmp_path, capsys):
    for arguments, hint in ((["--sice", "3"], "--size"), (["--size", "three"], "--size")):
        with pytest.raises(SystemExit) as exit:
            main(["run", "toy", *arguments])
        assert exit.value.code == 2
        assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "sentence"),
    [(".", "json must be a file, but "), ("x" * 252, "cannot be written: File name too long")],  # .NAME.new is longer
)
def test_json_that_cannot_be_written_is_refused_before_the_work(with_toy, tmp_path, capsys, name, sentence):
    (tmp_path / "there").mkdir()
    target, out = tmp_path / "there" / name, tmp_path / "out"
    assert main(["verify", "toy", "--out", str(out), "--json", str(target)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (out / "runs").exists()
    assert not list((tmp_path / "there").iterdir())


def test_list_names_every_study_and_claim(capsys):
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["studies"]
    assert [s["name"] for s in listed] == list(studies.names())
    names = [c["name"] for s in listed for c in s["claims"]]
    assert len(names) >= 40
    assert all(len({c["name"] for c in s["claims"]}) == len(s["claims"]) for s in listed)


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_run_without_a_study_says_how(flag, capsys):
    assert main(["run", flag]) == 0
    assert "joma run STUDY --help" in capsys.readouterr().out


def test_without_arguments_those_of_the_process_are_read(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["joma", "list", "thm2"])
    assert main() == 0
    assert capsys.readouterr().out == "thm2  Theorem 2: winner take all under a linear MLP\n"
    monkeypatch.setattr(sys, "argv", ["joma"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("usage: joma ")


def test_python_m_joma_is_joma():
    said = subprocess.run(
        [sys.executable, "-m", "joma", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith("joma ")


def test_help_loads_nothing_that_takes_long():
    """How long it takes is measured by benchmarks/bench_startup.py."""
    command = [sys.executable, "-X", "importtime", "-m", "joma.cli.main", "--help"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    names = {line.rpartition("|")[2].strip() for line in loaded.splitlines()}
    assert "joma.cli.parser" in names
    assert not {"torch", "numpy", "scipy", "matplotlib", "rich", "transformers", "sqlite3"} & names
    assert sum(name.startswith("joma") for name in names) < 40


@pytest.mark.parametrize(("command", "function"), [("cache", "joma.cache.evaluate"), ("scan", "joma.scan.scan")])
def test_an_option_has_the_default_of_the_function_that_it_goes_to(command, function):
    """Where both have one: a command is a shorter way to say the same."""
    commands = argparse.ArgumentParser().add_subparsers()
    importlib.import_module(f"joma.cli.{command}").add_parser(commands)
    module, _, name = function.rpartition(".")
    home = importlib.import_module(module)
    parameters = dict(inspect.signature(getattr(home, name)).parameters)
    for group in ("Which", "What", "Work") if name == "scan" else ():
        parameters |= inspect.signature(getattr(home, group)).parameters
    options = {action.dest: action.default for action in commands.choices[command]._actions}
    numbers = {name for name, one in parameters.items() if isinstance(one.default, bool | int | float)}
    both = numbers & options.keys()
    assert both
    assert {name: options[name] for name in both} == {name: parameters[name].default for name in both}


def test_without_ray_one_sentence_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    save_file({"model.layers.0.mlp.up_proj.weight": torch.ones(4, 4)}, checkpoint := tmp_path / "model.safetensors")
    monkeypatch.setitem(sys.modules, "ray", None)
    for command in (["scan", str(checkpoint)], ["verify", "thm5"]):
        assert main([*command, "--out", str(tmp_path / command[0]), "--on", "ray"]) == 2
        said = capsys.readouterr().err
        assert said == "joma: ray is not installed: pip install -e '.[ray]', in the checkout of joma\n"
    assert not list((tmp_path / "verify").iterdir())


def test_names_keep_their_capitals_and_defaults_are_said(capsys):
    for command, words in (
        ("export", ("npz, as an RO-Crate",)),
        ("scan", ("(default: joma-out)", "(default: 20)")),
        ("cache", ("(default: joma-out)",)),
        ("show", ("(default: joma-out)", "--scale paper")),
    ):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        said = " ".join(capsys.readouterr().out.split()).replace("joma- out", "joma-out")
        assert all(one in said for one in words), command
