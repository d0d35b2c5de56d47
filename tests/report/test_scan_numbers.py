"""The numbers that a page of a scan shows: what is handed to its figures, and what stands in its tables."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from joma.report.markup import NOTHING, Anchors
from joma.report.scans import sections
from joma.report.scans.figures import compared_pictures, pictures_of
from joma.report.scans.shown import ShownScan
from joma.scan import Fault, Scan
from joma.scan.names.architecture import Row
from joma.scan.result.curves import Curve

NAN = float("nan")


@dataclasses.dataclass
class Drawn:
    """A figure that was not drawn: its words, and what it would have shown."""

    name: str
    caption: str
    alt: str
    given: tuple[Any, ...]
    named: dict[str, Any]


@pytest.fixture(autouse=True)
def not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(name: str, caption: str, alt: str, draw: object, *given: Any, **named: Any) -> Drawn:
        return Drawn(name, caption, alt, given, named)

    monkeypatch.setattr("joma.report.scans.figures.draw_picture", kept)
    monkeypatch.setattr("joma.report.scans.allocation.draw_picture", kept)


def scan_of(*curves: Curve, steps: Sequence[int], **more: Any) -> Scan:
    return Scan("a", list(steps), [], {curve.name: curve for curve in curves}, **more)


def layers(measure: str, values: Sequence[Sequence[float]]) -> Curve:
    rows = tuple(Row(at, None, f"h.{at}.w") for at in range(len(values[0])))
    return Curve(measure, "mlp", rows, (measure,), np.array(values))


def allocation(group: str, rows: Sequence[Row], parts: dict[str, list[list[float]]], error: float) -> Curve:
    change = sum(np.array(part) for part in parts.values())
    kept = [change, np.full(change.shape, error), np.zeros(change.shape), *map(np.array, parts.values())]
    values = np.stack(kept, axis=2)
    columns = ("change", "error", "since", *parts)
    return Curve("allocation", group, tuple(rows), columns, np.concatenate([np.full_like(values[:1], NAN), values]))


@pytest.fixture
def allocated() -> Scan:
    """Layer 0 is lowest at step 20, layer 1 at step 10."""
    entropy = {
        "embeddings": [[0, 0], [0, 0], [1, 0]],
        "layer 0 QK": [[-2, 0], [-1, 0.25], [3, 0]],
        "layer 0 MLP": [[0, 0], [0, 0.25], [0, 0.25]],
        "layer 1 QK": [[0, -1], [0, 0], [0, 0.25]],
        "last norm": [[0, 0], [0, 0], [0, 0]],
    }
    loss: dict[str, list[list[float]]] = {
        "layer 0 QK": [[-4], [0], [0]],
        "layer 0 MLP": [[0], [-2], [0.5]],
        "layer 1 MLP": [[0], [-1], [-1]],
        "output": [[0], [0], [-1]],
    }
    curves = (
        allocation("entropy", [Row(at, None, f"layer {at}") for at in (0, 1)], entropy, 0.01),
        allocation("loss", [Row(None, None, "loss")], loss, 0.03),
    )
    return scan_of(*curves, steps=(0, 10, 20, 30))


def test_parts_are_added_up_over_the_steps_by_kind(allocated: Scan) -> None:
    parts: Any = pictures_of(allocated, "allocation")[0]
    own, others, change = "QK of this layer", "QK of other layers", "whole change"
    expected = {
        "entropy, layer 0": {own: [0, -2, -3, 0], "embeddings": [0, 0, 0, 1], change: [0, -2, -3, 1]},
        "entropy, layer 1": {own: [0, -1, -1, -0.75], others: [0, 0, 0.25, 0.25], "MLP": [0, 0, 0.25, 0.5],
                             change: [0, -1, -0.5, 0]},
        "loss": {others: [0, -4, -4, -4], "MLP": [0, 0, -3, -3.5], "output": [0, 0, 0, -1], change: [0, -4, -7, -8.5]},
    }  # fmt: skip
    panels = parts.given[0]
    assert [panel.title for panel in panels] == list(expected)
    for panel in panels:
        assert list(panel.steps) == [0, 10, 20, 30]
        assert dict(zip(panel.rows, panel.values.T.tolist(), strict=True)) == expected[panel.title]
    assert "entropy, layer 0: the change " in parts.caption
    assert "of which embeddings +1" in parts.caption
    assert re.search(r"loss: the change .*, of which QK of other layers \S+, MLP \S+ and output ", parts.alt)
    assert "miss no interval's change by more than 0.03 nats" in parts.caption  # the worst, of entropy or loss


def test_the_way_down_ends_where_the_entropy_of_the_layer_is_lowest(allocated: Scan) -> None:
    ways: Any = pictures_of(allocated, "allocation")[1]
    (down, before), (back, after) = ways.given[0]
    assert (down, back) == ("until the entropy is lowest", "from there to the last checkpoint")
    assert list(ways.named["colours"]) == ["QK of this layer", "QK of other layers", "embeddings", "MLP"]
    assert before.tolist() == [[-3, 0, 0, 0], [-1, 0, 0, 0]]
    assert after.tolist() == [[3, 0, 1, 0], [0.25, 0.25, 0, 0.5]]
    assert ways.named["rows"] == ["0", "1"]
    parts = "QK of this layer +1.62, embeddings +0.5 and MLP +0.25"
    assert f"From there to the last checkpoint: mean over layers +2.5 nats, of which {parts}." in ways.caption


def cells(html: str) -> dict[str, list[str]]:
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', html)
    return {name: re.findall(r"<td>(.*?)</td>", rest) for name, rest in rows}


def test_the_table_has_the_first_the_last_the_lowest_and_the_highest_number_of_a_layer() -> None:
    found = scan_of(layers("alpha", [[5.0, NAN], [2.0, 4.0], [8.0, 3.0], [6.0, 3.5]]), steps=(0, 1000, 2000, 3000))
    html = sections.measure_section(ShownScan("a", "a", found), "alpha", Anchors(), "h2")
    at = '<span class="at">at {}</span>'
    assert cells(html) == {
        "layer 0": ["5", "6", f"2 {at.format('1,000')}", f"8 {at.format('2,000')}"],
        "layer 1": [NOTHING, "3.5", f"3 {at.format('2,000')}", f"4 {at.format('1,000')}"],
    }
    order = re.findall(r'<th scope="col">(.*?)</th>', html)
    assert order == ["layer", "step 0", "step 3,000", "lowest", "highest"]


def test_what_is_left_out_is_one_row_per_step_and_measure() -> None:
    faults = [
        Fault(7, "step7", "a.bin", "h.0.w", "is cut off"),
        Fault(7, "step7", "a.bin", "h.1.w", "is cut off"),
        Fault(7, "step7", None, "wte", "wte has 1 of 9 values that are NaN", "coherence"),
        Fault(9, "step9", None, None, "is missing"),
    ]
    found = dataclasses.replace(scan_of(steps=(0,), refused={"entropy": "no text"}), faults=faults)
    rows = re.findall(r"<tr>(<th scope=.row.*?)</tr>", sections.notices(ShownScan("a", "a", found)))
    assert [re.sub(r"(<.*?>)+", "|", row).strip("|") for row in rows] == [
        "every step|entropy|no text",
        "7 |step7|the whole step|h.0.w: is cut off (and 1 more tensor)",
        "7 |step7|coherence|wte has 1 of 9 values that are NaN",
        "9 |step9|the whole step|is missing",
    ]


def test_changes_are_since_the_first_checkpoint_that_has_a_number() -> None:
    found = scan_of(layers("alpha", [[5.0, NAN], [2.0, 4.0], [8.0, 3.0]]), steps=(0, 1, 2))
    heat: Any = pictures_of(found, "alpha")[1]
    (panel,) = heat.given[0]
    np.testing.assert_array_equal(panel.values, [[0.0, NAN], [-3.0, 0.0], [3.0, -1.0]])
    assert "mlp rises most in layer 0, by 3 at step 2 and falls most in layer 0, by 3 at step 1" in heat.caption
    assert "Grey: left out." in heat.caption


def test_experts_stand_in_their_own_row_and_column() -> None:
    rows = (Row(0, 2, "a"), Row(3, 0, "b"), Row(3, 2, "c"))
    curve = Curve("alpha", "mlp_experts", rows, ("alpha",), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    tables: Any = pictures_of(scan_of(curve, steps=(0, 1)), "alpha")[-1]
    assert (tables.named["rows"], tables.named["columns"]) == (["0", "3"], ["0", "2"])
    first, last = (table for _, table in tables.given[0])
    np.testing.assert_array_equal(first, [[NAN, 1.0], [2.0, 3.0]])
    np.testing.assert_array_equal(last, [[NAN, 4.0], [5.0, 6.0]])


def test_of_heads_the_first_the_middle_and_the_last_step_with_numbers_are_shown() -> None:
    values = np.full((6, 1, 2), NAN)
    values[2:] = np.arange(8.0).reshape(4, 1, 2)
    curve = Curve("entropy", None, (Row(0, None, "layer 0"),), ("0", "1"), values)
    heads: Any = pictures_of(scan_of(curve, steps=(0, 10, 20, 30, 40, 50)), "entropy")[-1]
    assert [title for title, _ in heads.given[0]] == ["step 20", "step 40", "step 50"]
    assert heads.given[0][1][1].tolist() == [[4.0, 5.0]]
    assert "The lowest at the last step is 6 in layer 0, head 0" in heads.caption


def test_where_one_of_two_has_a_single_checkpoint_the_last_ones_are_compared() -> None:
    one = scan_of(layers("alpha", [[5.0, 6.0], [2.0, 4.0]]), steps=(0, 10))
    other = scan_of(layers("alpha", [[7.0, 9.0]]), steps=(3,))
    (picture,) = compared_pictures((one, other), ("one", "other"))
    ((_, lines),) = picture.given[0]  # type: ignore[attr-defined]
    assert [(name, labels, values.tolist()) for name, labels, values in lines] == [
        ("one", ["0", "1"], [2.0, 4.0]),
        ("other", ["0", "1"], [7.0, 9.0]),
    ]


def test_a_caption_tells_the_course_of_six_groups_and_counts_the_others() -> None:
    """Each group rises from its number to twice that, in the mean over its two layers."""
    for count in (6, 7, 9):
        rows = (Row(0, None, "h.0.w"), Row(1, None, "h.1.w"))
        every = [
            Curve("alpha", f"g{at}", rows, ("alpha",), np.array([[at + 1.0, at + 3.0], [2 * at + 3.0, 2 * at + 5.0]]))
            for at in range(count)
        ]
        picture: Any = pictures_of(scan_of(*every, steps=(0, 10)), "alpha")[0]
        told = [f"g{at} rises from {at + 2} to {2 * at + 4}" for at in range(6)]
        told += [f"{count - 6} more are in the table below"] if count > 6 else []
        which = "one line per layer, from the first (blue) to the last (ochre). Mean over layers"
        assert picture.caption.partition(" over ")[2] == f"2 checkpoints, {which}: {'; '.join(told)}."
        assert picture.alt.endswith(f"layer 0 rises from {count} to {2 * count + 1}; layer 1 rises from "
                                    f"{count + 2} to {2 * count + 3}.")  # fmt: skip
        assert len(picture.given[0]) == count


def test_one_checkpoint_is_told_by_the_range_of_its_layers() -> None:
    found = scan_of(layers("alpha", [[5.0, NAN, 2.5]]), steps=(4000,))
    (picture,) = pictures_of(found, "alpha")
    assert picture.caption.endswith("of the one checkpoint, layer by layer: mlp from 2.5 to 5.")
    assert "at step 4,000, layers to the right, one line per group. mlp from 2.5 to 5." in picture.alt


def test_two_scans_are_compared_by_curves_that_both_have() -> None:
    one = scan_of(layers("alpha", [[5.0, 7.0], [2.0, 4.0]]), layers("beta", [[1.0, 1.0]] * 2), steps=(0, 10))
    other = scan_of(layers("alpha", [[7.0, 9.0], [9.0, 11.0]]), steps=(3, 5))
    (picture,) = compared_pictures((one, other), ("one", "other"))
    drawn: Any = picture
    assert picture.caption.endswith("α, mlp, mean over layers: one falls from 6 to 3; other rises from 8 to 10.")
    ((first, second),) = drawn.given[0]
    assert (first.steps, second.steps, drawn.given[1]) == ([0, 10], [3, 5], ("one", "other"))
    assert compared_pictures((one, scan_of(layers("gamma", [[1.0]]), steps=(0,))), ("a", "b")) == ()


def test_exponents_stand_beside_those_of_gaussian_matrices() -> None:
    """Medians over layers at the last step. One of three lies below, one above; a row may have no numbers."""
    columns = ("exponent", "low", "high", "gaussian", "gaussian low", "gaussian high")
    rows = tuple(Row(at, None, f"h.{at}.w") for at in range(4))
    last = [[2, 1.5, 2.5, 9, 3, 20], [4, 2, 5, 9, 3, 20], [30, 25, 40, 9, 3, 20], [NAN] * 6]
    curve = Curve("alpha", "mlp", rows, columns, np.array([[[1.0] * 6] * 4, last]))
    both = "mlp 4 [2, 5], Gaussian 9 [3, 20], 2 of 3 matrices differ."
    assert both in pictures_of(scan_of(curve, steps=(0, 10)), "alpha")[0].caption
    alone = Curve("alpha", "mlp", rows, columns, np.array([last]))
    assert both in pictures_of(scan_of(alone, steps=(10,)), "alpha")[0].caption
    assert "Gaussian" not in pictures_of(scan_of(layers("alpha", [[5.0, 4.0]]), steps=(4,)), "alpha")[0].caption
