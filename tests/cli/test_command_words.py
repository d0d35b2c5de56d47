"""What commands say and repeat, word by word, without carrying anything out."""

import argparse
from types import SimpleNamespace

import pytest

from joma.cli import export, report, scan
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
