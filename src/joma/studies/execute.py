"""Carrying a study out: run it (or take up its stored run), judge, draw."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from joma.data.errors import CorpusError
from joma.runs import Run, RunError
from joma.studies import load, names
from joma.studies.contract import Finding, NotRun, Progress, Study, check_config, silent
from joma.studies.drawing import house_style, to_svg


@dataclass(frozen=True)
class Picture:
    """A drawn figure: its name, its caption, and the picture itself as SVG text.

    >>> Picture("curve", "v over time", "<svg></svg>").caption
    'v over time'
    """

    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Result:
    """All that a report says about one study.

    >>> study = load("thm2")
    >>> result = Result(study, plain_config(study.quick), 1.5, [], [], "joma verify thm2", None)
    >>> result.as_json()["seconds"]
    1.5
    """

    study: Study
    config: dict[str, Any]
    seconds: float
    """What running it took, when it ran: a stored run keeps its own time."""
    findings: list[Finding]
    pictures: list[Picture]
    command: str
    """The command line that repeats it."""
    run: Path | None
    """The record; None if the study was not run."""
    error: str | None = None
    """What broke, in one line; a broken study has no findings."""

    def as_json(self) -> dict[str, Any]:
        whole = {
            "name": self.study.name,
            "title": self.study.title,
            "seconds": round(self.seconds, 3),
            "findings": [finding.as_json() for finding in self.findings],
        }
        return whole | {"error": self.error} if self.error else whole


def execute(
    study: Study,
    config: Any,
    folder: Path,
    *,
    fresh: bool = False,
    progress: Progress = silent,
    pictures: bool = True,
) -> Result:
    """Run `study` with `config`, keeping its record under `folder`, and judge and draw what was recorded.

    A finished record of the same config and version is not run again, an unfinished one is taken up where it
    stopped; `fresh` throws either away first.

    >>> import tempfile
    >>> study = load("thm5")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = execute(study, study.quick, Path(folder), pictures=False)
    >>> len(result.findings) == len(study.claims)
    True
    """
    check_config(config)
    plain = plain_config(config)
    path = run_path(study, plain, folder)
    if fresh:
        Run.delete(path)
    begun = path.exists()
    try:
        run = _run(study, config, plain, path, progress)
    except NotRun as reason:
        if not begun:  # else what it lacks now it had then, and the record is worth keeping
            Run.delete(path)
        return _not_run(study, plain, reason)
    except CorpusError:
        if not begun:  # nothing was trained yet
            Run.delete(path)
        raise
    with run:
        progress(1.0, "judging and drawing")
        findings = judge(study, run)
        drawn = draw(study, run) if pictures else []
        return Result(study, plain, float(run.value("seconds")), findings, drawn, command_line(study, plain), path)


def attempt(study: Study, config: Any, out: Path, *, alone: bool, **how: Any) -> Result:
    """`execute`, where a study that breaks becomes a result that says so.

    Alone, a text that does not fit what was asked for is bad input, and raised.
    """
    try:
        return execute(study, config, out, **how)
    except Exception as error:  # one broken study must not hide the verdicts of the others
        if alone and isinstance(error, CorpusError):
            raise
        return broken(study, config, error)


def broken(study: Study, config: Any, error: Exception) -> Result:
    """The result of a study that raised `error`: no findings, but a line that says why.

    >>> broken(load("thm2"), load("thm2").quick, ValueError("no room")).error
    'ValueError: no room'
    """
    plain = plain_config(config)
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return Result(study, plain, 0.0, [], [], command_line(study, plain), None, reason)


def stored_runs(folder: Path) -> list[tuple[str, Path | None]]:
    """The newest finished run of every study under `folder`, None for a study that has none there.

    In FOLDER/runs, where `joma verify` puts them; studies without one are not run. Or, if there is no such folder, in
    FOLDER/STUDY/STUDY.sqlite, as records are kept, perhaps by an earlier version of the study; then only of those
    studies that have one. Where no study has one, the list is empty.

    >>> stored_runs(Path("nothing is stored here"))
    []
    """
    verified = (folder / "runs").is_dir()
    newest: dict[str, tuple[str, Path]] = {}
    kept = (folder / name / f"{name}.sqlite" for name in names())
    for path in sorted((folder / "runs").glob("*.sqlite")) if verified else filter(Path.is_file, kept):
        try:
            with Run.open(path) as run:
                known = run.study in names() and (run.version == load(run.study).version or not verified)
                if run.status == "finished" and known and (run.created, path) > newest.get(run.study, ("", path)):
                    newest[run.study] = (run.created, path)
        except RunError:  # damaged: the study whose name it has will say so, unless it has another run
            name = path.stem.rpartition("-")[0] if verified else path.stem
            if name in names():
                newest.setdefault(name, ("", path))
    shown = [name for name in names() if name in newest or (verified and newest)]
    return [(name, newest[name][1] if name in newest else None) for name in shown]


def stored_result(name: str, path: Path | None, folder: Path) -> Result:
    """Judge and draw what `stored_runs` found of one study."""
    study = load(name)
    if path is None:
        command = command_line(study, plain_config(study.quick)) + f" --out {shlex.quote(str(folder))}"
        return _not_run(study, plain_config(study.quick), NotRun("no finished run of it is stored here", command))
    try:
        with Run.open(path) as run:
            command = command_line(study, run.config)
            return Result(
                replace(study, version=run.version),
                run.config,
                float(run.value("seconds")),
                judge(study, run),
                draw(study, run),
                command,
                path,
            )
    except RunError as error:
        return broken(study, study.quick, error)


def _not_run(study: Study, config: dict[str, Any], reason: NotRun) -> Result:
    findings = [Finding(c, "a run", str(reason), None, "not run") for c in study.claims]
    return Result(study, config, 0.0, findings, [], command_line(study, config), None)


def judge(study: Study, run: Run) -> list[Finding]:
    """The findings of a recorded run: one for each claim of the study, in the study's order.

    >>> import tempfile
    >>> study = load("thm5")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record = execute(study, study.quick, Path(folder), pictures=False).run
    ...     with Run.open(record) as run:
    ...         [finding.claim for finding in judge(study, run)] == list(study.claims)
    True
    """
    by_claim = {finding.claim.name: finding for finding in study.judge(run)}
    wanted = [claim.name for claim in study.claims]
    if set(by_claim) != set(wanted):
        raise RuntimeError(f"study {study.name!r} judged {sorted(by_claim)}, but claims {sorted(wanted)}")
    return [by_claim[name] for name in wanted]


def draw(study: Study, run: Run) -> list[Picture]:
    """The figures of a recorded run as SVG; none where matplotlib is not installed (the extra `viz`)."""
    if find_spec("matplotlib") is None:
        return []
    with house_style():
        return [Picture(d.name, d.caption, to_svg(d.figure, title=d.caption)) for d in study.draw(run)]


def plain_config(config: Any) -> dict[str, Any]:
    """A config dataclass as the JSON that a run stores.

    >>> plain_config(load("fig7").quick)["device"]
    'cpu'
    """
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return plain


def run_path(study: Study, config: dict[str, Any], folder: Path) -> Path:
    """Where the record of this study, version and config lives: the name changes when any of them does.

    >>> run_path(load("thm2"), {}, Path("out")).parent.as_posix()
    'out/runs'
    """
    identity = json.dumps({"version": study.version, "config": config}, sort_keys=True)
    return folder / "runs" / f"{study.name}-{hashlib.sha256(identity.encode()).hexdigest()[:10]}.sqlite"


def command_line(study: Study, config: dict[str, Any]) -> str:
    """The shortest command that repeats a run: a preset if it is one, else `joma run` with what differs.

    >>> command_line(load("thm2"), plain_config(load("thm2").paper))
    'joma verify thm2 --scale paper'
    """
    for scale in ("quick", "paper"):
        if config == plain_config(study.preset(scale)):
            return f"joma verify {study.name}" + ("" if scale == "quick" else f" --scale {scale}")
    quick = plain_config(study.quick)
    options = [_option(key, value) for key, value in config.items() if value != quick[key]]
    return " ".join(["joma run", study.name, *options])


def _option(key: str, value: Any) -> str:
    name = "--" + key.replace("_", "-")
    if isinstance(value, bool):
        return name if value else "--no-" + key.replace("_", "-")
    values = value if isinstance(value, list) else [value]
    return " ".join([name, *(shlex.quote(str(v)) for v in values)])


def _run(study: Study, config: Any, plain: dict[str, Any], path: Path, progress: Progress) -> Run:
    """The finished run, opened for reading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        run = Run.open(path)
        if run.status == "finished":
            try:
                study.check(config, run)
            except ValueError:
                run.close()
                raise
            return run
        run.close()
        run = Run.open(path, write=True)
    else:
        run = Run.create(path, study=study.name, config=plain, version=study.version)
    with run:
        clock = _Clock(run, progress)
        try:
            study.run(config, run, clock)
        except (NotRun, KeyboardInterrupt):
            raise
        except Exception as error:
            run.fail(f"{type(error).__name__}: {error}")
            raise
        run.keep("seconds", clock.seconds)
        run.finish()
    return Run.open(path)


class _Clock:
    """The progress of a study, which also keeps the time of all processes that worked on it: a kill costs one tick."""

    EVERY = 10.0
    """Seconds between two ticks."""
    NAME = "seconds so far"

    def __init__(self, run: Run, progress: Progress) -> None:
        last = run.last_step(self.NAME)
        self.run, self.progress, self.ticks = run, progress, 0 if last is None else last + 1
        self.before = 0.0 if last is None else float(run.at(self.NAME, last))
        self.start = self.told = perf_counter()

    def seconds(self) -> float:
        return self.before + perf_counter() - self.start

    def __call__(self, share: float, doing: str) -> None:
        self.progress(share, doing)
        if perf_counter() - self.told > self.EVERY:
            self.run.append(self.NAME, self.ticks, self.seconds())
            self.ticks, self.told = self.ticks + 1, perf_counter()
