"""`joma forecast`: what it prints, what it writes, and what it refuses in one sentence."""

import json
import re

import pytest

from joma.cli.main import main

HALF = """
from __future__ import annotations
from dataclasses import dataclass
from joma.measure.forecast import log_linear

def forecast(history, t):
    return log_linear(history.steps, history.entropy, 2 * t, share=0.5)

def rising(history, t):
    assert history.steps[-1] == t
    return history.entropy[:, -1] + 1.0

@dataclass
class Shift:  # dataclasses look for their module among those that are loaded
    by: float = 0.0

def shifted(history, t):
    return history.entropy[:, -1] + Shift().by

constant = 3

def leaves(history, t):
    raise SystemExit(0)

def turned(history, t):
    return history.entropy[:, -1] + 1j

def words(history, t):
    return ["1"] * history.n_layers

def huge(history, t):
    return [1e200] * history.n_layers

def nothing(history, t):
    return [float("nan")] * history.n_layers
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(HALF)
    return path


def test_a_forecast_of_ones_own_stands_in_the_table(mine, tmp_path, capsys):
    given = [str(mine), f"{mine}:rising", f"{mine}:shifted"]
    assert main(["forecast", *given, "--json", str(tmp_path / "scores.json")]) == 0
    table = capsys.readouterr().out.splitlines()
    named = ["damped line in log t", "damped trend", "focus and dilution", "no change", *given]
    assert sorted(name for line in table for name in named if line.startswith(f"{name} ")) == sorted(named)
    assert table[-2].startswith(f"{mine}:rising")  # the best first: this one is the worst
    content = json.loads((tmp_path / "scores.json").read_text())["scores"]
    for one in content:
        columns = (one["skill"], one["skill from t = 500 on"])
        said = [f"{100 * s['value']:.0f} % [{100 * s['low']:.0f}, {100 * s['high']:.0f}]" for s in columns]
        (line,) = (line for line in table if line.startswith(f"{one['name']}  "))
        assert re.split(r"\s{2,}", line) == [one["name"], *said]
        assert one["name"] in ("no change", given[2]) or said[0] != said[1]
    scores = {one["name"]: one["skill"] for one in content}
    assert scores["no change"]["value"] == scores[given[2]]["value"] == 0
    assert scores[f"{mine}:rising"]["value"] < -1
    assert scores[str(mine)]["low"] < scores[str(mine)]["value"] < scores[str(mine)]["high"]
    seal = json.loads((tmp_path / "scores.json").read_text())["sealed"]
    assert len(seal["sha256"]) == 64


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
        ("no.such.module:forecast", "no.such.module cannot be loaded: ModuleNotFoundError: No module named 'no'"),
        ("json:nothing", "json has no function nothing(history, t)"),
        ("{mine}:constant", "has no function constant(history, t)"),
        ("{broken}", "broken.py cannot be loaded: ZeroDivisionError: division by zero"),
        ("broken:forecast", "joma: broken cannot be loaded: ZeroDivisionError: division by zero"),
        ("{leaving}", "leaving.py cannot be loaded: SystemExit: 0"),
        ("{asked}:forecast", "asked.py cannot be loaded: SystemExit: 0"),
        ("{mine}:leaves", "mine.py:leaves failed for Adam, 1 layer at t = 64: SystemExit: 0"),
        ("{mine}:turned", "mine.py:turned gave numbers of type complex128 for Adam, 1 layer at t = 64"),
        ("{mine}:words", "mine.py:words gave numbers of type <U1 for Adam, 1 layer at t = 64"),
        ("{mine}:huge", "gave [1e+200] for Adam, 1 layer at t = 64; every entropy must be a finite number of at most"),
        ("{mine}:nothing", "gave [nan] for Adam, 1 layer at t = 64; every entropy must be a finite number of at most "),
        ("builtins:len", "builtins:len failed for Adam, 1 layer at t = 64: TypeError: len() takes exactly one"),
    ],
)
def test_refusals(given, said, mine, tmp_path, capsys, monkeypatch):
    """Also of what ends the program, and of numbers that no score can be made of: none ends with 0 and no scores."""
    asked = "def __getattr__(name): raise SystemExit(0)"
    for name, text in {"broken": "1 / 0", "leaving": "raise SystemExit(0)", "asked": asked}.items():
        mine.with_name(f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(mine.parent)
    named = {name: mine.with_name(f"{name}.py") for name in ("mine", "broken", "leaving", "asked")}
    assert main(["forecast", given.format(**named), "--json", str(tmp_path / "scores.json")]) == 2
    assert not (tmp_path / "scores.json").exists()
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in error
