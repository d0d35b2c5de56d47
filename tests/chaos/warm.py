"""A process that has loaded joma once and forks what is to be disturbed: a kill then costs milliseconds, not seconds.

`Warm` is the side of the suite. The other side, `python -m chaos.warm`, answers one line of JSON with one line of JSON.
What it forks leads a process group of its own, with files in place of the terminal.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
PATIENCE = 600.0
"""Seconds after which a process that should have ended counts as one that hangs: much more than any machine needs."""


class Hangs(AssertionError):
    """A process did not end in time."""


@dataclass
class Child:
    """A forked process."""

    warm: Warm
    pid: int
    log: Path
    _status: int | None = None

    def status(self) -> int | None:
        if self._status is None:
            self._status = self.warm.ask(poll=self.pid)["status"]
        return self._status

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.status() is None:
            os.killpg(self.pid, number)

    def wait(self, seconds: float = PATIENCE) -> int:
        until = time.monotonic() + seconds
        while (status := self.status()) is None:
            if time.monotonic() > until:
                os.killpg(self.pid, signal.SIGKILL)
                raise Hangs(f"process {self.pid} did not end within {seconds:.0f} s; it said {self.said()!r}")
            time.sleep(0.004)
        return status

    def said(self) -> str:
        return self.log.with_suffix(".err").read_text(errors="replace")

    def printed(self) -> str:
        return self.log.with_suffix(".out").read_text(errors="replace")


@dataclass
class Warm:
    """The loaded process."""

    folder: Path
    started: int = 0
    _process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "JOMA_CACHE": str(self.folder / "cache")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **own},
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def start(self, function: str, *arguments: Any) -> Child:
        self.started += 1
        log = self.folder / f"log-{self.started}"
        for stream in (".out", ".err"):  # now: it may be killed before it could
            log.with_suffix(stream).touch()
        told = [str(each) if isinstance(each, Path) else each for each in arguments]
        pid = self.ask(start=function, arguments=told, log=str(log))["pid"]
        return Child(self, pid, log)

    def joma(self, *arguments: Any) -> Child:
        return self.start("chaos.work:joma", *map(str, arguments))

    def done(self, function: str, *arguments: Any) -> None:
        child = self.start(function, *arguments)
        assert child.wait() == 0, child.said()

    def close(self) -> None:
        self._process.communicate()

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    _load()
    for line in sys.stdin:
        question = json.loads(line)
        if "poll" in question:
            pid, status = os.waitpid(question["poll"], os.WNOHANG)
            answer = {"status": os.waitstatus_to_exitcode(status) if pid else None}
        else:
            answer = {"pid": _forked(question)}
        print(json.dumps(answer), flush=True)


def _load() -> None:
    """All that the commands load, by each of them carried out once."""
    to = os.dup(1)
    os.dup2(2, 1)
    from chaos.work import joma, make_checkpoints, train

    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        sys.stdout, before = nowhere, sys.stdout
        assert joma("verify", "thm5", "--threads", "1", "--out", folder) == 0
        make_checkpoints(folder, 1)
        assert joma("scan", f"{folder}/step0.safetensors", "--out", folder) == 0
        assert joma("report", folder) == 0
        assert train(f"{folder}/a.sqlite", 60.0) == 0
        sys.stdout = before
    os.dup2(to, 1)
    os.close(to)
    assert threading.active_count() == 1, "a fork would copy one thread of several"


def _forked(question: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        os.setpgid(pid, pid)
        return pid
    os.setpgid(0, 0)
    status = 1
    try:
        from chaos.work import called

        for number, name in ((0, os.devnull), (1, question["log"] + ".out"), (2, question["log"] + ".err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
        status = called(question["start"], *question["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
