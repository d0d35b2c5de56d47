"""Commands of joma in the process of the test: what they import, they import once.

A fresh process loads torch in three seconds and transformers in ten, and a test of what a command prints learns nothing
from that. That commands start is seen elsewhere: in tests/smoke.sh, tests/cli/test_working_folder.py and tests/chaos.
"""

from __future__ import annotations

import io
import os
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

from joma.cli.main import main


def joma(*arguments: object, cwd: Path | None = None, **environment: str) -> CompletedProcess[str]:
    """`joma ARGUMENTS`, from a folder and with more in its environment: its status and what it printed."""
    words = [str(one) for one in arguments]
    out, err = _stream(), _stream()
    place, known = chdir(cwd or Path.cwd()), mock.patch.dict(os.environ, environment)
    with place, known, redirect_stdout(out), redirect_stderr(err):
        status = _status(words)
    return CompletedProcess(["joma", *words], status, _text(out), _text(err))


def _status(words: list[str]) -> int:
    with warnings.catch_warnings():  # which a process would print
        warnings.simplefilter("ignore")
        try:
            return main(words)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0 if end.code is None else 1


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n", write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    buffer = stream.detach()
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
