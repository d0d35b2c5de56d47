"""What is kept under results/ and what the docs say of it: records can be read and judged, tables are theirs."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from joma.claims.execute import judge
from joma.claims.finding import Finding
from joma.runs import Run
from joma.studies import load

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results"


@pytest.mark.parametrize("findings", sorted(RECORDS.glob("*/findings.json")), ids=lambda path: path.parent.name)
def test_a_kept_run_is_judged_as_its_findings_say(findings):
    record = json.loads(findings.read_text(encoding="utf-8"))
    study = load(findings.parent.name)
    with Run.open(findings.with_name(f"{study.name}.sqlite")) as run:
        now = {finding.claim.name: finding.verdict for finding in judge(study, run)}
    assert now == {finding["claim"]: finding["verdict"] for finding in record["findings"]}
    assert len(record["commit"]) == 40


@pytest.mark.parametrize("findings", sorted(RECORDS.glob("*/findings.json")), ids=lambda path: path.parent.name)
def test_every_kept_verdict_follows_from_its_numbers_alone(findings):
    for written in json.loads(findings.read_text(encoding="utf-8"))["findings"]:
        again = Finding.from_json(written)
        assert again.verdict == written["verdict"], written["id"]
        assert again.as_json() == written
        if written["verdict"] != "not run":
            assert (written["effect"] is not None) == written["empirical"]
            assert written["provenance"]["commit"]


def test_what_a_report_shows_of_paper_scale_is_what_is_kept():
    kept = runpy.run_path(str(RECORDS / "keep.py"))["kept"]()
    assert json.loads((ROOT / "src/joma/report/kept.json").read_text(encoding="utf-8")) == kept
    assert len(kept["findings"]) > 70


def test_the_table_of_ablations_is_that_of_the_records(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", str(RECORDS), str(tmp_path / "ablations.png")])
    runpy.run_path(str(ROOT / "docs" / "ablation_summary.py"), run_name="__main__")
    assert capsys.readouterr().out in (ROOT / "docs" / "ablations.md").read_text(encoding="utf-8")
    assert (tmp_path / "ablations.png").stat().st_size > 10_000


def test_the_table_of_table_1_is_that_of_its_record(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", str(RECORDS / "table1" / "table1.sqlite")])
    runpy.run_path(str(ROOT / "docs" / "table1_table.py"), run_name="__main__")
    assert capsys.readouterr().out in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_the_table_of_figure_6_is_that_of_its_record(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", str(RECORDS / "fig6" / "fig6.sqlite")])
    runpy.run_path(str(ROOT / "docs" / "figure6_table.py"), run_name="__main__")
    assert capsys.readouterr().out in (ROOT / "docs" / "language-models.md").read_text(encoding="utf-8")
