"""Scans on the page, from runs as `joma scan` writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from joma.claims.execute import Result
from joma.report import read_scan, scan_runs, write_report
from joma.runs import Run

STEPS = (0, 100, 200)


@pytest.fixture
def scanned(tmp_path: Path) -> Path:
    """A scan of three checkpoints with two layers."""
    path = tmp_path / "runs" / "scan-tiny-0123456789.sqlite"
    path.parent.mkdir()
    groups = {"mlp": ["h.0.w", "h.1.w"], "embedding": ["wte"]}
    config = {"source": "owner/<tiny>", "model_type": "gpt2", "groups": groups}
    with Run.create(path, study="scan", config=config, version=1) as run:
        for step in STEPS:
            run.record(
                step,
                {
                    "stable_rank/mlp": np.array([4.0 + step / 100, 9.0 - step / 100]),
                    "coherence/embedding": np.array([[0.25, 0.1, 0.9]]),
                    "entropy": np.array([[1.0, 3.0], [2.0, np.nan]]),
                    "sketch/mlp": np.zeros((2, 8)),
                    "checksum/mlp": np.zeros(2),
                    "identity": 7,
                },
            )
    return path


def test_a_scan_is_read_from_its_run(scanned: Path) -> None:
    assert scan_runs(scanned.parents[1]) == [scanned]
    scan = read_scan(scanned)
    assert scan.error is None
    assert scan.steps == list(STEPS)
    curves = {curve.name: curve for curve in scan.curves}
    assert set(curves) == {"stable_rank/mlp", "coherence/embedding", "entropy"}
    assert curves["stable_rank/mlp"].rows == ["layer 1", "layer 2"]
    assert curves["stable_rank/mlp"].values[:, 0].tolist() == [4, 5, 6]
    assert curves["entropy"].values[0].tolist() == [2, 2]  # mean over the heads that a layer has
    assert curves["coherence/embedding"].values[0].tolist() == [0.25]
    assert scan.command == "joma scan 'owner/<tiny>' --measures stable_rank,coherence,entropy"


def test_the_figure_says_what_is_seen(scanned: Path) -> None:
    (picture,) = read_scan(scanned).pictures
    assert "stable rank, mlp: layer 1 goes from 4 at step 0 to 6 at step 200; layer 2 goes from 9" in picture.alt
    assert 'aria-label="One panel per measure.' in picture.svg


def test_the_page_shows_scans_beside_studies(results: list[Result], scanned: Path, tmp_path: Path) -> None:
    html = write_report(results, tmp_path, scale="quick", scans=[scanned]).read_text(encoding="utf-8")
    section = html[html.index('<section id="scans"') : html.index('<section id="claims"')]
    assert "<h3>owner/&lt;tiny&gt;</h3>" in section
    assert "3 checkpoints, from step 0 to 200." in section
    assert section.count("<svg") == 1
    assert scanned.name in section
    assert '<a href="#scans">Scans</a>' in html
    assert (
        "scans" not in write_report(results, tmp_path, scale="quick").read_text(encoding="utf-8").split("</style>")[1]
    )


def test_scans_alone_make_a_page(scanned: Path, tmp_path: Path) -> None:
    html = write_report([], tmp_path, scale="quick", scans=[scanned]).read_text(encoding="utf-8")
    assert "1 series of checkpoints was measured" in html


def test_one_checkpoint_is_one(scanned: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.sqlite"
    with Run.create(path, study="scan", config={"source": "one", "groups": {"mlp": ["w"]}}) as run:
        run.record(1000, {"stable_rank/mlp": np.array([4.0])})
    html = write_report([], tmp_path, scale="quick", scans=[path]).read_text(encoding="utf-8")
    assert "1 checkpoint, at step 1,000." in html


@pytest.mark.parametrize("damage", ["cut", "text", "gone", "other", "empty", "groups"])
def test_a_damaged_scan_costs_one_sentence(damage: str, results: list[Result], scanned: Path, tmp_path: Path) -> None:
    if damage == "cut":
        scanned.write_bytes(scanned.read_bytes()[:3000])
    elif damage == "text":
        scanned.write_text("no database")
    else:
        scanned.unlink()
    made = {
        "other": {"study": "thm2", "config": {}},
        "empty": {"study": "scan", "config": {"source": "a", "groups": {}}},
        "groups": {"study": "scan", "config": {"source": "a"}},
    }
    if damage in made:
        with Run.create(scanned, **made[damage]) as run:  # type: ignore[arg-type]
            if damage == "groups":
                run.record(0, {"stable_rank/mlp": np.array([1.0])})
    html = write_report(results, tmp_path, scale="quick", scans=[scanned]).read_text(encoding="utf-8")
    assert html.count("This scan cannot be shown: ") == 1
    assert "Ten comes after two." in html
    if damage == "groups":
        assert f"{scanned.name} is not a run as joma scan writes it" in html


def test_without_matplotlib_a_scan_has_no_figure(scanned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joma.report.scans.find_spec", lambda name: None)
    assert read_scan(scanned).pictures == ()
