"""`joma forecast`: what it prints, what it writes, and what it refuses in one sentence."""

import json
import re

import pytest

from joma.cli.main import main

HALF = """
from joma.measure.forecast import log_linear

def forecast(history, t):
    return log_linear(history.steps, history.entropy, 2 * t, share=0.5)

def rising(history, t):
    assert history.steps[-1] == t
    return history.entropy[:, -1] + 1.0

constant = 3
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(HALF)
    return path


def test_a_forecast_of_ones_own_stands_in_the_table(mine, tmp_path, capsys):
    assert main(["forecast", str(mine), f"{mine}:rising", "--json", str(tmp_path / "scores.json")]) == 0
    table = capsys.readouterr().out.splitlines()
    named = ["damped line in log t", "damped trend", "focus and dilution", "no change", str(mine), f"{mine}:rising"]
    assert sorted(name for line in table for name in named if line.startswith(f"{name} ")) == sorted(named)
    assert table[-2].startswith(f"{mine}:rising")  # the best first: this one is the worst
    content = json.loads((tmp_path / "scores.json").read_text())["scores"]
    for one in content:
        columns = (one["skill"], one["skill from t = 500 on"])
        said = [f"{100 * s['value']:.0f} % [{100 * s['low']:.0f}, {100 * s['high']:.0f}]" for s in columns]
        (line,) = (line for line in table if line.startswith(f"{one['name']}  "))
        assert re.split(r"\s{2,}", line) == [one["name"], *said]
        assert one["name"] == "no change" or said[0] != said[1]
    scores = {one["name"]: one["skill"] for one in content}
    assert scores["no change"]["value"] == 0
    assert scores[f"{mine}:rising"]["value"] < -1
    assert scores[str(mine)]["low"] < scores[str(mine)]["value"] < scores[str(mine)]["high"]
    seal = json.loads((tmp_path / "scores.json").read_text())["sealed"]
    assert len(seal["sha256"]) == 64


def test_a_file_may_have_dataclasses(tmp_path, capsys):
    """They look for their module among those that are loaded."""
    path = tmp_path / "shifted.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n\n\n"
        "@dataclass\n"
        "class Shift:\n"
        "    by: float = 0.0\n\n\n"
        "def forecast(history, t):\n"
        "    return history.entropy[:, -1] + Shift().by\n"
    )
    assert main(["forecast", str(path), "--json", "-"]) == 0
    scores = {one["name"]: one["skill"]["value"] for one in json.loads(capsys.readouterr().out)["scores"]}
    assert scores[str(path)] == 0


def test_numbers_alone_on_standard_output(capsys):
    assert main(["forecast", "--json", "-"]) == 0
    content = json.loads(capsys.readouterr().out)
    names = [one["name"] for one in content["scores"]]
    assert names == ["no change", "damped line in log t", "damped trend", "focus and dilution"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere.py", "there is no file nowhere.py that could hold a forecaster"),
        ("forecast", "a forecaster is given as FILE.py, FILE.py:NAME or MODULE:NAME, got 'forecast'"),
        ("no.such.module:forecast", "no.such.module cannot be imported"),
        ("json:nothing", "json has no function nothing(history, t)"),
        ("{mine}:constant", "has no function constant(history, t)"),
        ("{broken}", "broke while it was loaded: ZeroDivisionError: division by zero"),
        ("broken:forecast", "broken broke while it was loaded: ZeroDivisionError: division by zero"),
        ("builtins:len", "builtins:len raised TypeError for Adam, 1 layer at t = 64: len() takes exactly one argument"),
    ],
)
def test_refusals(given, said, mine, capsys, monkeypatch):
    broken = mine.with_name("broken.py")
    broken.write_text("1 / 0")
    monkeypatch.syspath_prepend(mine.parent)
    assert main(["forecast", given.format(mine=mine, broken=broken)]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in error
