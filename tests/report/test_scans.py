"""Scans on a page, from runs as `joma scan` writes them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from joma.claims.execute import Result
from joma.report import read_scan, scan_runs, show_scan, write_comparison, write_report, write_scan_page
from joma.report.scans import page
from joma.report.scans.shown import ShownScan
from joma.runs import Run, RunError
from joma.scan import Fault
from joma.scan.sweep.record import remember, stored_scan

STEPS = (0, 100, 200)
GROUPS = {"mlp": ["h.0.w", "h.1.w"], "embedding": ["wte"]}


def record(path: Path, version: int = 1, without: tuple[str, ...] = (), **more: np.ndarray) -> Path:
    """A scan of three checkpoints with two layers. without: what was not measured, and need not be drawn."""
    path.parent.mkdir(exist_ok=True)
    config = {"source": "owner/<tiny>", "model_type": "gpt2", "groups": GROUPS}
    with Run.create(path, study="scan", config=config, version=version) as run:
        for step in STEPS:
            measured = {
                "stable_rank/mlp": np.array([4.0 + step / 100, 9.0 - step / 100]),
                "coherence/embedding": np.array([[0.25, 0.1, 0.9]]),
                "entropy": np.array([[1.0, 3.0], [2.0, np.nan]]),
                "sketch/mlp": np.zeros((2, 8)),
                "checksum/mlp": np.zeros(2),
                "identity": 7,
                **more,
            }
            run.record(step, {name: value for name, value in measured.items() if name not in without})
    return path


@pytest.fixture
def scanned(tmp_path: Path) -> Path:
    return record(tmp_path / "runs" / "scan-tiny-0123456789.sqlite")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> ShownScan:
    return read_scan(record(tmp_path_factory.mktemp("shown") / "runs" / "scan-tiny-0123456789.sqlite"))


@pytest.fixture
def told(scanned: Path) -> Path:
    with Run.open(scanned, write=True) as run:
        found = stored_scan(run)
        faults = [
            Fault(100, "step100", "a.bin", "h.0.w", "is <cut> off"),
            Fault(200, "step200", None, None, "NaN", "entropy"),
        ]
        more = {"refused": {"alpha": "needs more"}, "notes": ("EMA left aside",), "coverage": {"mlp": (2, 3)}}
        remember(run, dataclasses.replace(found, faults=faults, **more), STEPS)
    return scanned


def test_a_scan_is_read_from_its_run(scanned: Path, shown: ShownScan) -> None:
    assert scan_runs(scanned.parents[1]) == [scanned]
    assert shown.error is None
    assert shown.found is not None
    assert shown.found.steps == list(STEPS)
    curves = shown.found.curves
    assert set(curves) == {"stable_rank/mlp", "coherence/embedding", "entropy"}
    assert [row.label for row in curves["stable_rank/mlp"].rows] == ["layer 0", "layer 1"]
    assert curves["stable_rank/mlp"].by_row[:, 0].tolist() == [4, 5, 6]
    assert curves["entropy"].by_row[0].tolist() == [2, 2]  # mean over the heads that a layer has
    assert curves["coherence/embedding"].by_row[0].tolist() == [0.25]
    assert shown.command == "joma scan 'owner/<tiny>' --measures stable_rank,coherence,entropy"


def test_a_study_with_a_name_like_a_scan_is_none(scanned: Path) -> None:
    folder = scanned.parent
    with Run.create(folder / "scan-snap-0123456789.sqlite", study="scan-snap", config={}):
        pass
    (folder / "scan-snap-decoder-0123456789.sqlite").write_text("a damaged run of a study, which tells of it itself")
    (folder / "scan-tiny-9876543210.sqlite").write_text("a damaged scan")
    assert scan_runs(folder.parent) == [scanned, folder / "scan-tiny-9876543210.sqlite"]


def test_a_link_out_of_the_folder_is_named_and_not_shown(scanned: Path, tmp_path: Path) -> None:
    path = tmp_path / "other" / "runs" / "scan-linked-0123456789.sqlite"
    path.parent.mkdir(parents=True)
    path.symlink_to(scanned)
    assert "leads out of" in str(read_scan(path, tmp_path / "other").error)
    assert read_scan(path).error is None  # it was named itself


def test_what_was_left_out_is_read_back(told: Path) -> None:
    with Run.open(told) as run:
        found = stored_scan(run)
    assert found.steps == [0, 200]
    assert [fault.measure for fault in found.faults] == [None, "entropy"]
    assert (found.refused, found.notes, found.coverage) == (
        {"alpha": "needs more"}, ("EMA left aside",), {"mlp": (2, 3)})  # fmt: skip


def test_a_later_sweep_forgets_only_what_it_looked_at(told: Path) -> None:
    with Run.open(told, write=True) as run:
        found = dataclasses.replace(stored_scan(run), faults=[], refused={})
        remember(run, found, [100])
        assert [fault.step for fault in stored_scan(run).faults] == [200]
        before = run.last_step("about")
        remember(run, dataclasses.replace(stored_scan(run), faults=[]), [100])
        assert run.last_step("about") == before  # nothing new, nothing written
        refusing = dataclasses.replace(stored_scan(run), curves={}, refused={"stable_rank": "needs more"})
        remember(run, refusing, [100])
        assert set(stored_scan(run).refused) == {"alpha", "stable_rank"}
        remember(run, dataclasses.replace(stored_scan(run), refused={}), [100])
        remember(run, dataclasses.replace(stored_scan(run), seq_len=64), [100])
        remember(run, dataclasses.replace(stored_scan(run), seq_len=None, notes=("without a text",)), [100])
        assert (stored_scan(run).seq_len, stored_scan(run).notes[-1]) == (64, "without a text")
        assert set(stored_scan(run).refused) == {"alpha"}  # what has a curve by now is not refused any more


def test_the_figures_say_what_is_seen(shown: ShownScan) -> None:
    pytest.importorskip("matplotlib")
    pictures = shown.pictures
    assert [one.name for one in pictures["stable_rank"]] == ["stable_rank-curves", "stable_rank-heat"]
    assert [one.name for one in pictures["entropy"]] == ["entropy-curves", "entropy-heat", "entropy-heads"]
    assert [one.name for one in pictures["coherence"]] == ["coherence-curves"]
    curves, heat = pictures["stable_rank"]
    assert "stable rank, mlp: layer 0 rises from 4 to 6; layer 1 falls from 9 to 7." in curves.alt
    assert "Mean over layers: mlp stays at 6.5." in curves.caption
    moved = "rises most in layer 0, by 2 at step 200 and falls most in layer 1, by 2 at step 200"
    assert f"stable rank, mlp: {moved}." in heat.alt
    assert f"mlp {moved}." in heat.caption
    assert "does not change" in pictures["entropy"][1].caption
    assert "the lowest is 1 in layer 0, head 0" in pictures["entropy"][-1].alt
    for one in [one for several in pictures.values() for one in several]:
        assert len(one.alt) > 40
        assert f'aria-label="{one.alt[:20]}' in one.svg


def test_the_page_of_a_scan(told: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with Run.open(told) as run:
        shown = show_scan(stored_scan(run), run, command="joma scan <here>", violations=("stable_rank<5: step 0",))
    html = write_scan_page(shown, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>owner/&lt;tiny&gt;</h1>" in html
    assert "2 checkpoints, from step 0 to 200." in html
    assert html.count("<figure") == 6
    for words in ("is &lt;cut&gt; off", "the whole step", "needs more", "EMA left aside", "2 of 3 layers",
                  "1 number beyond a threshold", "joma scan &lt;here&gt;", "Numbers by layer"):  # fmt: skip
        assert words in html
    assert "matplotlib is not installed" not in html
    assert "<cut>" not in html


def test_without_matplotlib_the_page_has_tables_and_says_what_to_install(
    scanned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joma.report.figures.find_spec", lambda name: None)
    shown = read_scan(scanned)
    assert shown.pictures == {}
    html = write_scan_page(shown, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "pip install -e '.[viz]'" in html
    assert "<details open><summary>Numbers by layer" in html
    assert "<figure" not in html
    both = write_comparison((shown, shown), tmp_path / "both.html", made_by="joma").read_text(encoding="utf-8")
    assert both.count("pip install -e '.[viz]'") == 1
    assert "Where they end" in both


def test_two_scans_on_one_axis(shown: ShownScan, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    more = {"spectral_norm/mlp": np.ones(2), "stable_rank/mlp": np.array([1.0, 3.0])}
    with Run.open(record(tmp_path / "runs" / "scan-other-1.sqlite", **more)) as run:
        other = show_scan(stored_scan(run), run, draw=False)
    html = write_comparison((shown, other), tmp_path / "both.html", made_by="joma scan --compare").read_text(
        encoding="utf-8"
    )
    assert html.count("<figure") == 1
    assert "&lt;tiny&gt; (1) and &lt;tiny&gt; (2)" in html
    assert "Only &lt;tiny&gt; (2) has spectral_norm/mlp." in html
    assert '<th scope="row">stable_rank/mlp</th><td>6.5</td><td>2</td><td>-4.5</td>' in html
    assert '<th scope="col">&lt;tiny&gt; (2) − &lt;tiny&gt; (1)</th>' in html  # which is taken from which
    assert '<th scope="col">difference</th>' not in html


def test_a_run_of_something_else_is_no_scan(tmp_path: Path) -> None:
    config = {"source": "a", "model_type": "gpt2", "groups": {}}
    with (
        Run.create(tmp_path / "a.sqlite", study="other", config=config) as run,
        pytest.raises(RunError, match=r"a\.sqlite is a run of 'other' and no scan"),
    ):
        stored_scan(run)


@pytest.mark.parametrize(
    "config", [{}, {"source": "a", "groups": 3}, {"source": "a", "groups": {"mlp": 3}}, {"source": "a", "groups": []}]
)
def test_a_scan_that_was_tampered_with_is_one_sentence(tmp_path: Path, config: dict) -> None:
    with Run.create(tmp_path / "a.sqlite", study="scan", config=config) as run:
        run.record(10, {"stable_rank/mlp": np.array([4.0])})
        with pytest.raises(RunError, match=r"a\.sqlite is not a run as joma scan writes it"):
            stored_scan(run)


def test_two_sources_are_named_by_the_shortest_ends_that_differ() -> None:
    for first, second, names in (
        ("a/x", "a/y", ("x", "y")),
        ("a/x/1", "a/y/1", ("x/1", "y/1")),
        ("x/1", "a/x/1", ("x/1", "a/x/1")),
        ("a/x/1", "x/1", ("a/x/1", "x/1")),
        ("a/x", "a/x", ("x (1)", "x (2)")),
    ):
        assert page._names(first, second) == names


def with_notes(path: Path, *notes: str) -> Path:
    with Run.open(path, write=True) as run:
        remember(run, dataclasses.replace(stored_scan(run), notes=notes), STEPS)
    return path


ENTROPY = ("coherence/embedding", "stable_rank/mlp", "sketch/mlp", "checksum/mlp")
"""What is not needed where only entropy is looked at."""


@pytest.mark.long
def test_entropy_is_drawn_beside_uniform_attention_where_its_windows_are_known(
    shown: ShownScan, tmp_path: Path
) -> None:
    assert "uniform" not in shown.pictures["entropy"][0].svg  # nothing says how the text was cut
    scanned = record(tmp_path / "runs" / "scan-a.sqlite", without=ENTROPY[:1])
    shown = read_scan(with_notes(scanned, "entropy, sparsity read a.txt: 3 windows of 4 tokens"))
    curves = shown.pictures["entropy"][0]
    level = np.log([1, 2, 3, 4]).mean()
    assert f"Dotted: uniform attention, {level:.3g} nats" in curves.caption
    assert "uniform" in curves.svg
    assert "uniform" not in shown.pictures["stable_rank"][0].svg
    other = with_notes(
        record(tmp_path / "runs" / "scan-b.sqlite", without=ENTROPY), "entropy reads a.txt: 1 window of 9 tokens"
    )
    both = write_comparison((shown, read_scan(other)), tmp_path / "both.html", made_by="joma")
    assert "uniform attention" not in both.read_text(encoding="utf-8")  # of two lengths there is no one level
    same = write_comparison((shown, shown), tmp_path / "same.html", made_by="joma")
    assert "uniform attention" in same.read_text(encoding="utf-8")


def test_uniform_attention_has_the_entropy_that_is_drawn() -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from joma.probes import attention_entropy
    from joma.report.scans.curves import uniform_entropy
    from joma.scan import Scan

    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=16)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.h[0].attn.c_attn.weight[:, :16] = 0.0  # queries and keys: all logits are alike
        model.transformer.h[0].attn.c_attn.bias[:16] = 0.0
        measured = attention_entropy(model, torch.randint(20, (16,)))
    note = "entropy reads a.txt: 1 window of 16 tokens"
    level = uniform_entropy(Scan("a", [0], [], {}, notes=(note,), model_type="gpt2"))
    assert np.asarray(measured) == pytest.approx(np.full((1, 2), level), abs=1e-5)


def test_one_checkpoint_is_drawn_by_layer(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "one.sqlite"
    groups = {"mlp": ["h.0.w", "h.1.w"], "up": ["h.0.e", "h.1.e"]}
    with Run.create(path, study="scan", config={"source": "one", "groups": groups}) as run:
        run.record(1000, {"stable_rank/mlp": np.array([4.0, 5.0]), "stable_rank/up": np.array([1.0, 2.0])})
    (picture,) = read_scan(path).pictures["stable_rank"]
    assert picture.name == "stable_rank-layers"
    assert "mlp from 4 to 5; up from 1 to 2" in picture.caption
    html = write_report([], tmp_path, scale="quick", scans=[path]).read_text(encoding="utf-8")
    assert "1 checkpoint, at step 1,000." in html


def test_experts_are_a_mean_in_curves_and_a_table_of_colours(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "moe.sqlite"
    names = [f"layers.{layer}.mlp.experts.{expert}.up_proj.weight" for layer in (0, 1) for expert in (0, 1, 2)]
    with Run.create(path, study="scan", config={"source": "moe", "groups": {"mlp_experts": names}}) as run:
        for step in (0, 10):
            run.record(step, {"stable_rank/mlp_experts": np.arange(6.0) + step})
    curves, heat, experts = read_scan(path).pictures["stable_rank"]
    assert "layer 0 rises from 1 to 11; layer 1 rises from 4 to 14" in curves.alt
    assert heat.name == "stable_rank-heat"
    assert "mlp_experts, step 10: from 10 to 15" in experts.caption


def test_the_page_shows_scans_beside_studies(results: list[Result], scanned: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    html = write_report(results, tmp_path, scale="quick", scans=[scanned]).read_text(encoding="utf-8")
    section = html[html.index('<section id="scans"') : html.index('<section id="claims"')]
    assert "<h3>owner/&lt;tiny&gt;</h3>" in section
    assert "3 checkpoints, from step 0 to 200." in section
    assert section.count("<svg") == 6
    assert scanned.name in section
    assert '<a href="#scans">Scans</a>' in html
    without = write_report(results, tmp_path, scale="quick").read_text(encoding="utf-8")
    assert '"#scans"' not in without
    assert 'id="scans"' not in without


def test_scans_alone_make_a_page(tmp_path: Path) -> None:
    without = ("coherence/embedding", "entropy")  # one picture is enough
    scanned = record(tmp_path / "runs" / "scan-tiny-0123456789.sqlite", without=without)
    html = write_report([], tmp_path, scale="quick", scans=[scanned]).read_text(encoding="utf-8")
    assert "1 series of checkpoints was measured" in html


@pytest.mark.parametrize("damage", ["cut", "text", "gone", "other", "empty", "groups", "about", "shape"])
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
        "about": {"study": "scan", "config": {"source": "a", "groups": {}}},
        "shape": {"study": "scan", "config": {"source": "a", "groups": {}}},
    }
    if damage in made:
        with Run.create(scanned, **made[damage]) as run:  # type: ignore[arg-type]
            if damage in ("groups", "about"):
                run.record(0, {"stable_rank/mlp": np.array([1.0])})
            if damage == "about":
                run.append("about", 0, np.frombuffer(json.dumps({"faults": 3}).encode(), dtype=np.uint8))
            if damage == "shape":
                run.record(0, {"stable_rank/mlp": np.ones((2, 2, 2))})
    html = write_report(results, tmp_path, scale="quick", scans=[scanned]).read_text(encoding="utf-8")
    assert html.count("This scan cannot be shown: ") == 1
    assert "Ten comes after two." in html
    if damage == "groups":
        assert f"{scanned.name} is not a run as joma scan writes it" in html
