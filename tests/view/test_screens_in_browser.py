"""What the screens of runs, heads, splits and claims show, against what was made up: one page for all of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from view.stand_in import NOW, StandIn, near

# Runs


def test_runs_with_their_ages_states_and_counts(host: StandIn) -> None:
    host.run("a", last=9, written=NOW - 90, study="alpha", alarms=[{"step": 1}, {"step": 2}])
    host.run("b", last=100, written=NOW - 30 * 60, state="being written", status="running")
    host.run("c", last=25, written=NOW - 5 * 3600, state="failed: out of memory", status="failed", study="alpha")
    host.run("d", last=1000, written=NOW - 72 * 3600, state="not being written", status="running", left_out=[{}])
    host.runs[2] |= {"alarms": [{"step": 1}], "alarm_count": 1213}  # a page is told of the last ones
    host.tell()
    ages = host.texts("td[data-label=Written]")
    assert ages == ["90 s ago", "30 min ago", "5 h ago", "3 days ago"]
    assert host.texts("td[data-label=State]") == [
        "finished 2 alarms", "being written", "failed: out of memory 1,213 alarms", "not being written 1 left out"
    ]  # fmt: skip
    assert host.texts("td.fault") == ["failed: out of memory 1,213 alarms"]
    assert host.texts("td.alive") == ["being written"]
    assert host.text(".live") == "1 run being written"  # one that nobody writes is not counted
    host.show("screen=runs&sort=last")
    assert host.texts("td[data-label='Last step']") == ["9", "25", "100", "1,000"]
    host.show("screen=runs&sort=-last")
    assert host.texts("tbody th") == ["d", "b", "c", "a"]
    host.show("screen=runs&sort=study")
    assert host.texts("tbody th") == ["a", "c", "b", "d"]  # those of one study stay in their order
    host.show("screen=runs&find=alpha+failed")  # both words
    assert host.texts("tbody th") == ["c"]
    host.show("screen=runs&find=nothing")
    assert host.text("main .count") == "0 of 4 runs"
    host.show("screen=runs&run=a&run=c")
    host.page.get_by_label("Choose b").check()
    assert [value for name, value in host.hash() if name == "run"] == ["a", "c", "b"]
    host.page.get_by_label("Choose a").uncheck()
    assert [value for name, value in host.hash() if name == "run"] == ["c", "b"]


# Heads

LIGHT = {  # the colours of numbers, from the smallest to the largest
    "one sign": ["#f3efe2", "#8db8e3", "#026ed0", "#0a2a52"],
    "both": ["#a01c1b", "#e89c92", "#f6f2e6", "#8db8e3", "#0b4f99"],
}


def painted(stops: list[str], share: float) -> np.ndarray:
    channels = np.array([[int(stop[at : at + 2], 16) for at in (1, 3, 5)] for stop in stops])
    return np.array([np.interp(share, np.linspace(0, 1, len(stops)), channel) for channel in channels.T])


def cells(host: StandIn, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    picture = host.pixels(".map canvas")[..., :3]
    grid = host.page.evaluate("() => { const box = document.querySelector('.map canvas'); return box.clientWidth; }")
    assert picture.shape[1] == grid
    left, wide = 34, min((grid - 34 - 4) / columns, 64)
    tall = (len(picture) - 26) / rows
    y = [round(22 + (row + 0.5) * tall) for row in range(rows)]
    middle = [[picture[at, round(left + (column + 0.5) * wide)] for column in range(columns)] for at in y]
    edge = [[picture[at, int(left + column * wide) + 1] for column in range(columns)] for at in y]
    return np.array(middle), np.array(edge)


@pytest.mark.parametrize("kind", LIGHT)
def test_the_colour_of_a_cell_is_that_of_its_number(host: StandIn, kind: str) -> None:
    values = np.array([[[-4.0, 0.0, 1.0], [-2.0, 0.5, -1.0]], [[0.0, -3.0, 0.25], [1.0, -4.0, -0.5]]])
    if kind == "one sign":
        values = 10 - values
    host.series(host.run("a"), "x", [0, 10], values, {"layer": None, "head": None})
    host.tell()
    for step in (0, 1):
        host.show(f"screen=heads&run=a&step={10 * step}")
        found, low, high = cells(host, 2, 3)[0], values.min(), values.max()
        for place in np.ndindex(2, 3):
            value = values[step][place]
            share = 0.5 + value / max(-low, high) / 2 if kind == "both" else (value - low) / (high - low)
            assert np.abs(found[place] - painted(LIGHT[kind], share)).max() <= 4, (step, place)


def test_alarms_frame_their_cells_from_their_step_on(host: StandIn) -> None:
    told = [(10, "x", "l1", 2), (20, "x", "l0", 1), (0, "other", "l0", 0), (30, "x", "l1", 0)]
    alarms = [
        {"step": step, "measure": measure, "layer": layer, "head": head, "says": f"step {step}: of {layer}"}
        for step, measure, layer, head in told
    ]
    run = host.run("a", alarms=alarms, left_out=[{"step": 40, "says": "step 40 was cut"}])
    host.series(run, "x", range(0, 50, 10), np.ones((5, 2, 3)), {"layer": ["l0", "l1"], "head": None})
    host.tell()
    red, grey = host.colour("fails"), host.colour("not-run")
    for at, wanted in ((0, set()), (10, {(1, 2)}), (20, {(1, 2), (0, 1)}), (40, {(1, 2), (0, 1), (1, 0)})):
        host.show(f"screen=heads&run=a&series=x&step={at}")
        edges = cells(host, 2, 3)[1]
        assert {place for place in np.ndindex(2, 3) if np.abs(edges[place] - red).max() < 40} == wanted, at
    strip = host.pixels("canvas.strip")[4, :, :3]
    places = {
        name: np.flatnonzero(np.abs(strip - colour).max(1) < 8) for name, colour in (("red", red), ("grey", grey))
    }
    width = len(strip) - 2
    assert set(places["red"]) == {int(at / 40 * width + 0.5) + more for at in (0, 10, 20, 30) for more in (0, 1)}
    assert set(places["grey"]) == {width, width + 1}


def test_the_last_alarms_are_listed_and_a_step_between_two_is_the_nearest(host: StandIn) -> None:
    alarms = [{"step": at, "measure": "x", "layer": "l0", "head": 0, "says": f"step {at}: no {at}"} for at in range(45)]
    run = host.run("a", alarms=alarms)
    host.series(run, "x", range(0, 50, 10), np.ones((5, 1, 2)), {"layer": ["l0"], "head": None})
    host.tell()
    for at, wanted in ((14, 10), (16, 20), (99, 40), (-5, 0)):
        host.show(f"screen=heads&run=a&step={at}")
        assert host.text(".steps output") == f"{wanted} of 40"
    assert host.texts(".events li") == [f"step {at} no {at}" for at in range(5, 45)]


def test_a_list_says_how_many_there_are_in_all(host: StandIn) -> None:
    def events(count: int) -> list[dict[str, object]]:
        return [
            {"step": at, "measure": "x", "layer": "l0", "head": 0, "says": f"step {at}: no {at}"} for at in range(count)
        ]

    left = "Checkpoints that were left out"
    heads = {}
    for alarms, count, left_out in ((40, 40, 41), (41, 41, 40), (45, 1213, 0), (40, 213, 0), (3, 3, 1300)):
        run = host.run(f"{alarms} of {count}", alarms=events(alarms), alarm_count=count, left_out=events(left_out))
        host.series(run, "x", [0, 10], np.ones((2, 1, 2)), {"layer": ["l0"], "head": None})
    host.tell()
    for run in host.runs:
        host.show(f"screen=heads&run={run['id'].replace(' ', '+')}")
        heads[run["id"]] = host.texts(".events h2")
        assert len(host.texts(".events li")) == min(len(run["alarms"]), 40) + min(len(run["left_out"]), 40)
    assert heads == {
        "40 of 40": ["Alarms", f"{left}: the last 40 of 41"],
        "41 of 41": ["Alarms: the last 40 of 41", left],
        "45 of 1213": ["Alarms: the last 40 of 1,213; the last 45 are marked"],
        "40 of 213": ["Alarms: the last 40 of 213"],
        "3 of 3": ["Alarms", f"{left}: the last 40 of 1,300"],
    }


def test_a_list_follows_alarms_though_their_number_stays(host: StandIn) -> None:
    def told(first: int) -> list[dict[str, object]]:
        return [{"step": first, "measure": "x", "layer": "l0", "head": 1, "says": f"step {first}: again"}]

    run = host.run("a", alarms=told(0), alarm_count=99)
    host.series(run, "x", [0, 10], np.ones((2, 1, 2)), {"layer": ["l0"], "head": None})
    host.tell()
    host.show("screen=heads&run=a")
    host.runs[0] = {**host.runs[0], "alarms": told(10), "alarm_count": 100}
    host.tell()
    assert host.texts(".events li") == ["step 10 again"]
    assert host.texts(".events h2") == ["Alarms: the last 1 of 100"]


def test_a_cell_is_read_and_opened_by_its_layer_and_head(host: StandIn) -> None:
    values = np.arange(12.0).reshape(2, 2, 3) ** 2
    host.series(host.run("a"), "x", [0, 10], values, {"layer": None, "head": None})
    host.series(host.run("b"), "x", [0, 10], np.array([[[7.0]], [[8.0]]]), {"layer": None, "head": None})
    host.tell()
    host.show("screen=heads&run=a")
    box = host.page.locator(".map canvas").bounding_box()
    wide, tall = min((box["width"] - 38) / 3, 64), (box["height"] - 26) / 2
    for row, column in np.ndindex(2, 3):
        host.page.mouse.move(box["x"] + 34 + (column + 0.5) * wide, box["y"] + 22 + (row + 0.5) * tall)
        assert host.text(".reading") == f"layer {row}, head {column}: {values[1, row, column]:g} at step 10"
    host.choose("Run", "b")
    assert host.text(".reading") == "layer 0, head 0: 8 at step 10"  # it has no such cell
    host.show("screen=heads&run=a")
    host.page.mouse.click(box["x"] + 34 + 2.5 * wide, box["y"] + 22 + 0.5 * tall)
    host.settled()
    assert dict(host.hash())["screen"] == "curves"
    near(host.table()["layer 0, head 2"], values[:, 0, 2])
    host.show("screen=heads&run=a&step=0")
    host.page.locator(".map").focus()
    host.press("ArrowDown", "ArrowRight", "Enter")
    near(host.table()["layer 1, head 1"], values[:, 1, 1])


def test_small_curves_rise_where_numbers_do_and_keep_spikes(host: StandIn) -> None:
    values = np.zeros((3001, 1, 2))
    values[:, 0, 0] = np.linspace(0, 1, 3001)
    values[1500, 0, 1] = 1.0  # one step among so many is less than a pixel
    host.series(host.run("a"), "x", range(3001), values, {"layer": None, "head": None})
    host.points = 5000
    host.tell()
    host.show("screen=heads&run=a&heads=curves")
    picture = host.pixels(".map canvas")[..., :3]
    drawn = np.abs(picture - painted(["#3463e2"] * 2, 0)).max(2) < 90
    wide = min((picture.shape[1] - 34 - 4) / 2, 400)
    rising, spiky = (np.argwhere(drawn[:, int(34 + at * wide) : int(34 + (at + 1) * wide)]) for at in range(2))
    top, bottom = rising[:, 0].min(), rising[:, 0].max()
    assert bottom - top > 20
    assert rising[rising[:, 1] < 20][:, 0].min() > bottom - 6  # small numbers lie below
    assert rising[rising[:, 1] > wide - 25][:, 0].max() < top + 6
    near(spiky[:, 0].min(), top)
    assert abs(spiky[spiky[:, 0] < top + 5][:, 1].mean() - wide / 2) < 4


# Split


def test_parts_are_those_that_were_measured_wherever_they_are_read(host: StandIn) -> None:
    draw, run = np.random.default_rng(9), host.run("a")
    parts = {
        name: draw.uniform(low, low + 1, (300, 2)) for name, low in (("shared", 2), ("specific", 1), ("cross", -2))
    }
    whole = sum(parts.values()) + 0.5
    for name, values in {**parts, "variance": whole}.items():
        host.series(run, f"spread/{name}", range(300), values, {"layer": None})
    host.points = 30  # so whole steps are asked for
    host.tell()
    host.show("screen=split&run=a&layer=1")
    found = host.table()
    at = found.pop("step").astype(int)
    assert len(at) == 30
    for name, values in parts.items():
        near(found[name], values[at, 1])
    near(found["sum of the parts"], sum(parts.values())[at, 1])
    near(found["measured whole"], whole[at, 1])
    assert {name: last for name, (last, _) in host.legend().items()} == {
        name: f"{column[-1]:.4g}".replace("-", "−") for name, column in found.items()
    }
    area = host.page.locator(".u-over").bounding_box()
    read = []
    for y in range(0, int(area["height"]), 15):
        host.page.mouse.move(area["x"] + 1, area["y"] + y)
        host.settled()
        read.append(host.text(".reading"))
    wanted = [f"step 0 · {name}: {parts[name][0, 1]:.4g}".replace("-", "−") for name in ("specific", "shared", "cross")]
    order = list(dict.fromkeys(one for one in read if one in wanted))
    assert order == wanted  # from the top: what lies on another part, that part, and what is below zero
    host.page.mouse.move(5, 5)


def test_a_sum_with_an_unknown_part_is_a_gap_and_said_so(host: StandIn) -> None:
    draw, run, nan = np.random.default_rng(12), host.run("a"), np.nan
    parts = {name: draw.uniform(low, low + 1, (20, 2)) for name, low in (("shared", 2), ("specific", 1), ("cross", -2))}
    whole = sum(parts.values())
    parts["specific"][5:8], parts["cross"][11, 0], parts["shared"][19], parts["shared"][3, 1] = nan, nan, nan, np.inf
    for name, values in {**parts, "variance": whole}.items():
        host.series(run, f"spread/{name}", range(20), values, {"layer": None})
    host.tell()
    shown = "Parts above zero lie on one another, and so do those below."
    shown += " The number beside each name is its last that is known."
    for layer, gaps in (("0", [5, 6, 7, 11, 19]), ("1", [3, 5, 6, 7, 19]), ("mean", [3, 5, 6, 7, 11, 19])):
        host.show(f"screen=split&run=a&layer={layer}")
        columns = slice(None) if layer == "mean" else [int(layer)]
        wanted = whole[:, columns].mean(1)
        wanted[gaps] = nan
        found = host.table()
        near(found["sum of the parts"], wanted)
        near(found["measured whole"], whole[:, columns].mean(1))
        assert np.isfinite(found["specific"]).sum() == 17
        says = f"At {len(gaps)} of 20 steps a part is unknown. The sum and the parts drawn after it are gaps there."
        assert host.text(".note") == f"{shown} {says}"
        assert host.legend()["sum of the parts"][0] == f"{wanted[18]:.4g}"
    svg = host.saved("SVG")
    (line,) = re.findall(
        rf'<path d="([^"]*)" fill="none" stroke="rgb\({", ".join(map(str, host.colour("ink")))}\)"', svg
    )
    assert [part.count("L") + 1 for part in line.split("M")[1:]] == [3, 1, 3, 7]
    host.show("screen=split&run=a&layer=0&low=6&high=10")
    assert (
        host.text(".note")
        == f"{shown} At 2 of 5 steps a part is unknown. The sum and the parts drawn after it are gaps there."
    )
    host.show("screen=split&run=a&layer=0&low=12&high=18")
    assert host.text(".note") == shown


def test_parts_that_lack_steps_are_not_summed_with_others(host: StandIn) -> None:
    """As a scan has them: a checkpoint at which a measure has no number at all is no step of it."""
    run, steps = host.run("a"), {"shared": [0, 10, 20, 30], "specific": [0, 20, 30], "cross": [0, 10, 20, 30]}
    for at, (name, some) in enumerate(steps.items()):
        host.series(run, f"spread/{name}", some, np.array(some) + 100.0 * at)
    host.tell()
    host.show("screen=split&run=a")
    found = host.table()
    assert found["step"].tolist() == [0, 10, 20, 30]
    near(found["specific"], [100, np.nan, 120, 130])
    near(found["sum of the parts"], [300, np.nan, 360, 390])
    assert "At 1 of 4 steps a part is unknown" in host.text(".note")


def test_a_layer_that_never_has_a_number_makes_no_gap(host: StandIn) -> None:
    values, run = np.random.default_rng(13).uniform(1, 2, (5, 3, 4)), host.run("a")
    values[:, 1, 2:] = np.nan  # this layer has two heads
    host.series(run, "x", range(5), values, {"layer": None, "head": None})
    host.tell()
    host.show("screen=split&run=a&split=x%7Chead")
    near(host.table()["sum of the parts"], np.nanmean(values, 1).sum(1))
    assert "unknown" not in host.text(".note")
    host.show("screen=split&run=a&split=x%7Chead&layer=1")
    assert "At 5 of 5 steps a part is unknown" in host.text(".note")


def test_a_series_is_split_along_its_dimension_and_an_allocation_by_its_groups(host: StandIn) -> None:
    values, run = np.random.default_rng(10).uniform(1, 2, (5, 3, 2)), host.run("a")
    host.series(run, "x", range(5), values, {"layer": None, "head": None})
    labels = ["change", "closing error", "error", "since", "attention", "mlp"]
    groups = np.random.default_rng(11).uniform(-1, 1, (5, 6))
    host.series(run, "allocation", range(5), groups, {"quantity": labels})
    host.tell()
    host.show("screen=split&run=a&split=x%7Clayer")
    found = host.table()
    for layer in range(3):
        near(found[f"layer {layer}"], values[:, layer].mean(1))
    near(found["sum of the parts"], values.mean(2).sum(1))
    assert not host.page.get_by_label("Layer").is_visible()  # layers are the parts
    host.show("screen=split&run=a&split=x%7Chead&layer=2")
    near(host.table()["head 1"], values[:, 2, 1])
    host.show("screen=split&run=a&split=allocation")
    found = host.table()
    assert list(found) == ["step", "attention", "mlp", "sum of the parts"]
    near(found["mlp"], groups[:, 5])


def test_no_attribute_is_a_word_for_nothing(host: StandIn) -> None:
    """`hidden="false"` hides, and `title="null"` is read aloud."""
    host.series(host.run("a"), "x", range(3), np.ones((3, 2, 2)), {"layer": None, "head": None})
    host.tell()
    words = """() => [...document.querySelectorAll('#cell *')].flatMap((one) => [...one.attributes])
      .filter((one) => /^(null|undefined)$/.test(one.value) || (one.value === 'false' && !/^aria-|^spellcheck$/.test(one.name)))
      .map((one) => `${one.ownerElement.outerHTML.slice(0, 99)}: ${one.name}`)"""  # noqa: E501
    for screen in ("runs", "curves", "heads", "split", "claims"):
        host.show(f"screen={screen}")
        assert host.page.evaluate(words) == [], screen


# Claims

VERDICTS = (
    "holds", "holds as corrected", "only qualitative", "mixed", "not above its control", "undecided", "fails",
    "at paper scale", "not run",
)  # fmt: skip


def finding(verdict: str, size: str) -> dict[str, str]:
    return {"verdict": verdict, "told": f"{verdict}, {size}", "brief": f"brief {size}", "command": f"joma {size}"}


def ledger() -> list[dict[str, Any]]:
    return [
        {
            "id": f"claim-{at}", "source": f"Thm {at}", "says": f"number {at} of {verdict}", "study": "none",
            "expected": "yes", "uses": [f"claim-{at - 1}"] if at else [],
            "quick": finding(VERDICTS[(at + 3) % len(VERDICTS)], "quick"), "paper": finding(verdict, "paper"),
        }
        for at, verdict in enumerate(VERDICTS)
    ]  # fmt: skip


def test_claims_have_the_verdict_of_paper_scale_in_its_colour(host: StandIn) -> None:
    host.claims = ledger()
    host.show("screen=claims")
    best = [*VERDICTS[:-1], VERDICTS[2]]  # of what did not run at paper scale the quick verdict counts
    told = [f"{verdict}, paper" for verdict in VERDICTS[:-1]] + [f"{VERDICTS[2]}, quick"]
    assert host.texts("summary .verdict") == told
    code = "() => [...document.querySelectorAll('summary .verdict')].map((one) => getComputedStyle(one).color)"
    for found, verdict in zip(host.page.evaluate(code), best, strict=True):
        assert found == "rgb({}, {}, {})".format(*host.colour(verdict.replace(" ", "-"))), verdict
    counts = {verdict: best.count(verdict) for verdict in VERDICTS if verdict in best}
    assert host.texts(".chip") == [f"{verdict} {count}" for verdict, count in counts.items()]
    host.show("screen=claims&find=only+paper+number")  # every word, and only in what a claim says
    assert host.text("main .count[role]") == "0 of 9 claims"
    host.show("screen=claims&find=NUMBER+qualitative")
    assert host.texts("summary .name") == ["claim-2"]
    assert host.texts(".chip") == ["only qualitative 1"]
    host.show("screen=claims&verdict=mixed&verdict=only+qualitative")
    assert host.texts("summary .name") == ["claim-2", "claim-3", "claim-8"]
    host.page.locator(".chip", has_text="mixed").click()
    host.settled()
    assert [value for name, value in host.hash() if name == "verdict"] == ["only qualitative"]


def test_a_claim_shows_both_scales_and_what_rests_on_what(host: StandIn) -> None:
    host.claims = ledger()
    host.show("screen=claims&claim=claim-3")
    sides = host.texts("details[open] .sides section")
    assert sides == ["quick scalefails, quickbrief quick", "paper scalemixed, paperbrief paper"]
    links = [text for text in host.texts("details[open] .detail > p") if ":" in text]
    assert links == ["Expected: yes", "Rests on: claim-2", "Used by: claim-4"]
    assert host.text("details[open] code") == "joma quick"
    host.page.get_by_role("button", name="claim-4").click()
    host.settled()
    assert dict(host.hash())["claim"] == "claim-4"
    host.page.go_back()
    host.settled()
    assert dict(host.hash())["claim"] == "claim-3"  # it was a step
