"""What pages are told: the index of runs, numbers, new rows behind a cursor, claims. Nothing in the folder changes."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from view.making import NASTY, grid, heads

from joma.runs import Run, RunError, following
from joma.runs.tail import held, rows_after
from joma.view.feed import Feed, Unknown


def entry(feed, id):
    return next(run for run in feed.index()["runs"] if run["id"] == id)


def test_the_index_tells_what_is_there(folder):
    feed = Feed([folder])
    index = feed.index()
    ids = {run["id"] for run in index["runs"]}
    assert {"monitored.joma", "heads.joma", "nasty.joma"} < ids
    assert {run["study"] for run in index["runs"]} == {"monitor", "demo", NASTY, "scan", "thm5", "lemma6"}
    assert index["claims"]
    shown = entry(feed, "heads.joma")
    assert shown["state"] == "finished"
    assert shown["last"] == 39
    (series,) = shown["series"]
    assert series | {"cursor": 0} == {
        "name": "entropy",
        "dims": [{"name": "layer", "size": 4, "labels": None}, {"name": "head", "size": 3, "labels": None}],
        "steps": 40,
        "first": 0,
        "last": 39,
        "cursor": 0,
    }
    assert entry(feed, "nasty.joma")["state"] == f"failed: {NASTY}"


def test_alarms_of_a_monitor_and_checkpoints_that_a_scan_left_out(folder):
    feed = Feed([folder])
    shown = entry(feed, "monitored.joma")
    names = [each["name"] for each in shown["series"]]
    assert "entropy" in names
    assert not {"alarms", "steps_taken"} & set(names)
    alarms = shown["alarms"]
    assert alarms
    assert all(one["measure"] == "largest_logit" and one["head"] in range(4) for one in alarms)
    with Run.open(folder / "monitored.joma") as run:
        logits, steps = run.array("largest_logit"), run.steps("largest_logit").tolist()
        layers = run.dims("largest_logit")["layer"]
    for one in alarms:
        assert logits[steps.index(one["step"]), layers.index(one["layer"]), one["head"]] > 0.2
    (scan,) = [run for run in feed.index()["runs"] if run["study"] == "scan"]
    assert [one["step"] for one in scan["left_out"]] == [20]
    assert (shown["alarm_count"], scan["alarm_count"]) == (len(alarms), 0)
    assert scan["series"][0]["name"] == "stable_rank/mlp"
    assert scan["series"][0]["dims"] == [{"name": "layer", "size": 3, "labels": ["layer 0", "layer 1", "layer 2"]}]
    found = feed.series(scan["id"], "stable_rank/mlp")
    assert found.steps.tolist() == [0, 10, 30]
    assert ((found.values > 1) & (found.values < 8)).all()


def test_numbers_are_those_of_the_run(tmp_path):
    heads(tmp_path / "a.joma", 50)
    feed = Feed([tmp_path])
    every = np.stack([grid(step) for step in range(50)])
    found = feed.series("a.joma", "entropy")
    np.testing.assert_array_equal(found.values, every)
    np.testing.assert_array_equal(found.steps, np.arange(50))
    assert not found.head["thinned"]
    means = feed.series("a.joma", "entropy", means=["head"])
    np.testing.assert_allclose(means.values, every.mean(2))
    np.testing.assert_allclose(feed.series("a.joma", "entropy", means=["layer"]).values, every.mean(1))
    part = feed.series("a.joma", "entropy", low=10, high=20)
    assert part.steps.tolist() == list(range(9, 22))  # and the next one on each side
    few = feed.series("a.joma", "entropy", points=10)
    assert few.head["thinned"]
    assert few.head["of"] == 50
    assert len(few.steps) <= 10
    whole = feed.series("a.joma", "entropy", points=10, whole=True)
    np.testing.assert_array_equal(whole.values, every[whole.steps.astype(int)])


def test_a_mean_is_taken_before_anything_is_thinned(tmp_path):
    """Two heads that take turns: their mean never moves, though each has extremes everywhere."""
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        for step in range(400):
            run.append("x", step, np.array([step % 2, 1 - step % 2], float), dims=("head",))
    found = Feed([tmp_path]).series("a.joma", "x", points=20, means=["head"])
    np.testing.assert_array_equal(found.values, np.full(len(found.steps), 0.5))


def test_only_new_rows_come_behind_a_cursor_in_whatever_order_they_are_written(tmp_path, monkeypatch):
    feed = Feed([tmp_path])
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        for step in (10, 30):
            run.record(step, {"loss": float(step), "other": [1.0, 2.0]})
        first = feed.series("a.joma", "loss")
        cursor = entry(feed, "a.joma")["series"][0]["cursor"]
        assert first.head["cursor"] == cursor
        run.record(20, {"loss": 20.0, "other": [3.0, 4.0]})
        run.append("loss", 40, 40.0)
        now = entry(feed, "a.joma")["series"][0]
        assert (now["steps"], now["first"], now["last"]) == (4, 10, 40)
        assert now["cursor"] > cursor
        monkeypatch.setattr(Run, "array", None)  # the history is not read again
        new = feed.after("a.joma", "loss", cursor)
        assert new.steps.tolist() == [20, 40]
        assert new.values.tolist() == [20.0, 40.0]
        assert new.head["cursor"] == now["cursor"]
        assert feed.after("a.joma", "loss", now["cursor"]).steps.tolist() == []
        assert feed.after("a.joma", "other", cursor + 1).values.tolist() == [[3.0, 4.0]]


def test_a_commit_that_came_amid_a_look_is_found_though_nothing_is_written_after_it(tmp_path, monkeypatch):
    """SQLite's file is there before its rows are: a look in between sees the new file and the old rows."""
    feed, now = Feed([tmp_path]), following.time_ns()
    monkeypatch.setattr(following, "time_ns", lambda: now)
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        run.append("loss", 0, 1.0)
        before, mark = entry(feed, "a.joma"), following.mark_of(run.path)
        run.append("loss", 1, 2.0)
        feed._runs["a.joma"].mark = following.mark_of(run.path)  # as such a look leaves it behind
        assert following.mark_of(run.path) != mark
        assert entry(feed, "a.joma") is before
        now += 3_600 * 10**9
        assert entry(feed, "a.joma")["last"] == 1
        told, settled = entry(feed, "a.joma"), following.mark_of(run.path)
        now += 3_600 * 10**9
        assert following.mark_of(run.path) == settled
        feed._runs["a.joma"].mark = None
        assert entry(feed, "a.joma") is told  # read again, but nothing of it is news


def test_what_is_counted_again_is_what_is_counted_at_once(tmp_path):
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        known = held(run)
        for step in (5, 3, 9, 1):
            run.record(step, {"a": float(step)} | ({"b": 2.0} if step > 4 else {}))
            known = held(run, known)
        assert known == held(run)
        assert (known["a"].steps, known["a"].first, known["a"].last) == (4, 1, 9)
        assert (known["b"].steps, known["b"].first, known["b"].last) == (2, 5, 9)
        assert rows_after(run, "a", 0)[0] == [5, 3, 9, 1]


def test_a_series_that_changes_its_kind_or_is_named_late_is_described_anew(tmp_path):
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        first = {"kind": np.float32(1), "shape": [1.0], "named": [1.0, 2.0], "same": [1.0]}
        run.record(0, first, dims={"same": ("layer",)})
        known = held(run)
        run.describe("named", ("head",))
        run.record(1, {"kind": np.int64(2), "shape": [1.0, 2.0], "named": [1.0, 2.0], "same": [2.0]})
        now = held(run, known)
        assert now == held(run)
        assert (now["kind"].dtype, now["shape"].shape, list(now["named"].dims)) == ("int64", (2,), ["head"])


@pytest.mark.parametrize(("new", "reads_all"), [([2, 3], False), ([3, 2], True), ([0], True), ([2.5], True)], ids=str)
def test_of_a_series_that_grows_only_new_rows_are_read_unless_they_belong_elsewhere(
    tmp_path, monkeypatch, new, reads_all
):
    """Steps before the last one, and numbers of another kind, are put in their place by reading all."""
    feed, whole, real = Feed([tmp_path]), [], Run.array
    monkeypatch.setattr(Run, "array", lambda run, name: whole.append(name) or real(run, name))
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        run.append("loss", 1, np.float32(1.0))
        assert feed.numbers("a.joma", "loss")[1].tolist() == [1.0]
        for step in new:
            run.append("loss", int(step), np.float32(step) if step == int(step) else np.float64(step))
        feed.index()
        steps, values = feed.numbers("a.joma", "loss")
        assert len(whole) == 1 + reads_all
        np.testing.assert_array_equal(steps, run.steps("loss"))
        np.testing.assert_array_equal(values, real(run, "loss"))
        assert values.dtype == real(run, "loss").dtype
        run.append("loss", 9, np.float64(9.0))
        assert feed.series("a.joma", "loss").values[-1] == 9.0


def test_another_run_under_the_same_name_is_another(tmp_path):
    heads(tmp_path / "a.joma", 5)
    feed = Feed([tmp_path])
    before = entry(feed, "a.joma")["identity"]
    assert feed.series("a.joma", "entropy").steps[-1] == 4
    with (tmp_path / "a.joma").open("rb"):  # so that the next file cannot get its place on the disk
        Run.delete(tmp_path / "a.joma")
        heads(tmp_path / "b.joma", 9, layers=2)
        (tmp_path / "b.joma").rename(tmp_path / "a.joma")
    assert entry(feed, "a.joma")["identity"] != before
    assert feed.series("a.joma", "entropy").values.shape == (9, 2, 3)


def test_damage_is_told_and_stops_nothing(tmp_path):
    heads(tmp_path / "a.joma", 5)
    heads(tmp_path / "b.joma", 5)
    feed = Feed([tmp_path])
    feed.index()
    content = (tmp_path / "a.joma").read_bytes()
    (tmp_path / "a.joma").write_bytes(content[: len(content) // 2])
    assert "damaged or cut off" in entry(feed, "a.joma")["fault"]
    with pytest.raises(RunError, match="damaged or cut off"):
        feed.series("a.joma", "entropy")
    assert feed.series("b.joma", "entropy").head["of"] == 5
    (tmp_path / "a.joma").write_bytes(content)
    assert feed.series("a.joma", "entropy").head["of"] == 5


@pytest.mark.parametrize("id", ["../a.joma", "/etc/passwd", "sub/../a.joma", "", "A.JOMA", "a.joma\0"])
def test_only_what_was_found_can_be_asked_for(tmp_path, id):
    inside = tmp_path / "inside"
    inside.mkdir()
    heads(tmp_path / "a.joma", 3)
    heads(inside / "b.joma", 3)
    with pytest.raises(Unknown, match="there is no run"):
        Feed([inside]).series(id, "entropy")
    with pytest.raises(Unknown, match="has no series"):
        Feed([inside]).series("b.joma", "loss")


def test_runs_of_several_folders_have_names_of_their_own(tmp_path):
    for name in ("one", "two", "deep/one"):
        (tmp_path / name).mkdir(parents=True)
        heads(tmp_path / name / "a.joma", 3)
    feed = Feed([tmp_path / "one", tmp_path / "two", tmp_path / "deep" / "one", tmp_path / "one" / "a.joma"])
    assert [run["id"] for run in feed.index()["runs"]] == ["one/a.joma", "two/a.joma", "one/a.joma (2)", "a.joma"]


@pytest.mark.parametrize(("whole", "wanted"), [("1", True), (True, True), ("0", False), (None, False)])
def test_a_question_is_asked_in_the_words_of_an_address_or_of_a_widget(tmp_path, whole, wanted):
    heads(tmp_path / "a.joma", 40)
    feed, asked = Feed([tmp_path]), {"run": "a.joma", "series": "entropy"}
    found = feed.answer("series", {**asked, "points": "8", "whole": whole})
    assert found.steps.tolist() == feed.series("a.joma", "entropy", points=8, whole=wanted).steps.tolist()
    assert found.steps.tolist() != feed.series("a.joma", "entropy", points=8, whole=not wanted).steps.tolist()
    assert feed.answer("series", {**asked, "low": "3", "high": 5.0}).steps.tolist() == [2, 3, 4, 5, 6]


def test_steps_of_different_shapes_are_one_sentence(tmp_path):
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        run.append("x", 0, [1.0])
        run.append("x", 1, [1.0, 2.0])
    with pytest.raises(RunError, match="different shapes"):
        Feed([tmp_path]).series("a.joma", "x")


def test_claims_are_those_of_the_ledger_with_paper_scale_beside(folder):
    from joma.claims.ledger import read_findings
    from joma.report.claims.kept import kept_of

    claims = Feed([folder], kept=kept_of).claims()
    findings = read_findings(folder / "findings.json")
    assert [claim["id"] for claim in claims] == [finding.id for finding in findings]
    for claim, finding in zip(claims, findings, strict=True):
        assert claim["quick"]["verdict"] == finding.verdict
        assert claim["quick"]["command"] == finding.command
        kept = kept_of(finding.id, finding.claim)
        assert (claim["paper"] and claim["paper"]["verdict"]) == (kept and kept.verdict)
    assert any(claim["paper"] for claim in claims)


def test_records_of_paper_scale_stand_at_paper_scale():
    records = Path(__file__).parents[2] / "results"
    claims = Feed([records / "fig6"]).claims()
    assert claims
    assert all(claim["quick"] is None and claim["paper"]["verdict"] for claim in claims)


@pytest.mark.parametrize(("how", "size", "other"), [("", "quick", "paper"), (" --scale paper", "paper", "quick")])
def test_a_claim_that_was_not_run_stands_at_the_size_of_its_study(tmp_path, monkeypatch, how, size, other):
    """Its command is what would judge it, at paper scale; the study was run as the command of the other one says."""
    from joma.claims.contract import Claim
    from joma.claims.verdicts import by_residual, not_run

    claims = [Claim(name, "JoMA Thm 2", f"Claim {name}.") for name in "ab"]
    judged = by_residual(claims[0], printed=0.0, tolerance=1e-9, expected="zero")
    waiting = not_run(claims[1], "zero", "no GPU here", "joma verify thm2 --scale paper")
    found = [replace(judged, study="thm2", command=f"joma verify thm2{how}"), replace(waiting, study="thm2")]
    (tmp_path / "findings.json").write_text("{}")
    monkeypatch.setattr("joma.claims.ledger.read_findings", lambda _: found)
    shown = Feed([tmp_path], kept=lambda *_: judged).claims()
    assert [one[size]["verdict"] for one in shown] == ["holds", "not run"]
    beside = None if size == "paper" else ["holds", "holds"]  # what is kept stands beside a quick one alone
    assert [one[other] and one[other]["verdict"] for one in shown] == (beside or [None, None])


def test_a_damaged_ledger_is_told(tmp_path):
    (tmp_path / "findings.json").write_text("{")
    (claim,) = Feed([tmp_path]).claims()
    assert "cannot be read as findings" in claim["fault"]


def test_nothing_in_the_folder_changes(tmp_path):
    heads(tmp_path / "a.joma", 5)

    def contents():
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}

    before = contents()
    feed = Feed([tmp_path])
    feed.index()
    feed.series("a.joma", "entropy")
    feed.after("a.joma", "entropy", 2)
    assert contents() == before


def test_titles_are_those_of_the_registry():
    """Where it fails, `python docs/view_titles.py` builds them anew."""
    from joma.measure.registry import MEASURES

    assert Feed([]).titles() == {name: measure.axis for name, measure in MEASURES.items()}


def test_a_monitored_run_is_shown_without_torch(tmp_path):
    """Loading it takes seconds, in which a page should be open."""
    heads(tmp_path / "a.joma", 5)
    code = (
        "import sys; from pathlib import Path;"
        "from joma.view.server import application; from joma.view.feed import Feed;"
        "feed = Feed([Path(sys.argv[1])]); feed.index(); feed.series('a.joma', 'entropy'); feed.titles();"
        "application(feed, token='t', port=1, every=1.0); assert 'torch' not in sys.modules"
    )
    pytest.importorskip("starlette")
    subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], check=True)


def test_a_checkpoint_that_comes_between_others_is_told(tmp_path):
    config = {"source": "a/b", "model_type": "gpt2", "groups": {"mlp": ["h.0.mlp.c_fc.weight"]}}
    with Run.create(tmp_path / "scan.sqlite", study="scan", config=config) as run:
        for step in (0, 20):
            run.record(step, {"stable_rank/mlp": np.array([4.0 + step])})
        feed = Feed([tmp_path])
        before = entry(feed, "scan.sqlite")["series"][0]["cursor"]
        run.record(10, {"stable_rank/mlp": np.array([14.0])})
        assert entry(feed, "scan.sqlite")["series"][0]["cursor"] > before
        assert 10 in feed.after("scan.sqlite", "stable_rank/mlp", before).steps


def test_what_is_remembered_of_a_long_series_is_that_of_its_last_row(tmp_path):
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        for step in range(2100):
            run.append("loss", step, float(step))
        feed = Feed([tmp_path])
        first = feed.series("a.joma", "loss")
        assert feed.series("a.joma", "loss") is first
        assert feed.series("a.joma", "loss", points=50).head["of"] == 2100
        run.append("loss", 2100, 7.0)
        assert feed.series("a.joma", "loss").values[-1] == 7.0


def test_figures_are_those_of_the_study_drawn_from_the_run(folder):
    pytest.importorskip("matplotlib")
    from joma.claims.execute import draw
    from joma.studies import load

    for path in (folder / "runs").iterdir():  # what was written just now is looked at again
        os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns - 10**10))
    before = {path.name: path.stat().st_mtime_ns for path in sorted((folder / "runs").iterdir())}
    feed = Feed([folder], compact=lambda svg: svg.replace("<svg", "<svg data-small='1'", 1))
    run = next(run for run in feed.index()["runs"] if run["study"] == "thm5")
    found = feed.figures(run["id"])
    with Run.open(next((folder / "runs").glob("thm5-*"))) as record:
        wanted = draw(load("thm5"), record)
    assert [(one["name"], one["caption"], one["alt"]) for one in found] == [
        (one.name, one.caption, one.alt) for one in wanted
    ]
    assert found
    for one in found:
        opening = one["svg"].partition(">")[0]
        assert opening.count('xmlns="http://www.w3.org/2000/svg"') == 1
        assert "data-small" in opening
    assert feed.figures(run["id"]) is found  # drawn once
    assert feed.figures("heads.joma") == []  # no study of joma
    assert {path.name: path.stat().st_mtime_ns for path in sorted((folder / "runs").iterdir())} == before


def test_figures_that_cannot_be_drawn_are_one_sentence(tmp_path):
    pytest.importorskip("matplotlib")
    with Run.create(tmp_path / "a.joma", study="thm5", config={}) as run:
        run.append("x", 0, 1.0)
        run.finish()
    with pytest.raises(RunError, match=r"the figures of a\.joma cannot be drawn|has no"):
        Feed([tmp_path]).figures("a.joma")
    with pytest.raises(Unknown):
        Feed([tmp_path]).figures("b.joma")


def test_what_is_remembered_is_the_answer_to_that_very_question(tmp_path):
    """A series that is long enough to be remembered, asked for in several ways, each twice."""
    every = np.stack([np.arange(2100.0), 3 - np.arange(2100.0)], 1)
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        for step, both in enumerate(every):
            run.append("x", step, both, dims=("head",))
    feed = Feed([tmp_path])
    for _ in range(2):
        thinned = feed.series("a.joma", "x", points=8)
        assert thinned.steps[3] - thinned.steps[2] == 1  # where one stretch ends the next begins
        whole = feed.series("a.joma", "x", points=8, whole=True)
        assert whole.steps.tolist() == [0, 300, 600, 900, 1199, 1499, 1799, 2099]
        np.testing.assert_array_equal(whole.values, every[whole.steps.astype(int)])
        for low, high in ((100, 103), (100, 200), (90, 103)):
            part = feed.series("a.joma", "x", low=low, high=high)
            assert part.steps.tolist() == list(range(low - 1, high + 2))
            np.testing.assert_array_equal(part.values, every[low - 1 : high + 2])
        np.testing.assert_array_equal(feed.series("a.joma", "x", points=8, means=["head"]).values, np.full(8, 1.5))
        assert feed.series("a.joma", "x", points=8).values.shape == (8, 2)


def test_of_many_series_those_asked_for_last_are_kept_in_memory(tmp_path, monkeypatch):
    from joma.view import feed as reading

    values, read, own = {"a": 1.0, "b": 2.0, "c": 3.0}, [], Run.array
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        for step in range(50):
            run.record(step, values)
    monkeypatch.setattr(reading, "_REMEMBERED", 2 * 50 * 8)  # bytes of two of them
    monkeypatch.setattr(Run, "array", lambda run, name: read.append(name) or own(run, name))
    feed = Feed([tmp_path])
    for name in "abacab":
        np.testing.assert_array_equal(feed.series("a.joma", name).values, np.full(50, values[name]))
    assert read == ["a", "b", "c", "b"]


def test_a_run_has_come_as_far_as_the_longest_of_its_series(tmp_path):
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        for name, last in (("rank", 30), ("loss", 40), ("norm", 20)):
            run.append(name, 0, 1.0)
            run.append(name, last, 1.0)
        assert entry(Feed([tmp_path]), "a.joma")["last"] == 40


def test_who_writes_a_run_is_told(tmp_path):
    feed = Feed([tmp_path])
    run = Run.create(tmp_path / "a.joma", study="demo", config={})
    run.append("loss", 0, 1.0)
    assert entry(feed, "a.joma")["state"] == "being written"
    run.close()
    assert entry(Feed([tmp_path]), "a.joma")["state"] == "not being written"


def test_a_scan_by_head_keeps_steps_with_heads_that_have_no_number(tmp_path):
    config = {"source": "a/b", "model_type": "gpt2", "groups": {}}
    given = np.arange(12.0).reshape(2, 2, 3)
    given[1, 0, 2] = np.nan
    with Run.create(tmp_path / "scan.sqlite", study="scan", config=config) as run:
        for step, values in zip((5, 8), given, strict=True):
            run.record(step, {"entropy": values}, dims={"entropy": ("layer", "head")})
        run.record(9, {"stable_rank/mlp": np.array([[1.0, 2.0]])}, dims={"stable_rank/mlp": ("layer", "part")})
    feed = Feed([tmp_path])
    listed = {one["name"]: one for one in entry(feed, "scan.sqlite")["series"]}
    assert [(one["name"], one["size"]) for one in listed["entropy"]["dims"]] == [("layer", 2), ("head", 3)]
    assert [(one["name"], one["size"]) for one in listed["stable_rank/mlp"]["dims"]] == [("layer", 1), ("quantity", 2)]
    assert (listed["entropy"]["steps"], listed["entropy"]["first"], listed["entropy"]["last"]) == (2, 5, 8)
    found = feed.series("scan.sqlite", "entropy")
    assert found.steps.tolist() == [5, 8]  # not 9, where only the rank was measured
    np.testing.assert_array_equal(found.values, given)
    assert found.head["lost"] == 1
