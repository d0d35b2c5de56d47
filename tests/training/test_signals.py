"""Training that is told to end: a real process at SIGTERM, a full disk, a checkpoint that cannot be read later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from patience import PATIENCE
from small_ensembles import Killed, batch, dies_at, fresh, full, layers

from joma.host.exit_status import answer
from joma.runs import Run, RunError
from joma.training import train, train_all

SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from small_ensembles import batch, fresh, layers
from joma.host import interrupts
from joma.host.exit_status import OK, answer
from joma.runs import Run
from joma.training import train

interrupts.PATIENCE = 600.0  # the turn ends, however slow the machine is
path, how = Path(sys.argv[1]), sys.argv[2]

def told(step, members):
    if step == 7:
        print("training", flush=True)
        sys.stdin.readline()
    return batch(step, members)

def command():
    with Run.open(path, write=True) if path.exists() else fresh(path) as run:
        train(layers(batch=told, steps=100_000, measure_at=(5,)), run)
    return OK

sys.exit(answer(command) if how == "command" else command())
"""


@pytest.mark.long
@pytest.mark.parametrize(("how", "status"), [("command", 143), ("library", -signal.SIGTERM)])
def test_a_process_at_sigterm_writes_a_checkpoint(tmp_path, how, status):
    """A command ends as at Ctrl-C; a program that calls `train` dies of the signal as before, but a turn later."""
    here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "a.sqlite"), how],
        env=os.environ | {"PYTHONPATH": here},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "training\n"
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate("\n", timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == status, said
    sentence = "joma: interrupted; the same command continues where this one stopped\n"
    assert said == (sentence if how == "command" else "")
    run = Run.open(tmp_path / "a.sqlite", write=True)
    asked = []

    def counted(step, members):
        asked.append(step)
        return batch(step, members)

    train(layers(batch=counted, steps=20, measure_at=(5,)), run)
    assert min(step for step in asked if step > 0) == 10  # the end of the turn of step 7
    whole = fresh(tmp_path / "whole.sqlite")
    train(layers(steps=20, measure_at=(5,)), whole)
    np.testing.assert_array_equal(run.at("weights", 20), whole.at("weights", 20))
    run.close(), whole.close()


def signals_at(step, *numbers):
    def signalled(now, members):
        if now == step:
            for number in numbers:
                signal.raise_signal(number)
        return batch(now, members)

    return signalled


@pytest.mark.parametrize("echo", [1e9, 0.0], ids=["sent twice by timeout", "sent again later"])
def test_a_second_sigterm_does_not_wait_unless_it_is_an_echo(tmp_path, monkeypatch, echo):
    """However long the machine takes for two in a row."""
    monkeypatch.setattr("joma.host.interrupts.ECHO", echo)
    monkeypatch.setattr("joma.host.interrupts.PATIENCE", PATIENCE)
    run = fresh(tmp_path / "a.sqlite")
    twice = layers(batch=signals_at(7, signal.SIGTERM, signal.SIGTERM))
    assert answer(lambda: train(twice, run)) == 143
    assert bool(list(tmp_path.glob("*.checkpoint"))) == bool(echo)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    run.close()


def test_a_turn_that_does_not_end_is_not_waited_for(tmp_path, monkeypatch):
    """As where the compiler's processes were ended by the same signal, and torch waits for them."""
    monkeypatch.setattr("joma.host.interrupts.PATIENCE", 0.2)
    monkeypatch.setattr("joma.host.interrupts.ECHO", 0.1)

    def stuck(step, members):
        if step == 7:
            signal.raise_signal(signal.SIGTERM)
            assert not threading.Event().wait(PATIENCE), "it is told to end"
            pytest.fail("it waited")
        return batch(step, members)

    run = fresh(tmp_path / "a.sqlite")
    assert answer(lambda: train(layers(batch=stuck), run)) == 143
    assert not list(tmp_path.glob("*.checkpoint"))
    run.close()


def test_what_goes_wrong_after_a_signal_is_said(tmp_path, capsys):
    def broken(step, members):
        if step == 7:
            signal.raise_signal(signal.SIGTERM)
            raise RuntimeError("the device is gone")
        return batch(step, members)

    run = fresh(tmp_path / "a.sqlite")
    assert answer(lambda: train(layers(batch=broken), run)) == 143
    said = capsys.readouterr().err
    assert said == (
        "joma: interrupted; on the way out RuntimeError: the device is gone; the same command continues from the last "
        "checkpoint\n"
    )
    run.close()


def test_a_handler_of_somebody_else_is_left_alone(tmp_path):
    heard = []
    handler = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with fresh(tmp_path / "a.sqlite") as run:
            train(layers(batch=signals_at(7, signal.SIGTERM)), run)
            assert run.last_step("weights") == 12
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_on_a_full_disk_ends_the_command(tmp_path, monkeypatch, capsys, number, status):
    """And says where the next one begins. Were it an error like others, `joma verify` would go on to the next study."""
    run = fresh(tmp_path / "a.sqlite")
    monkeypatch.setattr(safetensors.torch, "save_file", full)
    stopped = layers(batch=signals_at(7, number))
    assert answer(lambda: train(stopped, run)) == status
    said = capsys.readouterr().err
    assert said.startswith("joma: interrupted; no checkpoint could be written to ")
    assert "No space left" in said
    assert said.endswith("the same command continues from the start, as there is no earlier checkpoint\n")
    run.close()


@pytest.mark.parametrize("reopened", [False, True])
def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch, reopened):
    """One that this command wrote, or that it began with."""
    run = fresh(tmp_path / "a.sqlite")
    write = safetensors.torch.save_file

    def once(*args, **kwargs):
        monkeypatch.setattr(safetensors.torch, "save_file", full)
        write(*args, **kwargs)

    monkeypatch.setattr(safetensors.torch, "save_file", once)
    if reopened:
        with pytest.raises(Killed):
            train(layers(batch=dies_at(7)), run, checkpoint_every=0.0)
    with pytest.raises(RunError, match=r"continues from the last checkpoint, at step 5$"):
        train(layers(), run, checkpoint_every=0.0)
    assert not list(tmp_path.glob("*.new"))
    run.close()


def test_a_checkpoint_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    """All along, and of the ensemble it belongs to; nothing is said where there is none, or nothing left to train."""
    clock = iter(range(10**6))
    monkeypatch.setattr("joma.training._telling.monotonic", lambda: next(clock))
    run = fresh(tmp_path / "a.sqlite")
    with pytest.raises(Killed):
        train_all({"a": layers(), "b": layers(batch=dies_at(11))}, run, checkpoint_every=0.0)
    (kept,) = tmp_path.glob("*.checkpoint")
    spoiled = bytearray(kept.read_bytes())
    spoiled[-5] ^= 1  # one bit of one weight
    kept.write_bytes(spoiled)
    kept.with_name(kept.name.replace("-b.", "-a.")).write_bytes(b"")
    heard = []
    several = {name: layers() for name in "abc"}
    train_all(several, run, progress=lambda share, doing: heard.append(doing), checkpoint_every=9e9)
    anew = "b: checkpoint unreadable, training begins anew"
    assert heard[0] == anew
    assert [line.endswith(f" ({anew})") for line in heard[1:]] == [line.startswith("b: ") for line in heard[1:]]
    assert any(line.startswith("b: 5 networks") for line in heard)
    assert any(line.startswith("c: 5 networks") for line in heard)
    assert run.last_step("b/weights") == run.last_step("c/weights") == 12
    run.close()
