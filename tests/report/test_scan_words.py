"""The words around the numbers of a scan on a page: notices, tables that are too long, titles, the record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from joma.report.markup import NOTHING, Anchors
from joma.report.scans import sections
from joma.report.scans.curves import group_title, layers_of, steps_axis, uniform_entropy
from joma.report.scans.shown import ShownScan, show_scan
from joma.runs import Run
from joma.scan import Scan
from joma.scan.names.architecture import Row
from joma.scan.result.curves import Curve

ROWS = (Row(0, None, "h.0.w"), Row(1, None, "h.1.w"))


def scan(*steps: int, **more: Any) -> Scan:
    curves = {
        f"stable_rank/{group}": Curve("stable_rank", group, ROWS, ("stable rank",), np.ones((len(steps), 2)))
        for group in ("mlp", "attention_o")
    }
    curves["entropy"] = Curve("entropy", None, ROWS, ("0", "1", "2"), np.ones((len(steps), 2, 3)), heads=True)
    return Scan("a/b", list(steps), [], curves if steps else {}, **more)


def test_a_summary_tells_how_many_from_when_to_when_and_of_what() -> None:
    what = "Measured: Stable rank; Attention entropy (nats)."
    assert sections.summary(scan(10, 20, 4000)) == f"3 checkpoints, from step 10 to 4,000. {what}"
    assert sections.summary(scan(4000)) == f"1 checkpoint, at step 4,000. {what}"
    assert sections.summary(scan()) == "No checkpoint could be used."
    assert sections.scan_sections([], Anchors()) == ""
    for count, words in ((1, "1 series of checkpoints was"), (2, "2 series of checkpoints were")):
        html = sections.scan_sections([ShownScan("a", "scan-a.sqlite", error="is <damaged>")] * count, Anchors())
        assert f"<p>{words} measured with <code>joma scan</code>. A scan measures and does not judge.</p>" in html
        why = '<p class="notice">This scan cannot be shown: is &lt;damaged&gt;.</p>'
        assert html.count(f"<h3>scan-a.sqlite</h3>{why}</article>") == count


def test_notices_name_numbers_beyond_a_threshold_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "_MOST_BEYOND", 2)
    warned = '<p class="notice">Warning: &lt;long&gt;.</p>\n<p class="notice">Warning: slow.</p>'

    def told(count: int) -> str:
        found = scan(1, warnings=("<long>", "slow"))
        lines = tuple(f"{at} < 5" for at in range(count))
        return sections.notices(ShownScan("a", "r", found, {"entropy": ()}, violations=lines))

    assert told(0) == warned
    for count, words, more in ((1, "1 number", ""), (2, "2 numbers", ""), (3, "3 numbers", "<li>1 more number</li>")):
        lines = "".join(f"<li>{at} &lt; 5</li>" for at in range(min(count, 2)))
        beyond = f'<div class="notice v-fails"><p>{words} beyond a threshold:</p><ul>{lines}{more}</ul></div>'
        assert told(count) == f"{beyond}\n{warned}"


def test_of_a_long_table_the_first_rows_are_shown_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "_MOST_ROWS", 2)
    rows = [["<b>0</b>", "1"], ["2", "3"], ["4", "5"]]
    top = (
        '<div class="numbers" role="group" tabindex="0" aria-label="a &lt; b"><table><caption>a &lt; b</caption>'
        '<thead><tr><th scope="col">n</th><th scope="col">v&gt;</th></tr></thead><tbody>'
    )
    body = '<tr><th scope="row"><b>0</b></th><td>1</td></tr><tr><th scope="row">2</th><td>3</td></tr>'
    end = "</tbody></table></div>"
    assert sections.table("a < b", ["n", "v>"], rows[:2]) == f"{top}{body}{end}"
    assert sections.table("a < b", ["n", "v>"], rows) == f"{top}{body}{end}<p>1 more row not shown.</p>"


def test_layers_that_groups_cover_are_told_with_their_first_tensor() -> None:
    found = scan(1, coverage={"mlp": (2, 3), "gone": (1, 3)}, notes=("a <note>", "b"))
    head = ["group", "covers", "first tensor"]
    rows = [["mlp", "2 of 3 layers", "h.0.w"], ["gone", "1 of 3 layers", NOTHING]]
    notes = '<ul class="notes"><li>a &lt;note&gt;</li><li>b</li></ul>'
    assert sections.what_was_read(found) == sections.table("Layers that each group covers", head, rows) + notes
    assert sections.what_was_read(scan(1)) == ""


def test_the_record_of_a_scan_says_how_it_was_made(tmp_path: Any) -> None:
    with Run.create(tmp_path / "scan-a.sqlite", study="scan", config={}) as run:
        shown = show_scan(scan(1, 2, model_type="llama"), run, draw=False)
        versions, machine, created = run.versions, run.machine, run.created
        assert (
            show_scan(scan(1), run, command="joma report x", violations=("x",), draw=False).command == "joma report x"
        )
    assert shown.command == "joma scan a/b --measures stable_rank,entropy"
    assert shown.facts == {
        "model type": "llama", "made": created, "machine": machine["gpu"] or machine["cpu"], "joma": versions["joma"],
        "record": "scan-a.sqlite",
    }  # fmt: skip
    assert (shown.source, shown.record, shown.measures) == ("a/b", "scan-a.sqlite", ["stable_rank", "entropy"])
    assert (shown.pictures, shown.violations) == ({}, ())


def test_experts_of_a_layer_are_one_row_and_their_mean() -> None:
    rows = (Row(3, 0, "a"), Row(3, 1, "b"), Row(5, 0, "c"), Row(5, 1, "d"))
    values = np.array([[1.0, 2.0, 10.0, 30.0], [np.nan, 5.0, 7.0, 8.0]])
    labels, found = layers_of(Curve("stable_rank", "mlp_experts", rows, ("stable rank",), values))
    assert labels == ["layer 3", "layer 5"]
    assert found.tolist() == [[1.5, 20.0], [5.0, 7.5]]
    assert group_title(Curve("stable_rank", "mlp", ROWS, ("x",), np.ones((1, 2)))) == "mlp"
    assert group_title(scan(1).curves["entropy"]) == "mean over heads"


def test_uniform_attention_needs_one_length_and_a_causal_model() -> None:
    """The mean of ln 1 to ln 4 is ln(24) / 4."""
    notes = ("entropy, sparsity read a.txt: 1,200 windows of 4 tokens; the last 3 are not read",)
    assert uniform_entropy(scan(1, notes=notes, model_type="llama")) == pytest.approx(np.log(24) / 4, rel=1e-12)
    assert uniform_entropy(scan(1, notes=notes)) is None
    long = ("entropy reads a.txt: 1 window of 1,024 tokens",)
    exact = np.log(np.arange(1, 1025)).mean()
    assert uniform_entropy(scan(1, notes=long, model_type="gpt2")) == pytest.approx(exact, rel=1e-12)
    assert uniform_entropy(scan(1, notes=notes + long, model_type="gpt2")) is None
    assert steps_axis(scan(10, 20, epochs={10: 1})) == ("training step", [10, 20])
    assert steps_axis(scan(1, 2, epochs={1: 1, 2: 2})) == ("epoch", [1, 2])
