"""`joma verify` and `joma run`: what is written, printed and returned."""

import errno
import io
import json
import os
import re
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from joma import studies
from joma.claims.contract import NotRun
from joma.claims.execute import Picture, attempt, plain_config, run_path
from joma.claims.verdicts import not_run
from joma.cli.main import main
from joma.cli.terminal import _paper
from joma.data.errors import CorpusError
from joma.report.claims.kept import kept
from joma.runs import Run
from joma.runs.errors import sqlite_errors_explained
from joma.studies.__main__ import main as bare


def test_verify_writes_report_and_json(with_toy, tmp_path, capsys):
    target = tmp_path / "findings.json"
    assert main(["verify", "toy", "--out", str(tmp_path / "out"), "--json", str(target)]) == 0
    (study,) = json.loads(target.read_text())["studies"]
    assert study["name"] == "toy"
    assert study["seconds"] >= 0
    (finding,) = study["findings"]
    assert finding["verdict"] == "holds"
    assert set(finding) >= {
        "claim", "source", "says", "corrected", "expected", "measured", "control", "tolerance", "verdict",
    }  # fmt: skip
    out = capsys.readouterr().out
    assert re.search(r"1 claim in .* s: all judged\. 1 holds\.\n", out)
    assert out.rstrip().endswith(f"report: {tmp_path / 'out' / 'report.html'}")
    assert (tmp_path / "out" / "report.html").exists()


def test_findings_go_to_the_file_that_a_link_leads_to(with_toy, tmp_path, undrawn):
    (tmp_path / "mine.json").write_text('{"schema": "joma-findings"}')
    (tmp_path / "link.json").symlink_to("mine.json")
    assert main(["verify", "toy", "--out", str(tmp_path / "out"), "--json", str(tmp_path / "link.json")]) == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "mine.json").read_text())["studies"][0]["name"] == "toy"


def test_without_a_terminal_progress_is_a_line_now_and_then(with_toy, tmp_path, capsys, monkeypatch, undrawn):
    monkeypatch.setattr("joma.cli.terminal._PLAIN_EVERY", 0.0)
    assert main(["verify", "toy", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    told = [line for line in shown.err.splitlines() if "toy " in line and "%" in line]
    assert told
    assert not re.search(r"toy +\d+% ", shown.out)  # which is the same on a slow machine
    assert all(re.search(r"toy +\d+% +\d+ s  \S", line) for line in told)


def test_json_on_standard_output_is_json_alone(with_toy, tmp_path, capsys):
    assert main(["verify", "toy", "--out", str(tmp_path), "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["studies"][0]["name"] == "toy"
    assert "report:" in captured.err


def test_one_broken_study_does_not_hide_the_others(with_toy, tmp_path, capsys):
    assert main(["run", "toy", "--fail-at", "second", "--out", str(tmp_path)]) == 1
    assert "broke: RuntimeError: boom" in capsys.readouterr().out


@pytest.mark.parametrize("bare_machine", [False, True])
def test_where_nothing_could_be_run_the_files_of_an_earlier_command_stay(
    bare_machine, with_toy, tmp_path, breaks, capsys
):
    arguments = ["toy", "--out", str(tmp_path)]
    verify = ["verify", *arguments, "--json", str(tmp_path / "mine.json")]
    assert main(verify) == 0
    files = [tmp_path / name for name in ("report.html", "findings.json", "mine.json")]
    before = [path.read_bytes() for path in files]
    capsys.readouterr()
    breaks(RuntimeError("the record is locked"))
    assert (bare(arguments) if bare_machine else main(verify)) == 1
    assert [path.read_bytes() for path in files] == before
    out = capsys.readouterr().out
    assert "broke: RuntimeError: the record is locked" in out
    assert "report:" not in out


def test_of_two_commands_in_one_folder_the_second_says_so_in_one_sentence(with_toy, tmp_path, capsys, undrawn):
    path = run_path(with_toy, plain_config(with_toy.quick), tmp_path)
    with Run.create(path, study="toy", config=plain_config(with_toy.quick), version=with_toy.version):
        assert main(["verify", "toy", "--out", str(tmp_path)]) == 2
        what = f"another command (process {os.getpid()}) runs toy in {tmp_path}"
        said = f"{what}: wait for it and give this command again, or give it another folder"
        assert capsys.readouterr().err == f"joma: {said} (--out DIR)\n"
        found = attempt(with_toy, with_toy.quick, tmp_path, alone=False)
        assert found.error == said
    assert main(["verify", "toy", "--out", str(tmp_path)]) == 0


def test_a_text_that_does_not_fit_is_bad_input(with_toy, tmp_path, capsys, breaks):
    breaks(CorpusError("the text is too short"))
    assert main(["run", "toy", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("joma: the text is too short\n")


def test_a_command_that_judged_nothing_says_so_at_its_end_and_in_its_status(with_toy, tmp_path, capsys):
    assert main(["run", "toy", "--fail-at", "gpu", "--out", str(tmp_path)]) == 3
    *_, sentence, path = capsys.readouterr().out.splitlines()
    assert "none was judged" in sentence
    assert path.startswith("report: ")


@pytest.fixture
def undrawn(monkeypatch):
    """Nothing is drawn for the page: to draw takes most of the time, and what is printed shows none of it."""
    picture = Picture("a", "A.", "<svg></svg>", "Nothing is seen.")
    monkeypatch.setattr("joma.claims.execute.draw", lambda study, run: [picture])


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_what_an_encoding_lacks_is_written_in_letters_that_it_has(encoding, stored_claims, monkeypatch, undrawn):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["verify", "lemma6", "-v", "--out", str(stored_claims)]) == 0
    said = stream.buffer.getvalue().decode(encoding)
    assert ("√" in said) == (encoding == "utf-8")
    assert ("sqrt" in said) == (encoding != "utf-8")


@pytest.mark.parametrize("columns", [60, 100, 150])
def test_lines_fit_the_window_and_end_without_spaces(columns, capsys, monkeypatch, stored_claims, undrawn):
    monkeypatch.setattr("joma.cli.terminal.columns", lambda _: columns)
    for more in ([], ["-v"], ["--claims", "holds"]):
        assert main(["verify", "lemma6", *more, "--out", str(stored_claims)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert all(len(line) <= columns for line in lines if not line.startswith(("report: ", "to see ")))
        assert all(line == line.rstrip() for line in lines)
        assert max(map(len, lines[1:-1])) > min(columns, 100) * 0.6


@pytest.fixture(scope="module")
def stored_claims(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lemma6")
    assert main(["verify", "lemma6", "--out", str(folder)]) == 0
    return folder


def test_colour_is_for_terminals_and_can_be_refused(stored_claims, capsys, monkeypatch, undrawn):
    for variable, coloured in ((None, False), ("FORCE_COLOR", True), ("NO_COLOR", False)):
        if variable:
            monkeypatch.setenv(variable, "1")
        assert main(["verify", "lemma6", "--out", str(stored_claims)]) == 0
        assert bool(re.search(r"\x1b\[(1;)?3\dm", capsys.readouterr().out)) == coloured


def test_a_bracket_in_a_reason_is_printed_as_it_is(with_toy, tmp_path, capsys, breaks):
    breaks(NotRun("it needs transformers", "pip install -e '.[hf]'"))
    main(["verify", "toy", "--out", str(tmp_path)])
    assert "'.[hf]'" in capsys.readouterr().out


def test_a_verdict_at_paper_scale_that_differs_stands_beside_the_quick_one():
    name, claim = "shallow-first/weights-first", studies.load("shallow-first").claims
    (claim,) = [one for one in claim if one.name == "weights-first"]
    assert kept()[name]["verdict"] == "holds as corrected"
    quick = replace(not_run(claim, "more", "too small", "joma verify"), study="shallow-first")
    assert _paper(quick) == "At paper scale: holds as corrected (size shown)"
    assert _paper(replace(quick, study="elsewhere")) == ""


def test_a_full_disk_is_named_and_is_no_bad_input(with_toy, tmp_path, capsys, monkeypatch):
    def full(path, *_, **__):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["verify", "toy", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"joma: {tmp_path / 'findings.json'} cannot be written: No space left on device\n"
    assert "all-ones" in captured.out
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_record_on_a_full_disk_goes_on_with_the_same_command(tmp_path, capsys, monkeypatch):
    def full(*_):
        with sqlite_errors_explained(tmp_path / "a.sqlite"), closing(sqlite3.connect(":memory:")) as connection:
            connection.execute("PRAGMA max_page_count = 1")
            connection.execute("CREATE TABLE full (x)")

    monkeypatch.setattr("joma.cli.listing._list", full)
    assert main(["list"]) == 1
    error = capsys.readouterr().err
    assert f"{tmp_path / 'a.sqlite'} could not grow, the disk is full" in error
    assert "the same command continues" in error
