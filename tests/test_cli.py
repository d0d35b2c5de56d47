"""The command line, in process where that is enough and as a real command where it matters."""

import json
import re
import subprocess
import sys
import time

import pytest

from joma import studies
from joma.cli import main


@pytest.fixture
def with_toy(toy, monkeypatch):
    study, _ = toy
    real = studies.load
    monkeypatch.setitem(studies._FILES, "toy", "toy")
    monkeypatch.setattr(studies, "load", lambda name: study if name == "toy" else real(name))
    return study


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
    assert "1 claims: 1 holds" in out
    assert out.rstrip().endswith(f"report: {tmp_path / 'out' / 'report.html'}")
    assert (tmp_path / "out" / "report.html").exists()


def test_a_page_of_one_study_says_how_to_see_the_others(with_toy, tmp_path, capsys):
    assert main(["verify", "thm5", "--out", str(tmp_path)]) == 0
    assert "one page of all" not in capsys.readouterr().out
    assert main(["verify", "toy", "--out", str(tmp_path)]) == 0
    said = f"runs of other studies are there too; one page of all: joma report {tmp_path}\nreport: "
    assert said in capsys.readouterr().out


def test_without_a_terminal_progress_is_a_line_now_and_then(with_toy, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("joma.terminal._PLAIN_EVERY", 0.0)
    assert main(["verify", "thm5", "--out", str(tmp_path)]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "[1/1] thm5 " in line and "%" in line]
    assert told
    assert all(re.search(r"thm5 +\d+% +\d+ s  \S", line) for line in told)


def test_json_on_standard_output_is_json_alone(with_toy, tmp_path, capsys):
    assert main(["verify", "toy", "--out", str(tmp_path), "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["studies"][0]["name"] == "toy"
    assert "report:" in captured.err


def test_one_broken_study_does_not_hide_the_others(with_toy, tmp_path, capsys):
    assert main(["run", "toy", "--fail-at", "second", "--out", str(tmp_path)]) == 1
    assert "broke: RuntimeError: boom" in capsys.readouterr().out


def test_a_text_that_does_not_fit_is_bad_input(with_toy, tmp_path, capsys, monkeypatch):
    from joma.data.errors import CorpusError

    def refuses(*_, **__):
        raise CorpusError("the text is too short")

    monkeypatch.setattr("joma.studies.execute.execute", refuses)
    assert main(["run", "toy", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("joma: the text is too short\n")


def test_not_run_is_no_failure(with_toy, tmp_path, capsys):
    assert main(["run", "toy", "--fail-at", "gpu", "--out", str(tmp_path)]) == 0
    assert "not run" in capsys.readouterr().out


def test_report_judges_stored_runs_again_and_rewrites_report_and_findings(with_toy, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(studies, "_FILES", {"toy": "toy"})
    monkeypatch.setattr("joma.studies.execute.load", studies.load)
    assert main(["verify", "toy", "--out", str(tmp_path)]) == 0
    wanted = json.loads((tmp_path / "findings.json").read_text())
    (tmp_path / "findings.json").write_text("{}")
    (tmp_path / "report.html").unlink()
    assert main(["report", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "findings.json").read_text()) == wanted
    assert (tmp_path / "report.html").exists()


def test_report_of_kept_records_shows_those_alone_and_can_go_elsewhere(with_toy, tmp_path, monkeypatch):
    monkeypatch.setattr("joma.studies.execute.load", studies.load)
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


def test_options_are_typed_and_the_nearest_name_is_suggested(with_toy, tmp_path, capsys):
    for arguments, hint in ((["--sice", "3"], "--size"), (["--size", "three"], "--size")):
        with pytest.raises(SystemExit) as exit:
            main(["run", "toy", *arguments])
        assert exit.value.code == 2
        assert hint in capsys.readouterr().err


def test_what_only_the_config_knows_is_refused_before_anything_runs(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit:
        main(["run", "thm2", "--horizon", "2", "--out", str(tmp_path / "out")])
    assert exit.value.code == 2
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


def test_out_must_be_a_folder(with_toy, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["verify", "toy", "--out", str(tmp_path / "file")]) == 2
    assert "--out must be a folder" in capsys.readouterr().err


def test_list_names_every_study_and_claim(capsys):
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["studies"]
    assert [s["name"] for s in listed] == list(studies.names())
    names = [c["name"] for s in listed for c in s["claims"]]
    assert len(names) >= 40
    assert all(len({c["name"] for c in s["claims"]}) == len(s["claims"]) for s in listed)


def test_help_is_instant_and_loads_no_torch():
    command = [sys.executable, "-X", "importtime", "-m", "joma.cli", "--help"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "| torch" not in loaded
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "joma.cli", "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.3


def test_a_bare_machine_can_run_studies(tmp_path):
    """`python -m joma.studies` must not import what a GPU machine may lack."""
    script = (
        "import sys, runpy\n"
        "for name in ('tyro', 'rich', 'matplotlib', 'pyarrow'): sys.modules[name] = None\n"
        f"sys.argv = ['joma.studies', 'cdag-angles', '--out', {str(tmp_path)!r}]\n"
        "runpy.run_module('joma.studies', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "findings.json").read_text())["studies"][0]["name"] == "cdag-angles"
