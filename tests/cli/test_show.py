"""`joma show`, `joma verify --claims` and what a bug looks like: on the toy, whose number is 1 if all is well."""

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import pytest

from joma import studies
from joma.claims.finding import Finding
from joma.cli.main import main

ROOT = Path(__file__).parents[2]


def test_one_finding_is_printed_verdict_first(stored_toy, capsys):
    assert main(["show", "toy/all-ones", "--out", str(stored_toy)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "toy/all-ones: holds"
    assert lines[1] == "claim      Every entry is 1. (JoMA Thm 1)"
    assert "repeat     joma verify toy" in lines
    assert any(line.startswith("record     toy-") for line in lines)


def test_as_json_it_is_the_finding_of_the_file(stored_toy, capsys):
    assert main(["show", "toy/all-ones", "--out", str(stored_toy), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((stored_toy / "findings.json").read_text())["studies"][0]["findings"][0]


def test_a_study_alone_lists_its_claims_with_their_verdicts(stored_toy, capsys, tmp_path, monkeypatch):
    assert main(["show", "toy", "--out", str(stored_toy)]) == 0
    first, numbers = capsys.readouterr().out.splitlines()
    assert first == "toy/all-ones: holds"
    assert numbers.startswith("    ")
    assert main(["show", "toy", "--out", str(stored_toy), "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["verdict"] == "holds"
    (tmp_path / "none").mkdir()
    assert main(["show", "toy", "--out", str(tmp_path / "none")]) == 0
    captured = capsys.readouterr()
    assert captured.out == "toy/all-ones\n"
    assert "`joma verify toy --out" in captured.err
    monkeypatch.setattr(Finding, "brief", "")  # as of records that have no such line
    assert main(["show", "toy", "--out", str(stored_toy)]) == 0
    assert capsys.readouterr().out == "toy/all-ones: holds\n"


@pytest.mark.parametrize("place", ["results", "results/fig6", "results/fig6/findings.json"])
def test_kept_records_are_read_as_findings_are(place, capsys):
    assert main(["show", "fig6/fig6-one-layer", "--out", str(ROOT / place)]) == 0
    record = json.loads((ROOT / "results/fig6/findings.json").read_text(encoding="utf-8"))
    (written,) = [one for one in record["findings"] if one["claim"] == "fig6-one-layer"]
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], written["remarks"]) == ("fig6/fig6-one-layer: holds (size shown)", ["size shown"])
    assert f"measured   {written['measured']}" in lines
    assert f"commit     {record['commit']}" in lines
    assert main(["show", "fig6/fig6-one-layer", "--out", str(ROOT / place), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == written


def test_a_record_of_another_study_has_no_such_finding(capsys):
    assert main(["show", "thm2/who-wins", "--out", str(ROOT / "results/fig6")]) == 2
    said = capsys.readouterr().err
    assert "has no finding thm2/who-wins; `joma verify thm2 --out" in said
    assert "`joma show thm2/who-wins --scale paper` needs no run" in said


def test_paper_scale_comes_with_joma_and_needs_no_run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    record = json.loads((ROOT / "results/fig6/findings.json").read_text(encoding="utf-8"))
    assert main(["show", "fig6", "--scale", "paper"]) == 0
    listed = capsys.readouterr().out.splitlines()
    for written in record["findings"]:
        remarks = f" ({', '.join(written['remarks'])})" if written["remarks"] else ""
        assert f"{written['id']}: {written['verdict']}{remarks} at paper scale" in listed
        assert main(["show", written["id"], "--scale", "paper"]) == 0
        shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
        assert shown["claim"] == f"{written['says']} ({written['source']})"
        assert shown["expected"] == written["expected"]
        assert shown["measured"] == written["measured"]
        assert shown.get("control") == written["control"]
        assert shown["repeat"] == written["command"]
        assert shown["commit"] == record["commit"]
    assert main(["show", "fig6/fig6-one-layer", "--scale", "paper", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (written,) = [one for one in record["findings"] if one["claim"] == "fig6-one-layer"]
    assert 0 < shown.pop("q") < 0.01, "of all claims at paper scale together, so no record of one study has it"
    assert shown == {name: written[name] for name in shown}
    assert {"says", "expected", "verdict", "measured", "control", "command", "provenance"} <= set(shown)


def _no_json(word):
    raise AssertionError(f"{word} is no JSON")


@pytest.mark.parametrize("study", sorted(path.parent.name for path in ROOT.glob("results/*/findings.json")))
def test_as_json_all_of_paper_scale_is_as_its_record_has_it(study, capsys):
    """Numbers that are not finite too: JSON has no word for them. Sentences with an interval that is cut say so.

    A record alone has no q, and does not say who shares a control: that is of all claims together.
    """
    record = json.loads((ROOT / "results" / study / "findings.json").read_text(encoding="utf-8"))
    assert main(["show", study, "--scale", "paper", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out, parse_constant=_no_json)["findings"]
    written = {one["id"]: one for one in record["findings"]}
    assert {one["id"] for one in shown} == set(written)
    for one in shown:
        same = [name for name in one if name not in ("measured", "control") or "(cut)" not in str(one[name])]
        one["remarks"] = [remark for remark in one["remarks"] if not remark.startswith("q ")]
        same = [name for name in same if name not in ("q", "shares_control")]
        assert (one["q"] is None) == (written[one["id"]]["p"] is None)
        assert {name: one[name] for name in same} == {name: written[one["id"]][name] for name in same}


def test_paper_scale_reads_as_its_record_does(capsys):
    """Of a probability, the interval of the control is cut at 0 as that of the effect is at 100 %."""
    shown = []
    for place in (["--scale", "paper"], ["--out", str(ROOT / "results")]):
        assert main(["show", "reversal-decoder/reverse-no-better-than-uniform", *place]) == 0
        lines = capsys.readouterr().out.splitlines()
        shown.append([line for line in lines if line.startswith(("measured", "control"))])
    assert shown[0] == shown[1]
    assert shown[0][1].endswith("2 % [0 (cut), 8] at 99 %")


def test_what_is_not_kept_at_paper_scale_says_so(stored_toy, capsys):
    assert main(["show", "toy/all-ones", "--scale", "paper"]) == 2
    assert capsys.readouterr().err == (
        "joma: there is no finding toy/all-ones at paper scale; `joma verify toy --scale paper` makes it\n"
    )
    with pytest.raises(SystemExit):
        main(["show", "toy/all-ones", "--scale", "paper", "--out", str(stored_toy)])
    assert capsys.readouterr().err.count("\n") == 1


def test_lines_are_whole_in_a_pipe_and_wrapped_between_words_in_a_window(capsys, monkeypatch):
    shown = ["show", "fig6/fig6-one-layer", "--scale", "paper"]
    for command in (shown, ["list"], ["list", "fig6", "-v"]):
        with monkeypatch.context() as now:
            now.setenv("COLUMNS", "60")  # readline sets it in whatever it is imported into
            assert main(command) == 0
            whole = capsys.readouterr().out
            now.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            assert main(command) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, whole.splitlines())) > 60
        assert all(len(line) <= 60 for line in lines if not line.startswith(("repeat", "record", "  fig6/")))
        assert " ".join(" ".join(lines).split()) == " ".join(whole.split())
        if command is shown:
            assert any(line.startswith(" " * 11) and line[11] != " " for line in lines)
            assert any("[0.33, 0.67]" in line for line in lines)  # an interval is not broken


def test_a_misspelt_id_gets_a_suggestion(stored_toy, capsys):
    assert main(["show", "toy/al-ones", "--out", str(stored_toy)]) == 2
    assert capsys.readouterr().err == "joma: toy has no claim called 'al-ones'; did you mean 'toy/all-ones'?\n"


def test_what_was_not_judged_yet_says_how(stored_toy, capsys, tmp_path):
    (tmp_path / "none").mkdir()
    assert main(["show", "toy/all-ones", "--out", str(tmp_path / "none")]) == 2
    said = (
        f"joma: {tmp_path / 'none'} has no finding toy/all-ones; `joma verify toy --out {tmp_path / 'none'}` makes it\n"
    )
    assert capsys.readouterr().err == said


def test_a_damaged_file_is_one_sentence(stored_toy, capsys):
    (stored_toy / "findings.json").write_text("{")
    assert main(["show", "toy/all-ones", "--out", str(stored_toy)]) == 2
    assert capsys.readouterr().err.startswith(f"joma: {stored_toy / 'findings.json'} cannot be read as findings: ")


def test_claims_are_chosen_by_verdict(stored_toy, capsys):
    assert main(["verify", "toy", "--claims", "holds", "--out", str(stored_toy)]) == 0
    assert "toy/all-ones" in capsys.readouterr().out
    assert main(["verify", "toy", "--claims", "fails,undecided", "--out", str(stored_toy)]) == 0
    assert "toy/all-ones" not in capsys.readouterr().out
    assert main(["verify", "toy", "--claims", "wrong", "--out", str(stored_toy)]) == 2
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


def test_a_record_as_a_crate_holds_run_findings_and_figures(stored_toy, capsys):
    pytest.importorskip("matplotlib")
    run = next((stored_toy / "runs").glob("toy-*.sqlite"))
    assert main(["export", str(run), "--to", "ro-crate"]) == 0
    path = capsys.readouterr().out.strip()
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        about = json.loads(archive.read("ro-crate-metadata.json"))
        findings = json.loads(archive.read("findings.json"))
        table, described = archive.read("claims.csv"), json.loads(archive.read("croissant.json"))
    tables = {"findings.json", "claims.csv", "croissant.json"}
    assert {run.name, *tables, "ro-crate-metadata.json", "figures/toy.svg"} == names
    assert described["distribution"][0]["sha256"] == hashlib.sha256(table).hexdigest()
    graph = {entry["@id"]: entry for entry in about["@graph"]}
    assert graph["ro-crate-metadata.json"]["about"] == {"@id": "./"}
    assert {part["@id"] for part in graph["./"]["hasPart"]} == names - {"ro-crate-metadata.json"}
    assert all(part["@id"] in graph for part in graph["./"]["hasPart"])
    assert described["license"] == graph["./"]["license"]["@id"]
    assert graph["#run"]["name"] == "joma verify toy"
    assert findings["studies"][0]["findings"][0]["id"] == "toy/all-ones"


def test_a_crate_of_something_else_is_one_sentence(stored_toy, capsys, tmp_path):
    from joma.runs import Run

    with Run.create(tmp_path / "other.sqlite", study="scan", config={}) as run:
        run.append("x", 0, 1.0)
    assert main(["export", str(tmp_path / "other.sqlite"), "--to", "ro-crate"]) == 2
    assert "is a run of 'scan', which is not a study of joma's own" in capsys.readouterr().err
    run = next((stored_toy / "runs").glob("toy-*.sqlite"))
    assert main(["export", str(run), "--to", "ro-crate", "--out", str(tmp_path)]) == 2
    assert "out must be a file" in capsys.readouterr().err


def test_the_trace_of_a_broken_study_is_kept_in_its_run(stored_toy, capsys):
    from dataclasses import replace

    from joma.claims.execute import attempt
    from joma.runs import Run

    study = studies.load("toy")
    config = replace(study.quick, fail_at="second")
    assert attempt(study, config, stored_toy, alone=True).error == "RuntimeError: boom"
    failed = [path for path in (stored_toy / "runs").glob("toy-*.sqlite") if _status(path) == "failed"]
    with Run.open(failed[0]) as run:
        assert run.reason == "RuntimeError: boom"
        assert "raise" in run.trace
        assert "in one" in run.trace


def _status(path):
    from joma.runs import Run

    with Run.open(path) as run:
        return run.status


def test_an_empirical_claim_has_its_q_and_a_mathematical_one_its_tolerance(capsys):
    for claim, there, away in (("fig6/fig6-one-layer", "q", "tolerance"), ("thm2/closed-form", "tolerance", "q")):
        assert main(["show", claim, "--scale", "paper"]) == 0
        lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
        kept = json.loads((ROOT / "src/joma/report/claims/kept.json").read_text(encoding="utf-8"))["findings"][claim]
        assert float(lines[there]) == pytest.approx(kept[there], rel=0.05)
        assert away not in lines


def test_claims_beside_the_same_control_are_named(capsys):
    assert main(["show", "galore-table/full-rank-is-best", "--scale", "paper"]) == 0
    assert "same for   galore-table/factors-are-worst" in capsys.readouterr().out.splitlines()
    assert main(["show", "galore-table/full-rank-is-best", "--scale", "paper", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shares_control"] == ["galore-table/factors-are-worst"]
    assert main(["show", "fig6/fig6-one-layer", "--scale", "paper"]) == 0
    assert "same for" not in capsys.readouterr().out
