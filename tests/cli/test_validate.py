"""`joma validate`: what joma writes is valid; what was changed is named in one sentence."""

import json
import shutil
import sqlite3

import numpy as np
import pytest
from kept_records import RECORDS, needs_records

from joma.cli.main import main
from joma.host.schema import faults, load
from joma.runs import Run
from joma.scan.errors import Fault
from joma.scan.names.architecture import Row
from joma.scan.result.curves import Curve, Scan

CURVES = [
    Curve("stable_rank", "mlp", (Row(0, None, "a"), Row(1, 3, "b")), ("stable rank",), np.array([[4.0, np.nan]])),
    Curve("entropy", None, (Row(0, None, "layer 0"),), ("0", "1"), np.ones((1, 1, 2)), heads=True),
]
SCAN = Scan("out", [0], [Fault(10, "step10", None, None, "is cut off")], {one.name: one for one in CURVES}, {0: 1},
            {"coherence": "no embedding"}, ("joined",), {"mlp": (2, 2)}, "llama", ("long",), 128)  # fmt: skip


@needs_records
def test_every_kept_record_is_valid(capsys):
    files = sorted(map(str, RECORDS.glob("*/findings.json")))
    assert main(["validate", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(files)
    assert all(": valid, " in line for line in lines)


def written(place, **changes):
    """The findings of a table, with some keys of the first one changed."""
    place.joinpath("r.csv").write_text(
        "seed,new,old\n" + "".join(f"{at},0.{90 + at % 3},0.{70 + at}\n" for at in range(5))
    )
    file = place / "findings.json"
    assert main(["judge", str(place / "r.csv"), "--effect", "new", "--matters", "5%", "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    for place_of, value in changes.items():
        *way, key = place_of.split("__")
        inside = content["findings"][0]
        for word in way:
            inside = inside[word]
        inside[key] = value
    file.write_text(json.dumps(content))
    return str(file)


def test_what_judge_writes_is_valid(tmp_path, capsys):
    assert main(["validate", written(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("findings.json: valid, 1 finding, version 3\n")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"verdict": "fails"}, "r/claim: its verdict is 'fails', and its numbers give 'holds'"),
        ({"verdict": "true"}, "/findings/0/verdict must be one of 'holds'"),
        ({"fragile": True}, "r/claim: its fragile is True, and its numbers give False"),
        ({"p": 0.5}, "r/claim: its p is 0.5, and its numbers give "),
        ({"effect": 0.95}, "r/claim: its effect is 0.95, and its numbers give "),
        ({"says": "It is worse."}, "r/claim: its provenance is "),
        ({"evidence__printed__effects____difference_interval": [-0.1, 0.3]}, "r/claim: its verdict is 'holds', and"),
        (
            {"evidence__printed__effects____seeds": "5"},
            "/findings/0/evidence/printed/effects//seeds must be an integer",
        ),
        ({"extra": 1}, "/findings/0 has no key 'extra'"),
    ],
)
def test_what_was_changed_is_named(tmp_path, capsys, changes, sentence):
    file = written(tmp_path, **changes)
    capsys.readouterr()
    assert main(["validate", file]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"{file}: {sentence}") for line in lines), lines


def test_a_scan_and_two_compared_ones_are_as_their_schema_says(tmp_path, capsys):
    one = SCAN.as_json() | {"run": "out.sqlite"}
    two = {key: one[key] for key in ("schema", "schema_version", "joma")} | {"scans": [one, one]}
    for content in (one, two):
        (tmp_path / "scan.json").write_text(json.dumps(content))
        assert main(["validate", str(tmp_path / "scan.json")]) == 0
    assert capsys.readouterr().out.endswith("scan.json: valid, a scan, version 2\n")
    one["curves"]["entropy"]["values"][0][0][0] = "high"
    assert list(faults(one, load("scan"))) == ["/curves/entropy/values/0/0/0 must be a number or null, got 'high'"]
    del one["steps"]
    assert "the whole lacks the key 'steps'" in list(faults(one, load("scan")))


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "mine.sqlite", study="mine", config={"lr": 0.1}, seed=3) as made:
        made.append("entropy", 0, [[0.5, 1.5]], dims={"layer": None, "head": ["a", "b"]})
        made.finish()
    return tmp_path / "mine.sqlite"


def test_a_run_is_valid_until_a_number_is_changed(run, capsys):
    assert main(["validate", str(run)]) == 0
    with sqlite3.connect(run) as database:
        database.execute("UPDATE entries SET data = x'00'")
    assert main(["validate", str(run)]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("mine.sqlite: valid, a run")
    assert "entropy" in second


def test_what_a_run_says_of_itself_is_as_its_schema_says(run):
    with Run.open(run) as opened:
        meta = opened.meta()
    assert not list(faults(meta, load("run")))
    assert meta["config"] == {"lr": 0.1}
    assert list(faults(meta | {"status": "done"}, load("run"))) == [
        "/status must be one of 'running', 'finished', 'failed', got 'done'"]  # fmt: skip
    with Run.create(run.with_name("b.sqlite"), study="mine", config={}) as begun:
        assert not list(faults(begun.meta(), load("run")))
        begun.fail("no memory", "line 1")
        assert not list(faults(begun.meta(), load("run")))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "it cannot be read as JSON: "),
        ("[" * 200 + "]" * 200, "it cannot be read as JSON: its lists and mappings lie more than 100 deep"),
        ("[]", "it is neither findings nor a scan"),
        ('{"schema": "joma-run"}', "it is neither findings nor a scan"),
        ('{"schema": "joma-findings", "version": 2}', "it is joma-findings of version 2; the schema is of version 3"),
        ('{"schema": "joma-findings", "version": 3}', "the whole lacks the key 'studies'"),
    ],
)
def test_what_is_no_such_file_is_one_sentence(tmp_path, capsys, text, sentence):
    file = tmp_path / "f.json"
    file.write_text(text)
    assert main(["validate", str(file)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{file}: {sentence}")


def test_many_faults_are_cut_and_a_missing_file_is_bad_input(tmp_path, capsys):
    content = {"schema": "joma-findings", "version": 3, "findings": [{}]}
    (tmp_path / "f.json").write_text(json.dumps(content))
    assert main(["validate", str(tmp_path / "f.json")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 21
    assert lines[-1].endswith(": and more")
    assert main(["validate", str(tmp_path / "f.json"), str(tmp_path / "none")]) == 2
    assert "there is no file" in capsys.readouterr().err


def test_one_invalid_file_among_valid_ones_is_enough(run, tmp_path, capsys):
    (tmp_path / "f.json").write_text("{}")
    assert main(["validate", str(tmp_path / "f.json"), str(run)]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2


@needs_records
def test_the_run_of_a_kept_record_is_valid(tmp_path):
    kept = shutil.copy(RECORDS / "fig6" / "fig6.sqlite", tmp_path)
    assert main(["validate", kept]) == 0
