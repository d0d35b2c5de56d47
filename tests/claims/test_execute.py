"""Carrying a study out: resume, judge again, not run, broken."""

import dataclasses
import json
import shutil
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from joma.claims.execute import (
    broken,
    command_line,
    execute,
    plain_config,
    run_path,
    seconds_of,
)
from joma.report import write_report
from joma.runs import Run, RunError
from joma.runs.values import checksum_of, pack
from joma.studies import load
from joma.studies.stored import stored_result, stored_runs


def test_a_finished_run_is_judged_again_and_never_run_again(toy, tmp_path):
    pytest.importorskip("matplotlib")
    study, computed = toy
    first = execute(study, study.quick, tmp_path)
    again = execute(study, study.quick, tmp_path)
    assert computed == ["first", "second", "gpu"]
    assert first.findings == again.findings
    assert first.seconds == again.seconds
    assert [f.verdict for f in again.findings] == ["holds"]
    assert again.pictures[0].svg.startswith("<svg")
    assert "currentColor" in again.pictures[0].svg
    execute(study, study.quick, tmp_path, fresh=True)
    assert len(computed) == 6


def test_another_config_or_version_is_another_run(toy, tmp_path):
    study, computed = toy
    execute(study, study.quick, tmp_path)
    execute(study, study.paper, tmp_path)
    execute(dataclasses.replace(study, version=2), study.quick, tmp_path)
    assert len(computed) == 9


def test_a_run_that_broke_goes_on_where_it_stopped(toy, tmp_path):
    study, computed = toy
    config = dataclasses.replace(study.quick, fail_at="second")
    with pytest.raises(RuntimeError, match="boom"):
        execute(study, config, tmp_path)
    path = run_path(study, plain_config(config), tmp_path)
    with Run.open(path) as run:
        assert run.status == "failed"
        assert "boom" in run.reason

    def finish(config, run, progress):
        for name in ("first", "second", "gpu"):
            run.keep(name, lambda name=name: computed.append("resumed " + name) or [1.0])

    result = execute(dataclasses.replace(study, run=finish), config, tmp_path)
    assert computed == ["first", "resumed second", "resumed gpu"]
    assert result.findings[0].verdict == "holds"


def test_what_cannot_run_says_why_and_how(toy, tmp_path):
    study, _ = toy
    result = execute(study, dataclasses.replace(study.quick, fail_at="gpu"), tmp_path)
    (finding,) = result.findings
    assert finding.verdict == "not run"
    assert finding.measured == "it needs a GPU; run it with: joma verify toy --device cuda"
    assert result.run is None
    assert not list(tmp_path.glob("runs/*"))


def test_a_record_outlives_a_machine_that_lacks_something(toy, tmp_path):
    """Begun where there was a GPU, or data; the same command without them must not throw it away."""
    study, _ = toy
    config = dataclasses.replace(study.quick, fail_at="gpu")
    path = run_path(study, plain_config(config), tmp_path)
    with Run.create(path, study=study.name, config=plain_config(config), version=study.version) as run:
        run.keep("dear", lambda: [1.0])
    assert execute(study, config, tmp_path).findings[0].verdict == "not run"
    with Run.open(path) as run:
        assert "dear" in run


def test_a_run_that_another_process_writes_is_not_thrown_away(toy, tmp_path):
    study, _ = toy
    path = run_path(study, plain_config(study.quick), tmp_path)
    with Run.create(path, study=study.name, config=plain_config(study.quick), version=study.version) as run:
        run.keep("first", lambda: [1.0])
        with pytest.raises(RunError, match="being written already"):
            execute(study, study.quick, tmp_path, fresh=True)
        run.keep("second", lambda: [1.0])
    assert path.exists()


def test_time_is_that_of_all_processes(toy, tmp_path, monkeypatch):
    study, _ = toy
    now = [100.0]
    monkeypatch.setattr("joma.claims.execute.perf_counter", lambda: now[0])

    def slow(share, doing):
        now[0] += 60.0
        if doing == "second" and now[0] < 250.0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # in its second minute, of which nothing is known
        execute(study, study.quick, tmp_path, progress=slow)
    now[0] = 1000.0
    assert execute(study, study.quick, tmp_path, progress=slow).seconds == 60.0 + 3 * 60.0
    assert execute(study, study.quick, tmp_path, progress=slow).seconds == 240.0  # it is not run again


def test_the_verdict_follows_the_number(toy, tmp_path):
    study, _ = toy
    result = execute(study, dataclasses.replace(study.quick, error=1e-3), tmp_path)
    assert [f.verdict for f in result.findings] == ["fails"]


def test_a_broken_study_has_one_line(toy):
    study, _ = toy
    result = broken(study, study.quick, RuntimeError("line one\nline two"))
    assert result.error == "RuntimeError: line one"
    assert result.as_json()["error"] == result.error


def test_the_command_that_repeats_it(toy):
    study, _ = toy
    assert command_line(study, plain_config(study.quick)) == "joma verify toy"
    assert command_line(study, plain_config(study.paper)) == "joma verify toy --scale paper"
    other = dataclasses.replace(study.quick, size=7, fail_at="a b")
    assert command_line(study, plain_config(other)) == "joma run toy --size 7 --fail-at 'a b'"
    other = dataclasses.replace(study.paper, fail_at="a b")
    assert command_line(study, plain_config(other)) == "joma run toy --scale paper --fail-at 'a b'"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"size": 0}, "size must be at least 1, got 0"), ({"error": float("nan")}, "error must be finite, got nan")],
)
def test_an_impossible_config_is_refused(toy, tmp_path, change, sentence):
    study, _ = toy
    with pytest.raises(ValueError, match=sentence):
        execute(study, dataclasses.replace(study.quick, **change), tmp_path)
    assert not list(tmp_path.iterdir())


def test_judging_must_cover_every_claim(toy, tmp_path):
    study, _ = toy
    with pytest.raises(RuntimeError, match="judged"):
        execute(
            dataclasses.replace(study, claims={replace(claim, name="other"): j for claim, j in study.claims.items()}),
            study.quick,
            tmp_path,
        )


def test_one_damaged_record_does_not_hide_the_others(two_records, tmp_path):
    shutil.copytree(two_records, tmp_path, dirs_exist_ok=True)
    (damaged,) = tmp_path.glob("runs/thm5-*.sqlite")
    damaged.write_bytes(damaged.read_bytes()[:2000])
    (tmp_path / "runs" / "foreign.sqlite").write_bytes(b"no run" * 200)
    results = {name: stored_result(name, path, tmp_path) for name, path in stored_runs(tmp_path)}
    assert results["thm2"].findings
    assert "damaged" in results["thm5"].error
    damaged.unlink()
    damaged.symlink_to(next(two_records.glob("runs/thm5-*.sqlite")))  # a whole one, of another folder
    results = {name: stored_result(name, path, tmp_path) for name, path in stored_runs(tmp_path)}
    assert results["thm2"].findings
    assert "leads out of" in results["thm5"].error


@pytest.fixture(scope="module")
def two_records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for name in ("thm5", "thm2"):
        execute(load(name), load(name).quick, folder, pictures=False)
    return folder


def _with(path, change):
    """A record of the same study whose file was changed by hand, checksums and all."""
    connection = sqlite3.connect(path, isolation_level=None)
    change(connection)
    connection.close()


def _told(key, value):
    text = json.dumps(value)
    return lambda file: file.execute("REPLACE INTO meta VALUES (?, ?, ?)", (key, text, checksum_of(key, text)))


def _holding(name, value):
    def change(file):
        packed = pack(value, name, 0)
        which = "series = (SELECT id FROM series WHERE name = ?)"
        file.execute(f"UPDATE entries SET dtype=?, shape=?, checksum=?, data=? WHERE {which}", (*packed, name))

    return change


@pytest.mark.parametrize(
    "change",
    [
        _told("config", {"seeds": [[1]], "no such option": 1}),
        _told("config", {}),
        _told("created", 7),
        _told("versions", ["torch"]),
        _holding("seconds", float("inf")),
        _holding("seconds", [1.0, 2.0]),
        _holding("seconds", 1j),
        _holding("trees/truth", [1.0]),
        _holding("trees/truth", np.zeros((2, 2, 2, 2))),
    ],
    ids=["unknown key", "no config", "created", "versions", "infinite", "vector", "complex", "shape", "dimensions"],
)
def test_whatever_one_record_holds_the_others_are_judged(two_records, tmp_path, change, monkeypatch):
    monkeypatch.setattr("joma.studies.stored.draw", lambda study, run: [])  # it takes long, and is tested elsewhere
    shutil.copytree(two_records, tmp_path, dirs_exist_ok=True)
    (spoiled,) = tmp_path.glob("runs/thm5-*.sqlite")
    _with(spoiled, change)
    results = {name: stored_result(name, path, tmp_path) for name, path in stored_runs(tmp_path)}
    assert len(results["thm2"].findings) == len(load("thm2").claims)
    assert results["thm5"].findings or results["thm5"].error
    page = write_report(list(results.values()), tmp_path, scale="quick")
    assert "thm2" in page.read_text()


@pytest.mark.parametrize("since", ["removed", "begun anew"])
def test_a_run_that_is_gone_by_now_is_no_broken_one(two_records, tmp_path, since):
    shutil.copytree(two_records, tmp_path, dirs_exist_ok=True)
    found = dict(stored_runs(tmp_path))
    Run.delete(found["thm5"])
    if since == "begun anew":
        Run.create(found["thm5"], study="thm5", config={}, version=load("thm5").version).close()
    result = stored_result("thm5", found["thm5"], tmp_path)
    assert result.error is None
    assert {finding.verdict for finding in result.findings} == {"not run"}


def test_a_page_of_one_stored_study_needs_no_other(two_records, tmp_path, monkeypatch):
    monkeypatch.setattr("joma.studies.stored.draw", lambda study, run: [])
    shutil.copytree(two_records, tmp_path, dirs_exist_ok=True)
    Run.delete(dict(stored_runs(tmp_path))["thm2"])
    results = [stored_result(name, path, tmp_path) for name, path in stored_runs(tmp_path)]
    assert "thm5" in write_report(results, tmp_path, scale="quick").read_text()


def test_where_no_run_is_finished_nothing_is_stored(tmp_path):
    study = load("thm5")
    with Run.create(run_path(study, {}, tmp_path), study="thm5", config={}, version=study.version) as run:
        assert stored_runs(tmp_path) == []
        run.finish()
    assert [name for name, path in stored_runs(tmp_path) if path] == ["thm5"]


def test_a_time_is_one_number_from_zero_on(tmp_path):
    for at, (value, fine) in enumerate(((0.0, True), (2.5, True), (-1e-9, False), (np.inf, False), (np.nan, False),
                                        ([1.0], False), (1j, False))):  # fmt: skip
        with Run.create(tmp_path / f"{at}.sqlite", study="toy", config={}) as run:
            run.keep("seconds", lambda value=value: value)
            if fine:
                assert seconds_of(run) == value
            else:
                with pytest.raises(RunError, match="is damaged: the time that it took cannot be read"):
                    seconds_of(run)
