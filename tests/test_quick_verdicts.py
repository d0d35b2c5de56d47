"""Verdicts of quick scale on this machine are those that were kept on another, where neither chance nor rounding may
decide."""

import json
import runpy

import pytest
from kept_records import RECORDS, needs_records

from joma.claims.contract import silent
from joma.claims.execute import judge, plain_config
from joma.runs import Run
from joma.studies import load, names

pytestmark = needs_records
SCRIPT = runpy.run_path(str(RECORDS / "quick.py")) if RECORDS.is_dir() else {}
KEPT = json.loads((RECORDS / "quick.json").read_text(encoding="utf-8")) if RECORDS.is_dir() else {}
SOON = 8.0  # seconds: what takes longer is compared by `python results/quick.py` after `make run`
SECONDS = {name: seconds for name, seconds in KEPT.get("seconds", {}).items() if seconds < SOON}
QUICK = sorted(SECONDS)
AT_ONCE, TURNS = 1.0, 5
"""Studies that take this many seconds take turns where a seed chooses the order, as in CI, where it is the commit's."""


def in_turn(seed):
    """The studies that are compared with this seed: all without one; a slow one with a fifth of all seeds."""
    slow = [name for name in QUICK if SECONDS[name] >= AT_ONCE]
    return [name for name in QUICK if seed is None or name not in slow or slow.index(name) % TURNS == seed % TURNS]


def pytest_generate_tests(metafunc):
    if "quick_study" in metafunc.fixturenames:
        metafunc.parametrize("quick_study", in_turn(metafunc.config.getoption("--shuffle")))


def test_every_claim_is_kept():
    claims = {f"{name}/{claim.name}" for name in names() for claim in load(name).claims}
    assert KEPT["findings"].keys() == claims
    assert KEPT["machine"]
    assert len(QUICK) >= 15


def finding(verdict="holds", fragile=False):
    return {"verdict": verdict, "fragile": fragile}


def test_only_what_is_decided_and_not_fragile_must_agree():
    differ = SCRIPT["differences"]
    assert differ({"a/b": finding()}, {"a/b": finding()}) == []
    assert differ({"a/b": finding()}, {"a/b": finding("fails")}) == ["a/b: holds where it was kept, fails here"]
    assert differ({"a/b": finding()}, {"c/d": finding("fails")}) == []
    for excused in (finding("fails", fragile=True), finding("undecided"), finding("not run")):
        assert differ({"a/b": finding()}, {"a/b": excused}) == []
        assert differ({"a/b": excused}, {"a/b": finding()}) == []


def test_what_is_kept_says_of_itself_that_it_agrees(tmp_path, monkeypatch, capsys):
    """The command as it is used, on a findings.json with one claim turned."""
    one = {
        "id": "a/b",
        "effect": 1.0,
        "interval": None,
        "control_effect": 0.0,
        "difference_interval": None,
        "level": 0.95,
    }
    written = {"studies": [{"name": "a", "seconds": 1.0, "findings": [one | finding()]}]}
    origin = {"machine": "Arm", "created": "today"}
    main = SCRIPT["main"]
    for verdict, arguments, code in (("holds", ["--keep"], None), ("holds", [], 0), ("fails", [], 1)):
        unsure = [
            {**one, "id": f"a/{what}", **finding(what), "provenance": origin} for what in ("undecided", "not run")
        ]
        written["studies"][0]["findings"] = [one | finding(verdict) | {"provenance": origin}, *unsure]
        (tmp_path / "findings.json").write_text(json.dumps(written), encoding="utf-8")
        monkeypatch.setattr("sys.argv", ["quick.py", str(tmp_path / "findings.json"), *arguments])
        monkeypatch.setitem(main.__globals__, "KEPT", tmp_path / "quick.json")
        monkeypatch.setitem(main.__globals__, "PAGE", tmp_path / "README.md")
        (tmp_path / "README.md").write_text(
            "Above\n<!-- table of quick scale -->\nold\n<!-- end of the table of quick scale -->\n", encoding="utf-8"
        )
        if code is None:
            main()
        else:
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == code
    assert "1 claims are decided and not fragile on Arm; 1 of them differ here" in capsys.readouterr().out


def test_what_was_run_again_takes_the_place_of_its_older_self_alone():
    kept = {"machine": "Arm", "seconds": {"a": 1.0, "b": 2.0},
            "findings": {"a/x": finding(), "a/gone": finding(), "b/y": finding("undecided")}}  # fmt: skip
    now = {"machine": "x86", "seconds": {"a": 3.0}, "findings": {"a/x": finding("fails"), "a/z": finding("not run")}}
    whole = SCRIPT["merged"](kept, now)
    assert whole["seconds"] == {"a": 3.0, "b": 2.0}
    assert {name: one["verdict"] for name, one in whole["findings"].items()} == {
        "b/y": "undecided", "a/x": "fails", "a/z": "not run",
    }  # fmt: skip


def test_the_table_counts_what_quick_scale_can_decide():
    found = {"a/x": finding("fails"), "a/y": finding("undecided"), "a/z": finding("at paper scale"), "b/x": finding()}
    rows = SCRIPT["table"]({"seconds": {"b": 2.0, "a": 3.06}, "findings": found}).splitlines()
    assert rows[2:] == ["| `a` | 3.1 | 1 | 2 |", "| `b` | 2.0 | 1 | 1 |", "| all | 5 | 2 | 3 |"]


def test_the_tables_of_the_page_are_those_of_what_is_kept():
    page = (RECORDS / "README.md").read_text(encoding="utf-8")
    assert SCRIPT["TABLE"].search(page)[0] == "<!-- table of quick scale -->\n" + SCRIPT["tables"](KEPT)


@pytest.mark.parametrize("content", [None, "no JSON", "{}", "[]", '{"studies": []}'])
def test_what_is_no_findings_file_is_refused_in_one_sentence(tmp_path, monkeypatch, capsys, content):
    path = tmp_path / "findings.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["quick.py", str(path)])
    with pytest.raises(SystemExit) as ended:
        SCRIPT["main"]()
    assert ended.value.code == 2
    assert f"{path} is no findings.json of `joma verify`" in capsys.readouterr().err


def test_every_study_has_its_turn():
    assert in_turn(None) == QUICK
    turns = [set(in_turn(seed)) for seed in range(1000, 1000 + TURNS)]
    assert set.union(*turns) == set(QUICK)
    assert set.intersection(*turns) == {name for name in QUICK if SECONDS[name] < AT_ONCE}
    slow = [name for name in QUICK if SECONDS[name] >= AT_ONCE]
    assert [sum(name in turn for turn in turns) for name in slow] == [1] * len(slow)
    assert max(map(len, turns)) - min(map(len, turns)) <= 1


@pytest.mark.long
def test_a_quick_study_comes_to_the_verdicts_that_were_kept(quick_study, tmp_path):
    name, study = quick_study, load(quick_study)
    config = plain_config(study.quick)
    with Run.create(tmp_path / "run.sqlite", study=name, config=config, version=study.version) as run:
        study.run(study.quick, run, silent)
        now = {one.id: {"verdict": one.verdict, "fragile": one.fragile} for one in judge(study, run)}
    assert SCRIPT["differences"](KEPT["findings"], now) == []
    assert now.keys() == {one for one in KEPT["findings"] if one.startswith(f"{name}/")}
