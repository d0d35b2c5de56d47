"""`joma show`, `joma verify --claims` and what a bug looks like: on the toy, whose number is 1 if all is well."""

import json
import zipfile

import pytest

from joma import studies
from joma.cli.main import main


@pytest.fixture
def stored(toy, monkeypatch, tmp_path, capsys):
    """A folder that `joma verify` wrote."""
    study, _ = toy
    real, rooms = studies.load, {**studies._rooms(), "toy": "toys"}
    monkeypatch.setattr(studies, "_rooms", lambda: rooms)
    monkeypatch.setattr(studies, "load", lambda name: study if name == "toy" else real(name))
    monkeypatch.setattr("joma.studies.stored.load", studies.load)
    assert main(["verify", "toy", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    return tmp_path


def test_one_finding_is_printed_verdict_first(stored, capsys):
    assert main(["show", "toy/all-ones", "--out", str(stored)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "toy/all-ones: holds"
    assert lines[1] == "claim      Every entry is 1. (JoMA Thm 1)"
    assert "repeat     joma verify toy" in lines
    assert any(line.startswith("record     toy-") for line in lines)


def test_as_json_it_is_the_finding_of_the_file(stored, capsys):
    assert main(["show", "toy/all-ones", "--out", str(stored), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((stored / "findings.json").read_text())["studies"][0]["findings"][0]


def test_a_study_alone_names_its_claims(stored, capsys):
    assert main(["show", "toy", "--out", str(stored)]) == 0
    assert capsys.readouterr().out == "toy/all-ones\n"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("toy/al-ones", "joma: toy has no claim called 'al-ones'; did you mean toy/all-ones?\n"),
        ("toyy/all-ones", "joma: no study is called 'toyy'; did you mean 'toy'?\n"),
    ],
)
def test_a_misspelt_id_gets_a_suggestion(stored, capsys, name, sentence):
    assert main(["show", name, "--out", str(stored)]) == 2
    assert capsys.readouterr().err == sentence


def test_what_was_not_judged_yet_says_how(stored, capsys, tmp_path):
    assert main(["show", "toy/all-ones", "--out", str(tmp_path / "none")]) == 2
    said = f"joma: {tmp_path / 'none'} has no finding toy/all-ones; `joma verify toy` makes it\n"
    assert capsys.readouterr().err == said


def test_a_damaged_file_is_one_sentence(stored, capsys):
    (stored / "findings.json").write_text("{")
    assert main(["show", "toy/all-ones", "--out", str(stored)]) == 2
    assert capsys.readouterr().err.startswith(f"joma: {stored / 'findings.json'} cannot be read as findings: ")


def test_claims_are_chosen_by_verdict(stored, capsys):
    assert main(["verify", "toy", "--claims", "holds", "--out", str(stored)]) == 0
    assert "toy/all-ones" in capsys.readouterr().out
    assert main(["verify", "toy", "--claims", "fails,undecided", "--out", str(stored)]) == 0
    assert "toy/all-ones" not in capsys.readouterr().out
    assert main(["verify", "toy", "--claims", "wrong", "--out", str(stored)]) == 2
    assert "a verdict is one of holds" in capsys.readouterr().err


def test_a_bug_is_not_called_bad_input(monkeypatch, capsys):
    def bug(*_):
        raise ValueError("an index is wrong")

    monkeypatch.setattr("joma.cli.listing._list", bug)
    monkeypatch.delenv("JOMA_TRACEBACK", raising=False)
    assert main(["list"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("joma: a fault of joma, not of your input: ValueError: an index is wrong;")
    assert said.count("\n") == 1
    monkeypatch.setenv("JOMA_TRACEBACK", "1")
    assert main(["list"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_record_as_a_crate_holds_run_findings_and_figures(stored, capsys):
    run = next((stored / "runs").glob("toy-*.sqlite"))
    assert main(["export", str(run), "--to", "ro-crate"]) == 0
    path = capsys.readouterr().out.strip()
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        about = json.loads(archive.read("ro-crate-metadata.json"))
        findings = json.loads(archive.read("findings.json"))
    assert {run.name, "findings.json", "ro-crate-metadata.json", "figures/toy.svg"} == names
    graph = {entry["@id"]: entry for entry in about["@graph"]}
    assert graph["ro-crate-metadata.json"]["about"] == {"@id": "./"}
    assert {part["@id"] for part in graph["./"]["hasPart"]} == names - {"ro-crate-metadata.json"}
    assert all(part["@id"] in graph for part in graph["./"]["hasPart"])
    assert graph["#run"]["name"] == "joma verify toy"
    assert findings["studies"][0]["findings"][0]["id"] == "toy/all-ones"


def test_a_crate_of_something_else_is_one_sentence(stored, capsys, tmp_path):
    from joma.runs import Run

    with Run.create(tmp_path / "other.sqlite", study="scan", config={}) as run:
        run.append("x", 0, 1.0)
    assert main(["export", str(tmp_path / "other.sqlite"), "--to", "ro-crate"]) == 2
    assert "is a run of 'scan', and no study of that name can judge it" in capsys.readouterr().err
    run = next((stored / "runs").glob("toy-*.sqlite"))
    assert main(["export", str(run), "--to", "ro-crate", "--out", str(tmp_path)]) == 2
    assert "is no plain file" in capsys.readouterr().err


def test_the_trace_of_a_broken_study_is_kept_in_its_run(stored, capsys):
    from dataclasses import replace

    from joma.claims.execute import attempt
    from joma.runs import Run

    study = studies.load("toy")
    config = replace(study.quick, fail_at="second")
    assert attempt(study, config, stored, alone=True).error == "RuntimeError: boom"
    failed = [path for path in (stored / "runs").glob("toy-*.sqlite") if _status(path) == "failed"]
    with Run.open(failed[0]) as run:
        assert run.reason == "RuntimeError: boom"
        assert "raise" in run.trace
        assert "in one" in run.trace


def _status(path):
    from joma.runs import Run

    with Run.open(path) as run:
        return run.status
