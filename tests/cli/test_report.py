"""`joma report` and `joma export`: pages and tables of runs that are there."""

import json
import re
import shlex
from dataclasses import replace
from html import escape

import pytest
import torch
from safetensors.torch import save_file

from joma import studies
from joma.cli.main import main
from joma.runs import Run, export


def test_report_judges_stored_runs_again_and_rewrites_report_and_findings(stored_toy, capsys):
    wanted = json.loads((stored_toy / "findings.json").read_text())
    (stored_toy / "findings.json").write_text("")  # as a full disk leaves it; another file would not be replaced
    (stored_toy / "report.html").unlink()
    assert main(["report", str(stored_toy)]) == 0
    assert re.match(r"1/1  toy +cached  1 holds\nreport: ", capsys.readouterr().out)
    assert json.loads((stored_toy / "findings.json").read_text()) == wanted
    assert (stored_toy / "report.html").exists()


def test_findings_know_their_q_before_they_are_written(stored_toy, monkeypatch):
    """Of `joma report`, and of `joma verify`; the q itself is tested with the ledger."""

    def marked(results):
        return [replace(one, findings=[replace(each, q=0.25) for each in one.findings]) for one in results]

    monkeypatch.setattr("joma.claims.ledger.with_q", marked)
    for command in (["report", str(stored_toy)], ["verify", "toy", "--out", str(stored_toy)]):
        (stored_toy / "findings.json").unlink()
        assert main(command) == 0
        (study,) = json.loads((stored_toy / "findings.json").read_text())["studies"]
        assert [one["q"] for one in study["findings"]] == [0.25]


def test_report_of_kept_records_shows_those_alone_and_can_go_elsewhere(with_toy, tmp_path, monkeypatch):
    monkeypatch.setattr("joma.studies.stored.load", studies.load)
    assert main(["run", "toy", "--out", str(tmp_path)]) == 0
    (kept,) = (tmp_path / "runs").glob("*.sqlite")
    records = tmp_path / "records" / "toy"
    records.mkdir(parents=True)
    kept.rename(records / "toy.sqlite")
    assert main(["report", str(records.parent), "--out", str(tmp_path / "page")]) == 0
    findings = json.loads((tmp_path / "page" / "findings.json").read_text())
    assert [study["name"] for study in findings["studies"]] == ["toy"]
    assert (tmp_path / "page" / "report.html").exists()
    assert [path.name for path in records.parent.iterdir()] == ["toy"]


def test_a_page_of_stored_runs_says_how_it_was_made(stored_toy, tmp_path):
    page = tmp_path / "a page"
    assert main(["report", str(stored_toy), "--out", str(page)]) == 0
    assert f"<code>joma report {stored_toy} --out {escape(shlex.quote(str(page)))}</code>" in _footer(page)
    assert main(["report", str(stored_toy)]) == 0
    assert f"<code>joma report {stored_toy}</code>" in _footer(stored_toy)


def test_a_page_of_one_run_lies_beside_it(stored_toy):
    (kept,) = (stored_toy / "runs").glob("*.sqlite")
    assert main(["report", str(kept)]) == 0
    assert (kept.parent / "report.html").exists()


def _footer(folder):
    return (folder / "report.html").read_text(encoding="utf-8").partition("<footer")[2]


def test_report_with_a_damaged_run_is_written_and_says_that_something_broke(stored_toy, capsys):
    (damaged,) = stored_toy.glob("runs/toy-*.sqlite")
    damaged.write_bytes(damaged.read_bytes()[:2000])
    assert main(["report", str(stored_toy)]) == 1
    out = capsys.readouterr().out
    assert "broke: " in out
    assert f"report: {stored_toy / 'report.html'}\n" in out
    assert "This study broke: " in (stored_toy / "report.html").read_text(encoding="utf-8")


def test_report_without_a_finished_run_is_refused_and_the_earlier_page_stays(stored_toy, capsys):
    (finished,) = stored_toy.glob("runs/toy-*.sqlite")
    finished.unlink()
    with Run.create(finished, study="toy", config={}, version=1):
        pass
    (stored_toy / "report.html").write_text("earlier")
    assert main(["report", str(stored_toy)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"joma: {stored_toy} holds no finished run ")
    assert f"`joma verify --out {stored_toy}` makes them" in captured.err
    assert captured.err.count("\n") == 1
    assert (stored_toy / "report.html").read_text() == "earlier"


def test_several_runs_are_exported_each_beside_itself(tmp_path, capsys):
    paths = [tmp_path / f"{name}.sqlite" for name in ("a", "b", "c", "d")]
    for path in (paths[0], paths[2]):
        with Run.create(path, study="demo", config={}) as run:
            run.append("v", 0, 1.5)
    for path in (paths[1], paths[3]):
        path.write_text("no run")
    assert main(["export", *map(str, paths), "--to", "csv"]) == 2
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [str(tmp_path / "a.csv"), str(tmp_path / "c.csv")]
    assert [line.split()[:2] for line in captured.err.splitlines()] == [["joma:", str(paths[n])] for n in (1, 3)]
    assert (tmp_path / "c.csv").read_text() == export(paths[2], "csv", tmp_path / "alone").read_text()
    assert main(["export", str(paths[0]), str(paths[2]), "--to", "csv", "--out", str(tmp_path / "x")]) == 2
    assert "--out names one file, but there are 2 runs" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.fixture
def scanned(tmp_path, capsys):
    for step in (100, 200):
        folder = tmp_path / "training" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        weight = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        save_file({"model.layers.0.mlp.up_proj.weight": weight}, folder / "model.safetensors")
    assert main(["scan", str(tmp_path / "training"), "--out", str(tmp_path / "out")]) == 0
    assert "2 checkpoints" in capsys.readouterr().out
    return tmp_path / "out"


@pytest.mark.long
def test_scans_have_their_section_beside_studies_and_alone(scanned, capsys):
    assert main(["report", str(scanned)]) == 0
    assert "training" in (scanned / "report.html").read_text()
    assert not (scanned / "findings.json").exists()
    assert main(["verify", "lemma6", "--out", str(scanned)]) == 0
    page = (scanned / "report.html").read_text()
    assert "joma scan" in page
    assert "lemma6/lemma-7" in page
