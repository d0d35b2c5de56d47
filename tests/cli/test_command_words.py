"""What commands say and repeat, word by word, without carrying anything out."""

import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from joma.cli import cache, export, options, report, scan
from joma.cli.options import _described, _taken
from joma.host.errors import BadInput
from joma.runs import Run, RunError


def scan_options(*words):
    parser = argparse.ArgumentParser()
    scan.add_parser(parser.add_subparsers())
    return parser.parse_args(["scan", *words])


def test_the_command_of_a_page_repeats_all_that_changes_its_numbers():
    assert scan._command(scan_options("a", "--jobs", "3", "--device", "cuda", "--fresh", "--no-page"), ["a"]) == (
        "joma scan a --measures stable_rank --out joma-out"
    )
    every = {
        "steps": "0:9:3", "measures": "alpha,entropy", "groups": "mlp", "root": "ema", "base": "none",
        "text": "a b.txt", "tokenizer": "tok", "seq-len": "64",
    }  # fmt: skip
    words = [word for name, value in every.items() for word in (f"--{name}", value)]
    words += ["--pattern", "mlp=.*", "--pattern", "x=y", "--fail-if", "alpha<2", "--fail-if", "entropy>3"]
    words += ["--keep-suspicious", "--out", "my out"]
    given = scan_options("a", "b", "--compare", *words)
    assert scan._command(given, ["a", "b"]) == (
        "joma scan --compare a b --steps 0:9:3 --measures alpha,entropy --groups mlp --root ema --base none "
        "--text 'a b.txt' --tokenizer tok --seq-len 64 --pattern 'mlp=.*' --pattern x=y --fail-if 'alpha<2' "
        "--fail-if 'entropy>3' --keep-suspicious --out 'my out'"
    )
    assert scan._command(given, ["b"]).startswith("joma scan b --steps 0:9:3 ")


def test_scans_are_written_alone_or_together(tmp_path, monkeypatch, capsys):
    tables = []
    monkeypatch.setattr("joma.scan.result.tidy.write_table", lambda scans, to, path: tables.append((scans, to, path)))

    def done(name):
        about = {"schema": "s", "schema_version": 3, "joma": "0.1", "source": name}
        return scan.Done(SimpleNamespace(as_json=lambda: about), Path(f"{name}.sqlite"))

    one, two = done("a"), done("b")
    target = tmp_path / "x.json"
    scan._write([one], scan_options("a", "--json", str(target)))
    first = {"schema": "s", "schema_version": 3, "joma": "0.1", "source": "a", "run": "a.sqlite"}
    assert json.loads(target.read_text()) == first
    scan._write([one, two], scan_options("a", "b", "--json", "-", "--csv", "t.csv", "--parquet", "t.parquet"))
    assert json.loads(capsys.readouterr().out) == {
        "schema": "s", "schema_version": 3, "joma": "0.1", "scans": [first, {**first, "source": "b", "run": "b.sqlite"}]
    }  # fmt: skip
    both = [one.found, two.found]
    assert tables == [(both, "csv", Path("t.csv").resolve()), (both, "parquet", Path("t.parquet").resolve())]


def test_the_page_of_a_comparison_is_named_after_both(monkeypatch, tmp_path):
    made = {}
    monkeypatch.setattr(scan, "_shown", lambda one, options: one.run.stem)
    monkeypatch.setattr("joma.report.write_scan_page", lambda shown, path: made.update({path.name: shown}))
    compared = lambda both, path, made_by: made.update({path.name: (both, made_by)})
    monkeypatch.setattr("joma.report.write_comparison", compared)
    done = [scan.Done(SimpleNamespace(), Path(f"runs/scan-{name}-1.sqlite")) for name in ("a", "b")]
    scan._page(done[:1], scan_options("a", "--out", str(tmp_path)))
    scan._page(done, given := scan_options("x", "y", "--compare", "--out", str(tmp_path)))
    assert made == {
        "scan-a-1.html": "scan-a-1",
        "compare-a-1-b-1.html": (("scan-a-1", "scan-b-1"), scan._command(given, ["x", "y"])),
    }


def test_a_scan_without_numbers_has_no_page(tmp_path):
    path = tmp_path / "scan-a.sqlite"
    Run.create(path, study="scan", config={"source": "a", "groups": {}}).close()
    with pytest.raises(RunError, match=r"^scan-a\.sqlite holds no measured step$"):
        report._report(SimpleNamespace(stored=[path], out=None, study=[]), [])
    assert list(tmp_path.iterdir()) == [path]


def test_a_scan_is_never_exported_over_itself(tmp_path):
    path = tmp_path / "scan.sqlite"
    Run.create(path, study="scan", config={"source": "a", "groups": {}}).close()
    before = path.read_bytes()
    with pytest.raises(RunError, match="is the run itself; export it to another file"):
        export._exported(path, "csv", path)
    assert path.read_bytes() == before
    with Run.create(tmp_path / "bare.sqlite", study="scan", config={}):
        pass
    with pytest.raises(RunError, match=r"bare\.sqlite is not a run as joma scan writes it"):
        export._exported(tmp_path / "bare.sqlite", "csv", None)


def test_what_a_cache_costs_is_told_and_written(tmp_path, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr("joma.cache.drawing.write_png", lambda costs, path, title: drawn.append((path.name, title)))
    assert [cache._budget(word) for word in ("3", "0.25")] == [3, 0.25]
    assert isinstance(cache._budget("3"), int)
    with pytest.raises(BadInput, match=r"--keep takes shares, as 0\.1, or whole numbers of keys, got 'much'"):
        cache._budget("much")

    numbers = {"schema": "joma-cache", "full": 2.5}

    def costs(no_interval):
        return SimpleNamespace(
            run=Path("runs/cache-a.sqlite"), as_json=lambda: dict(numbers), left_out={"h2o": "why"}, full=2.4567,
            table=lambda: "policy  0.1\nwindow  0.3", no_interval=no_interval, sequences=7, name="tiny",
        )  # fmt: skip

    given = SimpleNamespace(model="m", text=Path("t.txt"), out=tmp_path, json=str(tmp_path / "own.json"))
    head = ["full attention: 2.457 nats per token; what the policies add, by the share of the cache kept:"]
    table, end = ["policy  0.1", "window  0.3"], [f"json: {tmp_path}/cache-a.json", f"figure: {tmp_path}/cache-a.png"]
    over = "±: 95 % interval over n = 7 sequences, each compared with itself under full attention"
    for no_interval, line in (("", over), ("one sequence", "no intervals: one sequence")):
        cache._print(costs(no_interval), given, sys.stdout)
        assert capsys.readouterr().out.splitlines() == [*head, *table, line, *end]
    content = {
        **numbers,
        "model": "m",
        "text": "t.txt",
        "left_out": {"h2o": "why"},
        "run": "runs/cache-a.sqlite",
    }
    for name in ("own.json", "cache-a.json"):
        assert json.loads((tmp_path / name).read_text()) == content
    assert drawn == [
        ("cache-a.png", "tiny (95 % intervals, n = 7)"),
        ("cache-a.png", "tiny (one sequence, no intervals)"),
    ]


def test_values_of_an_option_are_taken_in_the_groups_of_its_type():
    pairs = tuple[tuple[int, int], ...]
    assert _taken("x", 3, int) == 3
    assert _taken("x", [1, 2, 3], tuple[int, ...]) == (1, 2, 3)
    assert _taken("x", [1, 2, 3, 4], pairs) == ((1, 2), (3, 4))
    with pytest.raises(ValueError, match=r"^--my-pairs takes values in groups of 2, got 3 values"):
        _taken("my_pairs", [1, 2, 3], pairs)
    assert options._flat(((1, 2), 3, ((4,), 5))) == [1, 2, 3, 4, 5]
    assert options._innermost(pairs) is int


class Parent:
    """One."""

    old: int = 1
    """Said
    before."""
    both: int = 2
    """First."""


class Child(Parent):
    """Two."""

    plain: int = 3
    both: int = 4
    """Last."""


def test_words_below_a_field_are_its_help():
    assert _described(Child) == {"old": "Said before.", "both": "Last."}
