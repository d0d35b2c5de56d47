"""What is kept under results/ and what the docs say of it: records can be read and judged, tables are theirs."""

import json
import runpy
import shutil
from pathlib import Path

import pytest
from kept_records import RECORDS, differences, needs_records

from joma.claims.execute import judge, plain_config
from joma.claims.finding import Finding
from joma.runs import Run
from joma.studies import load

ROOT = Path(__file__).parents[1]
KEPT = "src/joma/report/claims"
RAISED = {"fig8": (2, 3), "table1": (1, 2)}
"""Studies that changed after their record was kept: its version, and that of today."""


@pytest.mark.parametrize("kept", sorted(RECORDS.glob("*/*.sqlite")), ids=lambda path: path.stem)
def test_a_kept_run_is_judged_as_its_findings_say(kept):
    """Every verdict, number and sentence; only provenance, which names a machine, may differ."""
    record = json.loads(kept.with_name("findings.json").read_text(encoding="utf-8"))
    study = load(kept.stem)
    with Run.open(kept) as run:
        now = {finding.claim.name: json.loads(json.dumps(finding.as_json())) for finding in judge(study, run)}
    assert now.keys() == {finding["claim"] for finding in record["findings"]}
    for finding in record["findings"]:
        differ = [one for one in differences(now[finding["claim"]], finding) if not one.startswith("/provenance")]
        assert not differ, f"{finding['id']}: {differ[:5]}"
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


@pytest.mark.parametrize("findings", sorted(RECORDS.glob("*/findings.json")), ids=lambda path: path.parent.name)
def test_the_paper_preset_and_the_version_of_a_study_are_those_of_its_record(findings):
    """They define what was found: who changes one runs the study again."""
    record = json.loads(findings.read_text(encoding="utf-8"))
    study = load(record["study"])
    assert json.loads(json.dumps(plain_config(study.paper))) == record["config"]
    for finding in record["findings"]:
        kept = finding["provenance"]["study_version"]
        assert (kept, study.version) == RAISED.get(study.name, (kept, kept))


@needs_records
def test_what_a_report_shows_of_paper_scale_is_what_is_kept():
    kept = runpy.run_path(str(RECORDS / "keep.py"))["kept"]()
    assert json.loads((ROOT / KEPT / "kept.json").read_text(encoding="utf-8")) == kept
    assert len(kept["findings"]) > 70


@needs_records
def test_a_record_without_its_run_is_judged_from_its_numbers(tmp_path):
    """With the verdict of other rules and without a key that came later, as an older record has them."""
    record = json.loads((RECORDS / "thm2/findings.json").read_text(encoding="utf-8"))
    older = json.loads(json.dumps(record))
    older["findings"][0] |= {"verdict": "fails", "remarks": ["fragile"]}
    del older["findings"][1]["shares_control"]
    (tmp_path / "findings.json").write_text(json.dumps(older), encoding="utf-8")
    runpy.run_path(str(RECORDS / "keep.py"))["judge_again"](tmp_path / "findings.json")
    assert json.loads((tmp_path / "findings.json").read_text(encoding="utf-8")) == record


@pytest.mark.long
@needs_records
def test_keeping_one_record_again_leaves_the_panels_of_the_others_and_its_commit(tmp_path, monkeypatch):
    """On a copy: what is under results/ is not touched."""
    results, report = tmp_path / "results", tmp_path / KEPT
    report.mkdir(parents=True)
    shutil.copy(ROOT / KEPT / "panels.json", report)
    for path in RECORDS.glob("*/findings.json"):
        (results / path.parent.name).mkdir(parents=True)
        shutil.copy(path, results / path.parent.name)
    run = Path(shutil.copy(RECORDS / "nonlinearity/nonlinearity.sqlite", results / "nonlinearity"))
    shutil.copy(RECORDS / "keep.py", results)
    monkeypatch.setattr("sys.argv", ["keep.py", str(run)])
    runpy.run_path(str(results / "keep.py"), run_name="__main__")
    old, new = (json.loads((root / KEPT / "panels.json").read_text("utf-8")) for root in (ROOT, tmp_path))
    assert new == old
    old, new = (
        json.loads((root / "results/nonlinearity/findings.json").read_text("utf-8")) for root in (ROOT, tmp_path)
    )
    assert new["commit"] == old["commit"]
    assert {one["provenance"]["commit"] for one in new["findings"]} == {old["commit"]}
    kept = json.loads((report / "kept.json").read_text("utf-8"))
    assert list(kept["findings"]) == list(json.loads((ROOT / KEPT / "kept.json").read_text("utf-8"))["findings"])
