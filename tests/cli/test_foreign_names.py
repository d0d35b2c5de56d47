"""Names that strangers give: control characters, bytes that are no UTF-8, paths without end."""

import json
import os
import re

import pytest
import torch
from safetensors.torch import save, save_file

from joma.cli.main import main
from joma.host.printing import clean
from joma.runs import Run, RunError

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"
UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")
LOWER = "h.0.mlp.c_fc.weight"


def printed(capsys):
    shown = capsys.readouterr()
    return shown.out + shown.err


def test_what_moves_a_cursor_is_written_out():
    assert clean(EVIL + "a\nb") == (r"\u001b]0;owned\u0007\u001b[2J\u000d\u009b31m\u202ea\u000ab")
    assert clean("a\nb\tη", keep="\n") == "a\nb\\u0009η"
    assert json.loads(clean(json.dumps({"x": EVIL}, ensure_ascii=False))) == {"x": EVIL}


@pytest.mark.parametrize("to", ["-", "file"])
def test_names_of_tensors_steps_and_files_do_nothing_to_a_terminal(tmp_path, capsys, to):
    source = tmp_path / f"model{EVIL}\nall well"
    for step in (1, 2):
        folder = source / f"{EVIL}step{step}"
        folder.mkdir(parents=True)
        save_file({LOWER: torch.eye(4) * (torch.nan if step == 1 else 1.0)}, folder / "model.safetensors")
    target = "-" if to == "-" else str(tmp_path / "found.json")
    assert main(["scan", str(source), "--out", str(tmp_path / f"out{EVIL}"), "--json", target]) == 3
    shown = printed(capsys)
    assert not UNSEEN.search(shown)
    assert "\\u001b" in shown
    assert "all well\n" not in shown.replace("\\u000aall well", "")  # no line of the stranger's own
    (tmp_path / "x").mkdir()
    save_file({f"{EVIL}\nweight": torch.eye(4)}, tmp_path / "x" / "model.safetensors")
    assert main(["scan", str(tmp_path / "x"), "--out", str(tmp_path / "out")]) == 2
    shown = printed(capsys)
    assert "\\u001b]0;owned" in shown
    assert not UNSEEN.search(shown)
    assert shown.count("\n") == 2


def test_errors_and_exports_are_cleaned(tmp_path, capsys):
    path = tmp_path / f"run{EVIL}.sqlite"
    with Run.create(path, study="demo", config={}) as run:
        run.append("loss", 0, 1.0)
    assert main(["export", str(path), "--to", "csv"]) == 0
    assert main(["export", str(tmp_path / f"{EVIL}none.sqlite"), "--to", "csv"]) == 2
    assert main(["report", str(tmp_path / f"{EVIL}nowhere")]) == 2
    with pytest.raises(SystemExit):
        main(["list", f"--{EVIL}"])
    shown = printed(capsys)
    assert shown.count("\n") == 4
    assert not UNSEEN.search(shown)


@pytest.fixture
def bytes_name(tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    try:
        os.mkdir(name)
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    return name


def test_names_that_are_not_utf_8(bytes_name, capsys):
    single = f"{bytes_name}/m\udce9.safetensors"
    with open(single, "wb") as stream:
        stream.write(save({LOWER: torch.eye(4)}))
    found = f"{bytes_name}/found.json"
    assert main(["scan", single, "--out", f"{bytes_name}/out", "--json", found]) == 0
    with open(found, encoding="utf-8") as stream:
        assert json.load(stream)["source"] == single
    assert main(["report", f"{bytes_name}/out", "--out", f"{bytes_name}/page"]) == 0
    assert main(["export", f"{bytes_name}/none.sqlite", "--to", "csv"]) == 2
    assert "fault of joma" not in printed(capsys)


def test_an_out_that_is_too_deep_for_a_run_is_refused_before_any_work(tmp_path, capsys):
    deep = tmp_path
    while len(str(deep)) < 3600:
        deep = deep / ("d" * 199)
    save_file({LOWER: torch.eye(4)}, tmp_path / "a.safetensors")
    for command in (["scan", str(tmp_path / "a.safetensors")], ["verify", "thm2"], ["run", "thm2"]):
        assert main([*command, "--out", str(deep)]) == 2
        shown = printed(capsys)
        assert "and runs below it need one of at most 380" in shown
        assert shown.count("\n") == 1
    with pytest.raises(RunError, match="a run's has at most 480"):
        Run.create(deep / "a.sqlite", study="demo", config={})
    assert not (tmp_path / ("d" * 199)).exists()
