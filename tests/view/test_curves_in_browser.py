"""What the screen of curves shows, against numpy and scipy: means, bands, zooms, growth, and what is read off."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import stats
from view.stand_in import StandIn, near


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n, mean = len(values), values.mean(0)
    low, high = stats.t.interval(0.99 if n <= 4 else 0.95, n - 1, loc=mean, scale=stats.sem(values, axis=0))
    return mean, low, high


def test_runs_together_by_name_with_the_interval_of_scipy(host: StandIn) -> None:
    """The runs have other steps and another number of heads; what has the same name belongs together."""
    draw, steps = np.random.default_rng(0), {"a": [2, 10, 30], "b": [2, 10, 30, 100], "c": [10, 30, 100]}
    values = {name: draw.normal(5, 1, (len(some), 2, 3 if name == "a" else 2)) for name, some in steps.items()}
    for name, some in steps.items():
        host.series(host.run(name), "entropy", some, values[name], {"layer": None, "head": None})
    host.tell()
    host.show("screen=curves&run=a&run=b&run=c&by.layer=each&by.head=each&together=1")
    found = host.table()
    assert found["step"].tolist() == [2, 10, 30, 100]
    names = [f"layer {layer}, head {head}" for layer in range(2) for head in range(3)]
    assert {name for name in found if name[-1].isdigit()} == set(names)
    for layer, head in np.ndindex(2, 2):
        label = f"layer {layer}, head {head}"
        for at, step in enumerate([2, 10, 30, 100]):
            some = [values[run][steps[run].index(step), layer, head] for run in steps if step in steps[run]]
            near([found[name][at] for name in (label, f"{label} low", f"{label} high")], interval(np.array(some)))
    near(found["layer 1, head 2"][:3], values["a"][:, 1, 2])
    assert "99 % interval of the mean over 3 runs" in host.text(".note")
    host.show("screen=curves&run=c&run=a&by.layer=1&by.head=mean")
    assert host.legend() == {
        name: (f"{values[run][-1, 1].mean():.4g}", colour)
        for name, run, colour in (
            ("c · layer 1", "c", "rgb(2, 110, 208)"),
            ("a · layer 1", "a", "rgb(187, 126, 15)"),
        )
    }


def test_bands_are_smoothed_as_their_mean_is(host: StandIn) -> None:
    values = np.random.default_rng(1).normal(size=(30, 3, 2)) + np.linspace(0, 4, 30)[:, None, None]
    host.series(host.run("a"), "loss", range(30), values, {"network": None, "seed": None})
    host.tell()
    host.show("screen=curves&run=a")  # repetitions, unless somebody asks otherwise
    assert "95 % interval of the mean over 6 repetitions" in host.text(".note")
    raw = interval(values.reshape(30, 6).T)
    near(list(host.table().values())[1:], raw)
    host.show("screen=curves&run=a&smooth=0.8")
    found = list(host.table().values())[1:]
    weights = 0.8 ** np.arange(30)
    for column, plain in zip(found, raw, strict=True):
        near(column, [weights[: t + 1][::-1] @ plain[: t + 1] / weights[: t + 1].sum() for t in range(30)])
    slider = host.page.get_by_label("Smoothing")
    assert [slider.get_attribute(name) for name in ("min", "max", "step")] == ["0", "0.99", "0.01"]  # 1 has no mean
    host.series(host.run("b"), "loss", range(30), values[:, :2, 0], {"network": None})
    host.tell()
    host.show("screen=curves&run=b")
    assert "99 % interval of the mean over 2 repetitions" in host.text(".note")


def test_gaps_are_counted_and_no_part_of_means(host: StandIn) -> None:
    values = np.random.default_rng(2).normal(size=(6, 2, 3))
    values[2, 0, 1], values[3, 1], values[5, 1], values[4, 0, 0] = np.nan, np.nan, np.nan, np.inf
    host.series(host.run("a"), "entropy", range(0, 60, 10), values, {"layer": None, "head": None})
    host.tell()
    host.show("screen=curves&run=a&by.head=mean")
    real = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        wanted = np.where(real, values, 0).sum(2) / real.sum(2)
    found = host.table()
    near(found["layer 0"], wanted[:, 0])
    near(found["layer 1"], wanted[:, 1])
    assert host.text(".note") == f"{(~real).sum()} numbers recorded as NaN or infinite: gaps."
    assert host.legend()["layer 1"][0] == f"{wanted[4, 1]:.4g}".replace("-", "−")  # the last that is a number


def test_log_axes_say_what_they_cannot_show(host: StandIn) -> None:
    values = np.array([[3.0, 1.0], [0.0, 2.0], [-1.0, 4.0], [9.0, 8.0]])
    host.series(host.run("a"), "loss", range(0, 40, 10), values, {"layer": None})
    host.tell()
    cannot = "A log axis cannot show {} at 0 or below."
    for words, wanted in (
        ("", ""), ("&logx=1", cannot.format("2 points")), ("&logy=1", cannot.format("2 points")),
        ("&logx=1&logy=1", cannot.format("4 points")), ("&logx=1&low=5&high=40", ""),
        ("&logy=1&low=15&high=40", cannot.format("1 point")), ("&x=layer&logx=1", cannot.format("1 point")),
    ):  # fmt: skip
        host.show(f"screen=curves&run=a{words}")
        assert host.text(".note") == wanted, words
    host.show("screen=curves&run=a&logx=1")
    host.page.get_by_role("button", name="layer 1").click()
    host.settled()
    assert host.text(".note") == cannot.format("1 point")  # of what is not hidden


def test_marks_are_those_of_the_measure_and_of_steps(host: StandIn) -> None:
    alarms = [{"step": 10, "measure": "logit", "layer": "x", "head": 1, "says": "step 10: too large"}]
    run = host.run("a", alarms=alarms, left_out=[{"step": 30, "says": "step 30 was cut"}])
    for name in ("logit", "loss"):
        host.series(run, name, range(0, 50, 10), np.ones((5, 2)), {"layer": ["x", "y"]})
    host.tell()
    notes = {}
    for words in ("series=logit", "series=loss", "series=logit&x=layer"):
        host.show(f"screen=curves&run=a&{words}")
        notes[words] = host.text(".note")
        if "x=" not in words:
            picture = host.pixels(".chart canvas")[..., :3]
            height = len(picture)
            columns = {  # lines from the bottom to the top
                name: np.flatnonzero((np.abs(picture - host.colour(name)).max(2) < 8).sum(0) > height / 2)
                for name in ("fails", "not-run")
            }
            assert len(columns["fails"]) == ("logit" in words)
            assert len(columns["not-run"]) == 1
            assert words == "series=loss" or columns["fails"][0] < columns["not-run"][0]
    grey = "Grey lines: checkpoints that were left out."
    assert list(notes.values()) == [f"Red lines: alarms. {grey}", grey, ""]


def lines_of(picture: np.ndarray, colour: list[int]) -> np.ndarray:
    share = (np.abs(picture - colour).max(2) < 40).mean(0)
    return np.flatnonzero(share > 0.6)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_saved_picture_has_the_lines_of_the_screen(host: StandIn, theme: str) -> None:
    alarms = [{"step": at, "measure": "logit", "layer": "x", "head": 1, "says": ""} for at in (30, 40, 40)]
    alarms.append({"step": 20, "measure": "loss", "layer": "x", "head": 1, "says": ""})
    run = host.run("a", alarms=alarms, left_out=[{"step": 10, "says": "step 10 was cut"}])
    host.series(run, "logit", range(0, 60, 10), np.linspace(1, 2, 6))
    host.tell()
    host.page.emulate_media(color_scheme=theme)
    try:
        host.show("screen=curves&run=a")
        red, grey = host.colour("fails"), host.colour("not-run")
        for words, seen in (("", (0, 50)), ("&low=25&high=45", (25, 45)), ("&low=0&high=100", (0, 100))):
            host.show(f"screen=curves&run=a{words}")
            begin, end = seen
            picture, svg = host.saved_pixels(), host.saved("SVG")
            assert len(picture) == 2 * float(re.search(r'height="(\d+)" viewBox', svg)[1])
            for colour, steps in ((red, (30, 40)), (grey, (10,))):
                there = [2 * (74 + (step - begin) / (end - begin) * 668) for step in steps if begin <= step <= end]
                found = lines_of(picture, colour)
                assert len(found) <= 2 * len(there)  # two pixels wide: a picture is twice as fine
                assert all(np.abs(found - place).min() <= 1 for place in there)
            names = re.findall(r'v13" stroke="rgb\(([^"]+)\)"/><text [^>]*>([^<]*)</text>', svg)
            wanted = [(red, "alarms"), (grey, "checkpoints that were left out")]
            assert [([int(one) for one in colour.split(",")], says) for colour, says in names] == wanted[
                : 1 + (begin < 10)
            ]
    finally:
        host.page.emulate_media(color_scheme="light")


def test_lines_follow_alarms_though_a_page_is_told_of_the_last_ones_only(host: StandIn) -> None:
    """Their number stays, so only their count in all tells that there are others."""

    def told(first: int) -> list[dict[str, object]]:
        return [{"step": at, "measure": "loss", "layer": None, "head": None, "says": ""} for at in (first, first + 10)]

    run = host.run("a", state="being written", alarms=told(10), alarm_count=1500)
    other = host.run("b", alarms=told(0))
    for each in (run, other):
        host.series(each, "loss", range(0, 100, 10), np.ones(10))
    host.tell()
    host.show("screen=curves&run=a")
    assert host.text(".note") == "Red lines: alarms among the last 2 of 1,500."
    assert "alarms among the last 2 of 1,500" in host.saved("SVG")
    before = lines_of(host.pixels(".chart canvas")[..., :3], host.colour("fails"))
    host.write(run, "loss", [92], [1.0])  # where room was left: the curve gets a tail
    host.runs[0] = {**host.runs[0], "alarms": told(50), "alarm_count": 1501}
    host.tell()
    after = lines_of(host.pixels(".chart canvas")[..., :3], host.colour("fails"))
    assert len(before) == len(after) == 2
    assert after[0] > before[-1]
    host.show("screen=curves&run=a&run=b")
    assert host.text(".note") == "Red lines: alarms among the last 4 of 1,503."
    host.show("screen=curves&run=b")
    assert host.text(".note") == "Red lines: alarms."


def test_a_saved_log_axis_lies_near_its_numbers(host: StandIn) -> None:
    host.series(host.run("a"), "loss", range(0, 60, 10), np.linspace(3.1, 3.3, 6))
    host.tell()
    host.show("screen=curves&run=a&logy=1")
    ticks = re.findall(r'text-anchor="end">([^<]*)</text>', host.saved("SVG"))
    assert ticks == ["3.10", "3.15", "3.20", "3.25", "3.30"]


def test_the_axis_has_the_title_of_its_measure_and_curves_the_colours_of_depth(host: StandIn) -> None:
    host.series(host.run("a"), "spread/shared_part", range(3), np.ones((3, 9)), {"layer": None})
    host.tell()
    host.show("screen=curves&run=a")
    assert host.page.locator(".chart").get_attribute("aria-label").startswith("spread of logits: shared part by step,")
    colours = [colour for _, colour in host.legend().values()]
    assert (colours[0], colours[4], colours[-1]) == ("rgb(52, 99, 226)", "rgb(215, 67, 150)", "rgb(171, 136, 14)")


def test_a_zoom_keeps_its_digits_and_ends_with_the_screen(host: StandIn) -> None:
    host.series(host.run("a"), "loss", [0, 123_457, 1_234_567], [1.0, 2.0, 3.0])
    host.tell()
    host.show("screen=curves&run=a")
    host.page.locator(".chart").focus()
    host.press("+")
    words = dict(host.hash())
    assert (float(words["low"]), float(words["high"])) == pytest.approx(
        (308_641.75, 925_925.25), abs=0.06
    )  # seven digits
    host.page.get_by_role("button", name="Heads", exact=True).click()
    host.settled()
    assert [name for name, _ in host.hash()] == ["run", "screen"]


def test_another_series_forgets_places_and_only_what_all_runs_have_is_offered(host: StandIn) -> None:
    one, two = host.run("a"), host.run("b")
    for name in ("entropy", "loss"):
        host.series(one, name, range(4), np.ones((4, 3)), {"layer": None})
    host.series(two, "loss", range(4), np.ones((4, 3)), {"layer": None})
    host.tell()
    host.show("screen=curves&run=a&series=loss&by.layer=2")
    host.choose("Series", "entropy")
    assert not [name for name, _ in host.hash() if name.startswith("by.")]
    host.show("screen=curves&run=a&run=b")
    assert host.texts("select[aria-label=Series] option") == ["loss"]


def test_along_a_dimension_one_step_is_shown_and_takes_no_room(host: StandIn) -> None:
    values = np.random.default_rng(3).normal(size=(40, 4, 3))
    host.series(host.run("a"), "entropy", range(40), values, {"layer": None, "head": None})
    host.points = 10  # so it is thinned
    host.tell()
    host.show("screen=curves&run=a&x=layer&by.head=each")
    near([host.table()[f"step 39, head {head}"] for head in range(3)], values[-1].T)
    assert "each of 40" in host.texts("option")
    host.show("screen=curves&run=a&x=head")
    assert list(host.table()) == ["head", *(f"step 39, layer {layer}" for layer in range(4))]
    host.show("screen=curves&run=a&x=layer&by.head=0&by.step=mean")
    kept = np.linspace(0, 39, 10).round().astype(int)  # whole steps, and no mean of extremes
    near(host.table()["head 0"], values[kept, :, 0].mean(0))
    assert host.text(".note") == "Thinned to 10 of 40 steps: whole steps, evenly spread."


# Curves that are thinned


@pytest.fixture
def long(host: StandIn) -> tuple[StandIn, np.ndarray]:
    values = np.random.default_rng(4).normal(size=(400, 2, 3))
    host.series(host.run("a", state="being written"), "x", range(400), values, {"layer": None, "head": None})
    host.points = 60
    host.tell()
    return host, values


def test_means_and_intervals_are_made_before_anything_is_thinned(long: tuple[StandIn, np.ndarray]) -> None:
    host, values = long
    host.show("screen=curves&run=a&series=x&by.layer=each&by.head=mean")
    found, means = host.table(), values.mean(2)
    for layer in range(2):
        one = found[f"layer {layer}"]
        assert 50 < len(one) <= 60
        assert np.abs(one[:, None] - means[:, layer]).min(1).max() < 1e-6  # each is the mean of some step
        near((one.min(), one.max()), (means[:, layer].min(), means[:, layer].max()))
    host.show("screen=curves&run=a&series=x&by.layer=mean&by.head=mean")
    (only,) = [column for name, column in host.table().items() if name != "step"]
    assert np.abs(only[:, None] - values.mean((1, 2))).min(1).max() < 1e-6
    host.show("screen=curves&run=a&series=x&by.layer=1&by.head=interval")
    found = host.table()
    at = found.pop("step").astype(int)
    near(list(found.values()), interval(values[at, 1].T))


def test_a_zoom_has_the_numbers_of_its_place_and_grows(long: tuple[StandIn, np.ndarray]) -> None:
    host, values = long
    for low, high in ((100, 120), (200, 230), (380, 420)):
        host.show(f"screen=curves&run=a&series=x&by.layer=each&by.head=mean&low={low}&high={high}")
        found, last = host.table(), min(high, 399)
        assert found["step"].tolist() == list(range(low, last + 1))
        for layer in range(2):
            near(found[f"layer {layer}"], values[low : last + 1, layer].mean(1))
    host.show("screen=curves&run=a&series=x&by.layer=each&by.head=mean&low=50&high=350")  # thinned in turn
    found, means = host.table(), values[50:351].mean(2)
    for layer in range(2):
        assert np.abs(found[f"layer {layer}"][:, None] - means[:, layer]).min(1).max() < 1e-6
    host.show("screen=curves&run=a&series=x&by.layer=each&by.head=mean&low=380&high=420")
    more = np.random.default_rng(5).normal(size=(30, 2, 3))
    host.write(host.runs[0], "x", range(400, 430), more)
    host.tell()
    near(host.table()["layer 1"], np.concatenate([values[380:], more[:21]])[:, 1].mean(1))
    host.show("screen=curves&run=a&series=x&by.layer=each&by.head=mean")
    assert "of 430 steps" in host.text(".note")


# Growth


def test_growth_asks_for_new_rows_once_and_puts_late_ones_in_their_place(host: StandIn) -> None:
    run = host.run("a", state="being written")
    values = np.random.default_rng(6).normal(size=(12, 2, 3))
    host.series(run, "x", range(4), values[:4], {"layer": None, "head": None})
    host.tell()
    host.show("screen=curves&run=a&by.layer=1&by.head=2")
    for steps in ([4, 5], [9, 7], [8, 6, 10], [11]):
        host.asked.clear()
        host.write(run, "x", steps, values[steps])
        host.tell()
        assert [(one["ask"], one["series"]) for one in host.asked] == [("after", "x")]
        found, there = host.table(), sorted(host.rows["a", "x"][0])
        assert found["step"].tolist() == there
        near(found["layer 1, head 2"], values[there, 1, 2])
    host.asked.clear()
    host.tell()
    assert host.asked == []  # nothing is new


def test_growth_of_means_a_count_that_is_told_and_a_new_start_when_far_behind(host: StandIn) -> None:
    run = host.run("a", state="being written")
    values = np.random.default_rng(7).normal(size=(2700, 3))
    host.series(run, "x", range(300), values[:300], {"head": None})
    host.points = 50
    host.tell()
    host.show("screen=curves&run=a&by.head=mean")
    host.write(run, "x", range(300, 310), values[300:310])
    host.asked.clear()
    host.tell()
    assert ("after", ["head"]) in [(one["ask"], one.get("means")) for one in host.asked]
    (means,) = [column for name, column in host.table().items() if name != "step"]
    near(means[-10:], values[300:310].mean(1))
    assert "of 310 steps" in host.text(".note")
    host.write(run, "x", range(310, 2700), values[310:])
    host.asked.clear()
    host.tell()
    assert "after" not in [one["ask"] for one in host.asked]  # all is thinned again, and not sent
    assert len(host.table()["step"]) <= 50


def test_rows_that_nobody_asked_for_fit_or_are_left(host: StandIn) -> None:
    run = host.run("a", state="being written")
    values = np.random.default_rng(8).normal(size=(10, 2))
    host.series(run, "x", range(4), values[:4], {"head": None})
    host.tell()
    host.show("screen=curves&run=a&by.head=1")
    host.write(run, "x", range(4, 10), values[4:])
    seen = []
    for cursor, means in ((6, ()), (4, ("head",)), (4, ()), (4, ())):  # after a gap; of means; those that fit; again
        host.push("a", "x", cursor, means)
        seen.append(host.table()["step"].tolist())
    assert seen == [list(range(4)), list(range(4)), list(range(10)), list(range(10))]
    near(host.table()["head 1"], values[:, 1])


def test_another_run_in_the_same_place_and_a_scan_whose_rows_come_again(host: StandIn) -> None:
    run = host.run("a")
    host.series(run, "x", range(3), [1.0, np.nan, 3.0])
    host.tell()
    host.show("screen=curves&run=a")
    run["identity"] = "another"
    host.series(run, "x", range(3), [7.0, np.nan, 9.0])
    host.tell()
    assert host.table()["x"].tolist()[::2] == [7.0, 9.0]
    host.again = True
    host.write(run, "x", [3], [10.0])
    host.tell()
    near(host.table()["x"], [7.0, np.nan, 9.0, 10.0])
    assert host.text(".note") == "1 number recorded as NaN or infinite: gaps."


# Reading off


def test_what_is_read_off_is_the_number_with_its_interval(host: StandIn) -> None:
    values = np.arange(4)[:, None, None] * 2.0 + np.array([[0.0, 1.0], [100.0, 104.0]])
    host.series(host.run("a"), "loss", range(0, 40, 10), values, {"layer": None, "seed": None})
    host.tell()
    host.show("screen=curves&run=a")
    wanted = {}
    for at, layer in np.ndindex(4, 2):
        mean, low, high = interval(values[at, layer])
        said = [f"{one:.4g}".replace("-", "−") for one in (mean, low, high)]
        wanted[at, layer] = f"step {10 * at} · layer {layer}: {said[0]} [{said[1]}, {said[2]}]"
    area = host.page.locator(".u-over").bounding_box()
    for at, layer in np.ndindex(4, 2):  # bands reach from -31 to 235: layer 0 lies below, layer 1 in the middle
        x, y = 1 + at / 3 * (area["width"] - 2), area["height"] * (0.9 - 0.4 * layer)
        host.page.mouse.move(area["x"] + x, area["y"] + y)
        host.settled()
        assert host.text(".reading") == wanted[at, layer]
    host.page.mouse.move(5, 5)
