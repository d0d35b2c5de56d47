"""`joma verify --minutes N`: further seeds decide what the first ones left open, are found again, and end in time."""

from dataclasses import dataclass

import numpy as np
import pytest

from joma import studies
from joma.claims.contract import Claim, Study, StudyConfig
from joma.claims.verdicts import by_effect
from joma.cli.main import main
from joma.measure.intervals import compare
from joma.scale.local import Local, side_by_side
from joma.scale.task import Done, Task
from joma.studies.task import carry_out

GAIN = Claim("gain", "JoMA Fig. 6", "It gains.", matters=0.05, unit="nats")


@dataclass(frozen=True)
class GainConfig(StudyConfig):
    """Seeds of which the first four differ widely, and all that follow agree."""

    seeds: int = 4
    seed: int = 0


@pytest.fixture
def ran(monkeypatch):
    """The seeds of every run, in order; the study that runs them is the only one, and carried out in this process."""
    seen = []

    def run(config, run, progress):
        seen.append(seeds := range(config.seed, config.seed + config.seeds))
        run.keep("gain", lambda: np.array([0.2 + (0.3 if seed < 4 else 0.01) * (-1) ** seed for seed in seeds]))

    judge = lambda run: by_effect(GAIN, compare(run.value("gain"), 0.0), expected="more")
    study = Study("gains", "It gains", 1, {GAIN: judge}, GainConfig(), GainConfig(seeds=5), run, lambda run: [])

    class Here(Local):
        def events(self, function, tasks):
            for task in tasks if self.seconds > 0 else ():
                yield Done(task, carry_out(task.arguments, lambda share, doing: None), 0)

    monkeypatch.setattr(studies, "_rooms", lambda: {"gains": "toys"})
    for place in ("joma.studies.load", "joma.studies.task.load", "joma.cli.minutes.load"):
        monkeypatch.setattr(place, lambda name: study)
    monkeypatch.setattr("joma.cli.minutes.Local", Here)
    return seen


def printed(capsys, *options):
    assert main(["verify", "gains", *map(str, options)]) == 0
    return capsys.readouterr().out


def test_what_the_first_seeds_leave_open_new_ones_decide_and_they_are_found_again(ran, tmp_path, capsys):
    assert "1 undecided" in printed(capsys, "--out", tmp_path)
    out = printed(capsys, "--out", tmp_path, "--minutes", 1000)
    others = ran[1:]
    assert [seeds[0] for seeds in others] == [4]  # from where the first ones ended; of them none is looked at twice
    assert len(others[0]) > 4
    assert "1 claim decided (gains/gain holds)" in out
    again = printed(capsys, "--out", tmp_path, "--minutes", 0)
    assert "1 claim decided" in again
    assert len(ran) == 2
    assert f"gains --seeds {len(others[0])} --seed 4" in (tmp_path / "findings.json").read_text(encoding="utf-8")


def test_without_time_nothing_runs_and_the_next_step_is_named(ran, tmp_path, capsys):
    out = printed(capsys, "--out", tmp_path, "--minutes", 0)
    assert len(ran) == 1
    assert "0 claims decided" in out
    assert "the cheapest to decide next: gains with " in out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--minutes", "-1"], "--minutes must be from 0 to 525,600, got -1"),
        (["--minutes", "nan"], "--minutes must be from 0 to 525,600, got nan"),
        (["--minutes", "1", "--shard", "1/2"], "--minutes are spent on this machine"),
        (["--minutes", "1", "--on", "ray"], "--minutes are spent on this machine"),
    ],
)
def test_minutes_that_cannot_be_spent_are_refused(options, sentence, tmp_path, capsys):
    assert main(["verify", "thm2", "--out", str(tmp_path), *options]) == 2
    assert sentence in capsys.readouterr().err


def test_processes_whose_time_is_over_are_ended_without_a_result():
    events = side_by_side("joma.scale.worker:echo", [Task("one", {"a": 1}), Task("two", {})], jobs=1, seconds=0.0)
    assert list(events) == []
