"""A study as a task: what goes to another process, and what comes back."""

import json

import pytest

from joma.host.progress import silent
from joma.scale import sharing
from joma.scale.task import ScaleError
from joma.studies import task


@pytest.fixture
def computed(toy, monkeypatch):
    study, computed = toy
    monkeypatch.setattr(task, "load", lambda name: study)
    monkeypatch.setattr(task, "room", lambda name: "")
    return computed


def carried_out(out, **options):
    sent = json.loads(json.dumps(task.study_task("toy", "paper", out, **options).arguments))
    answer = json.loads(json.dumps(task.carry_out(sent, silent)))
    return task.result_of(task.load("toy"), answer)


def test_a_task_is_carried_out_once_unless_it_is_asked_for_afresh(computed, tmp_path):
    first = carried_out(tmp_path)
    assert (first.config["size"], first.cached, first.error) == (30, False, None)
    assert [one.verdict for one in first.findings] == ["holds"]
    assert [one.name for one in first.pictures] == ["toy"]
    assert first.run.is_file()
    assert len(computed) == 3
    assert carried_out(tmp_path).cached
    assert len(computed) == 3
    assert not carried_out(tmp_path, fresh=True).cached
    assert len(computed) == 6


def test_a_study_is_carried_out_only_where_its_folder_is_that_of_the_command(computed, tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "_PATIENCE", 0.0)
    with sharing.marked(tmp_path) as mark:
        assert carried_out(tmp_path, mark=mark).error is None
        done = len(computed)
        with pytest.raises(ScaleError, match="out must be a folder that all machines of the cluster share, and on "):
            carried_out(tmp_path / "elsewhere", mark=mark)
    assert done == len(computed) == 3
    assert not (tmp_path / "elsewhere").exists()


def test_a_process_that_died_leaves_the_config_that_it_had(computed):
    found = task.lost("toy", "paper", "its process died of SIGKILL")
    assert (found.config["size"], found.error, found.findings) == (30, "its process died of SIGKILL", [])


def test_studies_that_load_transformers_share_a_process():
    assert [task.study_task(name, "quick", "out").shared_load for name in ("fig7", "thm2")] == ["transformers", ""]


def test_a_study_asks_for_a_gpu_at_paper_scale_if_its_config_does(monkeypatch):
    from types import SimpleNamespace

    configs = {"on-gpu": SimpleNamespace(device="cuda"), "on-cpu": SimpleNamespace(device="cpu"), "none": object()}
    monkeypatch.setattr(task, "load", lambda name: SimpleNamespace(paper=configs[name]))
    monkeypatch.setattr(task, "room", lambda name: "")
    assert [task.study_task(name, "paper", "out").gpus for name in configs] == [1, 0, 0]
    monkeypatch.setattr(task, "load", lambda name: pytest.fail("a study was loaded"))
    assert task.study_task("on-gpu", "quick", "out").gpus == 0
