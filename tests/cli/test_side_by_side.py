"""Several studies in one command: their numbers, and what one that dies or Ctrl-C leaves."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from joma.claims.execute import attempt
from joma.claims.ledger import findings_json, with_q
from joma.cli.main import main
from joma.host.files import as_json
from joma.host.progress import silent
from joma.host.threads import limited
from joma.scale import choosing, local, sharing
from joma.scale.task import Done, Going, Lost
from joma.scale.worker import carried_out
from joma.studies import load
from joma.studies.task import FUNCTION, carry_out


@pytest.mark.long
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
    assert error == hint + "joma: interrupted; the same command continues where this one stopped\n"
    assert running.returncode == 130


def _findings(folder):
    return json.loads((folder / "findings.json").read_text())["studies"]


@pytest.mark.long
def test_a_study_that_dies_takes_no_other_along_and_changes_no_number(tmp_path, capsys, monkeypatch):
    """Its process is killed as soon as it says something; the others are judged as they are alone."""
    real = local._Process.hear

    def hear(self, message):
        if self.task and self.task.name == "table1":
            self.running.kill()
        return real(self, message)

    monkeypatch.setattr(local._Process, "hear", hear)
    assert main(["verify", "table1", "lemma6", "thm5", "-j", "2", "--out", str(tmp_path / "beside")]) == 1
    told = capsys.readouterr().out
    assert "broke: its process died of SIGKILL" in told
    assert "broken: table1" in told
    broken, *beside = _findings(tmp_path / "beside")
    assert broken["findings"] == []
    with limited(1):
        alone = [attempt(one, one.quick, tmp_path / "alone", alone=False) for one in map(load, ("lemma6", "thm5"))]
    alone = json.loads(as_json(findings_json(with_q(alone))))["studies"]
    for study in [*alone, *beside]:
        del study["seconds"]
        for finding in study["findings"]:
            del finding["provenance"]["created"]
    assert alone == beside


class Here:
    """An executor in this process."""

    def events(self, function, tasks):
        assert function == FUNCTION
        self.tasks = list(tasks)
        for task in self.tasks:
            yield Going(task, 0.5, "halfway")
            yield Done(task, json.loads(json.dumps(carry_out(dict(task.arguments), silent))), 1)


def test_studies_elsewhere_write_to_the_same_folder_and_give_the_same(tmp_path, monkeypatch, capsys):
    """A study alone goes there too. Elsewhere the working directory is another one, so the folder is named in full."""
    executor, asked = Here(), []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choosing, "RayCluster", lambda address, **how: asked.append((address, how)) or executor)
    assert main(["verify", "thm5", "--on", "ray:auto", "--out", "there"]) == 0
    assert main(["verify", "thm5", "--out", "here"]) == 0
    assert asked == [("auto", {"jobs": None, "threads": 1, "silence": 600.0})]
    (task,) = executor.tasks
    assert (task.arguments["out"], task.gpus) == (str(tmp_path / "there"), 0)
    assert task.arguments["mark"].startswith(".joma-")
    assert not list((tmp_path / "there").glob(".joma-*"))
    assert "thm5" in capsys.readouterr().out
    (here,), (there,) = (
        json.loads((tmp_path / name / "findings.json").read_text())["studies"] for name in ("here", "there")
    )
    assert [finding["evidence"] for finding in here["findings"]] == [f["evidence"] for f in there["findings"]]
    page = (tmp_path / "there" / "report.html").read_text(encoding="utf-8")
    assert str(tmp_path) not in page


class OnAnotherMachine(Here):
    """An executor whose processes find another folder under the name that they are given."""

    def events(self, function, tasks):
        self.tasks = list(tasks)
        for task in self.tasks:
            arguments = {**task.arguments, "out": str(Path(task.arguments["out"]).parent / "of-the-other")}
            answer = carried_out(carry_out, arguments, silent)
            yield Lost(task, answer["failed"]) if "failed" in answer else Done(task, answer["value"], 1)


def test_a_machine_that_does_not_share_the_folder_refuses_to_write_where_nobody_looks(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sharing, "_PATIENCE", 0.0)
    monkeypatch.setattr(choosing, "RayCluster", lambda address, **how: OnAnotherMachine())
    assert main(["verify", "thm5", "--on", "ray:auto", "--out", str(tmp_path / "out")]) == 1
    assert "out must be a folder that all machines of the cluster share" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "of-the-other").exists()


def test_processes_of_this_machine_need_no_mark(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(local.Local, "events", lambda self, function, tasks: iter(asked.extend(tasks) or ()))
    main(["verify", "thm5", "--on", "local", "--out", str(tmp_path / "out")])
    assert [task.arguments["mark"] for task in asked] == [""]
