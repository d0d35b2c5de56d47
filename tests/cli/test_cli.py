"""The command line, in process where that is enough and as a real command where it matters."""

import dataclasses
import errno
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
import torch
from patience import PATIENCE
from safetensors.torch import save_file

from joma import studies
from joma.claims.contract import SCALES, NotRun
from joma.claims.execute import command_line, execute, plain_config
from joma.claims.verdicts import not_run
from joma.cli.main import main
from joma.cli.options import parse
from joma.cli.terminal import _paper
from joma.data.errors import CorpusError
from joma.host.progress import ProgressLines
from joma.report.claims.kept import kept
from joma.runs import Run, export
from joma.runs.errors import sqlite_errors_explained
from joma.scale import local
from joma.studies.__main__ import main as bare


@pytest.fixture
def with_toy(toy, monkeypatch):
    study, _ = toy
    real = studies.load
    rooms = {**studies._rooms(), "toy": "toys"}
    monkeypatch.setattr(studies, "_rooms", lambda: rooms)
    monkeypatch.setattr(studies, "load", lambda name: study if name == "toy" else real(name))
    return study


@pytest.fixture
def stored_toy(with_toy, tmp_path, capsys, monkeypatch):
    """A folder with a finished run of the toy, which is the only study there is."""
    monkeypatch.setattr(studies, "_rooms", lambda: {"toy": "toys"})
    monkeypatch.setattr("joma.studies.stored.load", studies.load)
    assert main(["verify", "toy", "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    return tmp_path / "out"


@pytest.fixture
def breaks(monkeypatch):
    """Makes one study raise an error, or all."""

    def make(error, name=None):
        def or_raise(study, *rest, **named):
            if name in (None, study.name):
                raise error
            return execute(study, *rest, **named)

        monkeypatch.setattr("joma.claims.execute.execute", or_raise)

    return make


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


def test_a_page_of_one_study_says_how_to_see_the_others(with_toy, tmp_path, capsys):
    assert main(["verify", "thm5", "--out", str(tmp_path)]) == 0
    assert "a page of all" not in capsys.readouterr().out
    (tmp_path / "runs" / "scan-model-0123456789.sqlite").touch()  # a scan is no study
    assert main(["verify", "thm5", "--out", str(tmp_path)]) == 0
    assert "a page of all" not in capsys.readouterr().out
    assert main(["verify", "toy", "--out", str(tmp_path)]) == 0
    said = f"runs of other studies are in this folder, too; a page of all: joma report {tmp_path}\nreport: "
    assert said in capsys.readouterr().out


def test_without_a_terminal_progress_is_a_line_now_and_then(with_toy, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("joma.cli.terminal._PLAIN_EVERY", 0.0)
    assert main(["verify", "thm5", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    told = [line for line in shown.err.splitlines() if "thm5 " in line and "%" in line]
    assert told
    assert not re.search(r"thm5 +\d+% ", shown.out)  # which is the same on a slow machine
    assert all(re.search(r"thm5 +\d+% +\d+ s  \S", line) for line in told)


def test_progress_on_a_bare_machine_goes_to_standard_error(with_toy, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "joma.studies.__main__.ProgressLines", lambda name, say, every: ProgressLines(name, say, every=0.0)
    )
    assert bare(["toy", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "toy  50%" in shown.err
    assert "toy  50%" not in shown.out


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


def test_a_text_that_does_not_fit_is_bad_input(with_toy, tmp_path, capsys, breaks):
    breaks(CorpusError("the text is too short"))
    assert main(["run", "toy", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("joma: the text is too short\n")


def test_a_command_that_judged_nothing_says_so_at_its_end_and_in_its_status(with_toy, tmp_path, capsys):
    assert main(["run", "toy", "--fail-at", "gpu", "--out", str(tmp_path)]) == 3
    *_, sentence, path = capsys.readouterr().out.splitlines()
    assert "none was judged" in sentence
    assert path.startswith("report: ")


def test_report_judges_stored_runs_again_and_rewrites_report_and_findings(stored_toy, capsys):
    wanted = json.loads((stored_toy / "findings.json").read_text())
    (stored_toy / "findings.json").write_text("{}")
    (stored_toy / "report.html").unlink()
    assert main(["report", str(stored_toy)]) == 0
    assert re.match(r"1/1  toy +cached  1 holds\nreport: ", capsys.readouterr().out)
    assert json.loads((stored_toy / "findings.json").read_text()) == wanted
    assert (stored_toy / "report.html").exists()


def test_report_of_kept_records_shows_those_alone_and_can_go_elsewhere(with_toy, tmp_path, monkeypatch):
    monkeypatch.setattr("joma.studies.stored.load", studies.load)
    assert main(["run", "toy", "--out", str(tmp_path)]) == 0
    (kept,) = (tmp_path / "runs").glob("*.sqlite")
    records = tmp_path / "records" / "toy"
    records.mkdir(parents=True)
    kept.rename(records / "toy.sqlite")
    assert main(["report", str(records.parent), "--out", str(tmp_path / "page")]) == 0
    findings = json.loads((tmp_path / "page" / "findings.json").read_text())
    assert [study["name"] for study in findings["studies"]] == ["toy"]
    assert (tmp_path / "page" / "report.html").exists()
    assert [path.name for path in records.parent.iterdir()] == ["toy"]


def test_a_page_of_stored_runs_says_how_it_was_made(stored_toy, tmp_path):
    page = tmp_path / "a page"
    assert main(["report", str(stored_toy), "--out", str(page)]) == 0
    assert f"<code>joma report {stored_toy} --out {escape(shlex.quote(str(page)))}</code>" in _footer(page)
    assert main(["report", str(stored_toy)]) == 0
    assert f"<code>joma report {stored_toy}</code>" in _footer(stored_toy)


def _footer(folder):
    return (folder / "report.html").read_text(encoding="utf-8").partition("<footer")[2]


def test_report_with_a_damaged_run_is_written_and_says_that_something_broke(stored_toy, capsys):
    (damaged,) = stored_toy.glob("runs/toy-*.sqlite")
    damaged.write_bytes(damaged.read_bytes()[:2000])
    assert main(["report", str(stored_toy)]) == 1
    out = capsys.readouterr().out
    assert "broke: " in out
    assert f"report: {stored_toy / 'report.html'}\n" in out
    assert "This study broke: " in (stored_toy / "report.html").read_text(encoding="utf-8")


def test_report_without_a_finished_run_is_refused_and_the_earlier_page_stays(stored_toy, capsys):
    (finished,) = stored_toy.glob("runs/toy-*.sqlite")
    finished.unlink()
    with Run.create(finished, study="toy", config={}, version=1):
        pass
    (stored_toy / "report.html").write_text("earlier")
    assert main(["report", str(stored_toy)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"joma: {stored_toy} holds no finished run ")
    assert f"`joma verify --out {stored_toy}` makes them" in captured.err
    assert captured.err.count("\n") == 1
    assert (stored_toy / "report.html").read_text() == "earlier"


def test_what_is_finished_when_a_command_is_interrupted_can_be_shown(tmp_path):
    command = [sys.executable, "-m", "joma", "verify", "lemma6", "fig6", "--out", str(tmp_path), "-j", "2"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in running.stdout:
        if "lemma6" in line and "hold" in line:
            running.send_signal(signal.SIGINT)
            break
    _, error = running.communicate(timeout=PATIENCE)
    error = "".join(line for line in error.splitlines(keepends=True) if not re.match(r"  \S+ +\d+% ", line))  # if slow
    hint = f"joma: 1 of 2 studies finished; a page that shows them: joma report {tmp_path}\n"
    assert error == hint + "joma: interrupted; the same command goes on where this one stopped\n"
    assert running.returncode == 130


@pytest.fixture(scope="module")
def both_ways(tmp_path_factory):
    """Findings of three studies, one after another and side by side."""
    folders = {jobs: tmp_path_factory.mktemp(f"jobs-{jobs}") for jobs in (1, 3)}
    for jobs, folder in folders.items():
        assert main(["verify", "thm2", "thm5", "table1", "-j", str(jobs), "--out", str(folder)]) == 0
    return [json.loads((folder / "findings.json").read_text())["studies"] for folder in folders.values()]


def test_numbers_do_not_depend_on_how_many_run_side_by_side(both_ways):
    for study in (study for found in both_ways for study in found):
        del study["seconds"]
        for finding in study["findings"]:
            del finding["provenance"]["created"]
    assert both_ways[0] == both_ways[1]
    assert [study["name"] for study in both_ways[0]] == ["thm2", "thm5", "table1"]


def test_alone_and_beside_others_a_study_gives_the_same(tmp_path, both_ways):
    command = [sys.executable, "-m", "joma", "verify", "table1", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    (alone,) = json.loads((tmp_path / "findings.json").read_text())["studies"]
    assert [f["evidence"] for f in alone["findings"]] == [f["evidence"] for f in both_ways[0][2]["findings"]]


def test_a_study_that_dies_takes_no_other_along(tmp_path, capsys, monkeypatch):
    """Its process is killed as soon as it says something; the other study is judged all the same."""
    real = local._Process.hear

    def hear(self, message):
        if self.task and self.task.name == "table1":
            self.running.kill()
        return real(self, message)

    monkeypatch.setattr(local._Process, "hear", hear)
    assert main(["verify", "table1", "thm5", "-j", "2", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "broke: its process died of SIGKILL" in told
    assert "broken: table1" in told
    broken, judged = json.loads((tmp_path / "findings.json").read_text())["studies"]
    assert (broken["findings"], len(judged["findings"])) == ([], 14)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_no_encoding_can_cost_the_files(encoding, tmp_path):
    command = [sys.executable, "-m", "joma", "verify", "lemma6", "-v", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    said = subprocess.run(command, capture_output=True, check=True, env=environment).stdout.decode(encoding)
    assert ("√" in said) == (encoding == "utf-8")
    assert ("sqrt" in said) == (encoding != "utf-8")
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize("columns", [60, 100, 150])
def test_lines_fit_the_window_and_end_without_spaces(columns, tmp_path, capsys, monkeypatch, stored_claims):
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


def test_colour_is_for_terminals_and_can_be_refused(stored_claims, capsys, monkeypatch):
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
    assert _paper(quick) == "At paper scale: holds as corrected"
    assert _paper(replace(quick, study="elsewhere")) == ""


def test_a_misspelt_command_gets_a_suggestion_and_case_does_not_matter(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["verfy"])
    assert exit.value.code == 2
    assert "did you mean 'verify'?" in capsys.readouterr().err
    assert main(["LIST", "THM2"]) == 0
    assert capsys.readouterr().out == "thm2  Theorem 2: winner take all under a linear MLP\n"
    assert main([]) == 0
    assert "usage: joma" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["verify", "list", "show", "report", "scan", "export"])
def test_an_unknown_option_is_one_sentence_with_the_command_that_helps(command, capsys):
    required = {"show": ["thm2"], "report": ["x"], "scan": ["x"], "export": ["x", "--to", "csv"]}.get(command, [])
    with pytest.raises(SystemExit) as exit:
        main([command, *required, "--verbos"])
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"joma {command} --help" in error


def test_the_list_is_instant_and_loads_no_torch():
    command = [sys.executable, "-X", "importtime", "-m", "joma", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "| torch" not in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(studies.names())
    assert all(studies.title(name) == studies.load(name).title for name in studies.names())


def test_options_of_every_study_can_be_read_and_say_what_they_are():
    for name in studies.names():
        study = studies.load(name)
        for scale in SCALES:
            assert parse(study, ["--scale", scale]).config == study.preset(scale)
    rates = parse(studies.load("thm1-rates"), ["--rates", "1", "1", "3", "4"]).config.rates
    assert rates == ((1.0, 1.0), (3.0, 4.0))
    with pytest.raises(ValueError, match="groups of 2"):
        parse(studies.load("thm1-rates"), ["--rates", "1", "2", "3"])


def test_the_command_that_repeats_a_run_gives_its_config_back():
    study = studies.load("thm1-rates")
    config = dataclasses.replace(study.quick, rates=((1.0, 1.0), (3.0, 4.0)), steps=30)
    _, _, name, *options = shlex.split(command_line(study, plain_config(config)))
    assert name == "thm1-rates"
    assert parse(study, options).config == config


def test_options_are_typed_and_the_nearest_name_is_suggested(with_toy, tmp_path, capsys):
    for arguments, hint in ((["--sice", "3"], "--size"), (["--size", "three"], "--size")):
        with pytest.raises(SystemExit) as exit:
            main(["run", "toy", *arguments])
        assert exit.value.code == 2
        assert hint in capsys.readouterr().err


def test_what_only_the_config_knows_is_refused_before_anything_runs(tmp_path, capsys):
    assert main(["run", "thm2", "--horizon", "2", "--out", str(tmp_path / "out")]) == 2
    assert "horizon must lie between 0 and 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["verify", "thm22"], "did you mean 'thm2'?"),
        (["run", "toy", "--size", "0"], "size must be at least 1"),
        (["verify", "toy", "--out", "/tmp", "--json", "/nowhere/findings.json"], "there is no folder /nowhere"),
        (["report", "/nowhere"], "holds no runs"),
        (["export", "/nowhere.sqlite", "--to", "csv"], "/nowhere.sqlite"),
    ],
)
def test_bad_input_is_one_sentence_and_status_two(with_toy, arguments, sentence, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("joma: ")
    assert error.count("\n") == 1
    assert sentence in error


def test_report_of_a_file_says_it_is_no_folder(capsys):
    assert main(["report", __file__]) == 2
    said = (
        f"joma: {__file__} is no folder and no run; name a folder that `joma verify` wrote, or .sqlite files of runs\n"
    )
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("name", "sentence"),
    [(".", "json must be a file, but "), ("x" * 252, "cannot be written: File name too long")],  # .NAME.new is longer
)
def test_json_that_cannot_be_written_is_refused_before_the_work(with_toy, tmp_path, capsys, name, sentence):
    (tmp_path / "there").mkdir()
    target, out = tmp_path / "there" / name, tmp_path / "out"
    assert main(["verify", "toy", "--out", str(out), "--json", str(target)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (out / "runs").exists()
    assert not list((tmp_path / "there").iterdir())


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
    assert "the same command goes on" in error


def test_several_runs_are_exported_each_beside_itself(tmp_path, capsys):
    paths = [tmp_path / f"{name}.sqlite" for name in ("a", "b", "c")]
    for path in (paths[0], paths[2]):
        with Run.create(path, study="demo", config={}) as run:
            run.append("v", 0, 1.5)
    paths[1].write_text("no run")
    assert main(["export", *map(str, paths), "--to", "csv"]) == 2
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [str(tmp_path / "a.csv"), str(tmp_path / "c.csv")]
    assert captured.err.startswith(f"joma: {paths[1]} ")
    assert (tmp_path / "c.csv").read_text() == export(paths[2], "csv", tmp_path / "alone").read_text()
    assert main(["export", str(paths[0]), str(paths[2]), "--to", "csv", "--out", str(tmp_path / "x")]) == 2
    assert "--out names one file, but there are 2 runs" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_out_must_be_a_folder(with_toy, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["verify", "toy", "--out", str(tmp_path / "file")]) == 2
    assert "out must be a folder" in capsys.readouterr().err


def test_list_names_every_study_and_claim(capsys):
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["studies"]
    assert [s["name"] for s in listed] == list(studies.names())
    names = [c["name"] for s in listed for c in s["claims"]]
    assert len(names) >= 40
    assert all(len({c["name"] for c in s["claims"]}) == len(s["claims"]) for s in listed)


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_run_without_a_study_says_how(flag, capsys):
    assert main(["run", flag]) == 0
    assert "joma run STUDY --help" in capsys.readouterr().out
    assert main(["run"]) == 2
    assert "a study must be named" in capsys.readouterr().err


def test_python_m_joma_is_joma():
    said = subprocess.run(
        [sys.executable, "-m", "joma", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith("joma ")


def test_help_loads_nothing_that_takes_long():
    """How long it takes is measured by benchmarks/bench_startup.py."""
    command = [sys.executable, "-X", "importtime", "-m", "joma.cli.main", "--help"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    names = {line.rpartition("|")[2].strip() for line in loaded.splitlines()}
    assert "joma.cli.parser" in names
    assert not {"torch", "numpy", "scipy", "matplotlib", "rich", "transformers", "sqlite3"} & names
    assert sum(name.startswith("joma") for name in names) < 40


@pytest.mark.parametrize("study", ["cdag-angles", "thm4", "thm1-coherence", "lemma4"])
def test_a_bare_machine_can_run_studies(study, tmp_path):
    """`python -m joma.studies` must not import what a GPU machine may lack: flows, quantiles and roots are our own."""
    script = (
        "import sys, runpy\n"
        "lacking = ('rich', 'matplotlib', 'pyarrow', 'scipy', 'transformers', 'tokenizers')\n"
        "for name in lacking: sys.modules[name] = None\n"
        f"sys.argv = ['joma.studies', {study!r}, '--out', {str(tmp_path)!r}]\n"
        "runpy.run_module('joma.studies', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "findings.json").read_text())["studies"][0]["name"] == study


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (CorpusError("train.txt is empty"), 2, "joma: train.txt is empty\n"),
        (KeyboardInterrupt(), 130, "joma: interrupted; the same command goes on where this one stopped\n"),
    ],
)
def test_the_bare_command_answers_in_one_sentence(with_toy, tmp_path, capsys, breaks, error, status, sentence):
    breaks(error)
    assert bare(["toy", "--out", str(tmp_path)]) == status
    assert capsys.readouterr().err == sentence


def test_the_bare_command_refuses_what_it_cannot_use(with_toy, tmp_path, capsys):
    assert bare(["toy", "--out", __file__]) == 2
    assert capsys.readouterr().err == f"joma: out must be a folder, but {__file__} is a file\n"
    assert bare(["thm22", "--out", str(tmp_path)]) == 2
    assert "did you mean 'thm2'?" in capsys.readouterr().err


def test_a_study_that_breaks_does_not_stop_the_bare_command(with_toy, tmp_path, capsys, breaks):
    breaks(CorpusError("train.txt is empty"), "thm5")
    assert bare(["thm5", "toy", "--out", str(tmp_path)]) == 1
    assert "thm5: broke: CorpusError: train.txt is empty\ntoy: holds" in capsys.readouterr().out
    broken, judged = json.loads((tmp_path / "findings.json").read_text())["studies"]
    assert (broken["error"], broken["findings"]) == ("CorpusError: train.txt is empty", [])
    assert [finding["verdict"] for finding in judged["findings"]] == ["holds"]


@pytest.fixture
def scanned(tmp_path, capsys):
    """A folder with a scan of two checkpoints, and nothing else."""
    for step in (100, 200):
        folder = tmp_path / "training" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        weight = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        save_file({"model.layers.0.mlp.up_proj.weight": weight}, folder / "model.safetensors")
    assert main(["scan", str(tmp_path / "training"), "--out", str(tmp_path / "out")]) == 0
    assert "2 checkpoints" in capsys.readouterr().out
    return tmp_path / "out"


def test_scans_have_their_section_beside_studies_and_alone(scanned, capsys):
    assert main(["report", str(scanned)]) == 0
    assert "training" in (scanned / "report.html").read_text()
    assert not (scanned / "findings.json").exists()
    assert main(["verify", "lemma6", "--out", str(scanned)]) == 0
    page = (scanned / "report.html").read_text()
    assert "joma scan" in page
    assert "lemma6/lemma-7" in page
