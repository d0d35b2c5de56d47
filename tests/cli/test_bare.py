"""`python -m joma.studies`, the command of machines that have torch and little else."""

import json
import subprocess
import sys

import pytest

from joma.data.errors import CorpusError
from joma.host.progress import ProgressLines
from joma.studies.__main__ import main as bare


def test_progress_on_a_bare_machine_goes_to_standard_error(with_toy, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "joma.studies.__main__.ProgressLines", lambda name, say, every: ProgressLines(name, say, every=0.0)
    )
    assert bare(["toy", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "toy  50%" in shown.err
    assert "toy  50%" not in shown.out


@pytest.mark.long
def test_a_bare_machine_can_run_studies(tmp_path):
    """`python -m joma.studies` must not import what a GPU machine may lack."""
    wanted = ["cdag-angles", "thm4", "lemma6"]
    script = (
        "import sys, runpy\n"
        "lacking = ('rich', 'matplotlib', 'pyarrow', 'transformers', 'tokenizers')\n"
        "for name in lacking: sys.modules[name] = None\n"
        f"sys.argv = ['joma.studies', *{wanted!r}, '--out', {str(tmp_path)!r}]\n"
        "runpy.run_module('joma.studies', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "findings.json").read_text())["studies"]
    assert {study["name"]: bool(study["findings"]) for study in found} == dict.fromkeys(wanted, True)


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (CorpusError("train.txt is empty"), 2, "joma: train.txt is empty\n"),
        (KeyboardInterrupt(), 130, "joma: interrupted; the same command continues where this one stopped\n"),
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
