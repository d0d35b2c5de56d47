"""Carrying a study out: run it (or take up its stored run), judge, draw. It is handed the study and knows none."""

import dataclasses
import hashlib
import json
import shlex
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from joma.claims.contract import SCALES, Finding, NotRun, Progress, Study, check_config, silent
from joma.claims.finding import Provenance
from joma.claims.text_source import source_of
from joma.claims.verdicts import not_run
from joma.data.errors import CorpusError
from joma.figures.style import house_style, to_svg
from joma.host.errors import BadInput
from joma.host.named_code import contained
from joma.host.showing import Shown
from joma.runs import Run, RunError
from joma.runs.errors import RunBusy


@dataclass(frozen=True)
class Picture:
    """A drawn figure: its name, its caption, and the picture itself as SVG text, which carries its alternative text.

    >>> Picture("curve", "v over time", "<svg></svg>").caption
    'v over time'
    """

    name: str
    caption: str
    svg: str
    alt: str = ""


@dataclass(frozen=True)
class Result(Shown):
    """All that a report says about one study.

    >>> from joma.studies import load
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
    cached: bool = False
    """Whether a finished record was only judged and drawn again; `seconds` are then those of the day it ran."""

    def as_json(self) -> dict[str, Any]:
        whole = {
            "name": self.study.name,
            "title": self.study.title,
            "seconds": round(self.seconds, 3),
            "findings": [finding.as_json() for finding in self.findings],
        }
        return whole | {"error": self.error} if self.error else whole


def execute(
    study: Study, config: Any, folder: Path, *, fresh: bool = False, progress: Progress = silent, pictures: bool = True
) -> Result:
    """Run `study` with `config`, keeping its record under `folder`, and judge and draw what was recorded.

    - study, config: what to run; `study.quick` and `study.paper` are its two sizes
    - folder: a finished record of the same config and version there is not run again, an unfinished one goes on
    - fresh: throw such a record away first
    - progress: hears how far it is, as a share and in words
    - pictures: whether to draw

    >>> import tempfile
    >>> from joma.studies import load
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
    begun, cached = path.exists(), False
    if begun:
        with Run.open(path) as stored:
            cached = stored.status == "finished"
    try:
        run = _run(study, config, plain, path, progress)
    except (NotRun, CorpusError) as reason:
        if not begun:  # nothing was trained yet; else what it lacks now it had then, and the record is worth keeping
            Run.delete(path)
        if isinstance(reason, NotRun):
            return not_run_at_all(study, plain, reason)
        raise
    with run:
        progress(1.0, "judging and drawing")
        findings = judge(study, run)
        drawn = draw(study, run) if pictures else []
        seconds, command = seconds_of(run), command_line(study, plain)
        return Result(study, plain, seconds, findings, drawn, command, path, cached=cached)


def attempt(study: Study, config: Any, out: Path, *, alone: bool, **how: Any) -> Result:
    """`execute`, where a study that breaks becomes a result that says so.

    Alone, a text that does not fit what was asked for is bad input, and raised; so is a folder that another command
    works in.
    """
    try:
        return execute(study, config, out, **how)
    except RunBusy as error:
        by = f"another command (process {error.writer}) runs {study.name} in {out}"
        sentence = f"{by}: wait for it and give this command again, or give it another folder"
        if alone:
            raise BadInput(sentence, argument="out") from error
        return replace(broken(study, config, error), error=sentence)
    except Exception as error:  # one broken study must not hide the verdicts of the others
        if alone and isinstance(error, CorpusError):
            raise
        return broken(study, config, error)


def broken(study: Study, config: Any, error: Exception) -> Result:
    """The result of a study that raised `error`: no findings, but a line that says why.

    >>> from joma.studies import load
    >>> broken(load("thm2"), load("thm2").quick, ValueError("no room")).error
    'ValueError: no room'
    """
    plain = plain_config(config)
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return Result(study, plain, 0.0, [], [], command_line(study, plain), None, reason)


def not_run_at_all(study: Study, config: dict[str, Any], reason: NotRun) -> Result:
    """The result of a study that could not be run: a finding for every claim that says why."""
    found = (not_run(claim, "a run", reason.reason, reason.command, **reason.changes) for claim in study.claims)
    findings = [_with_command(study, config, one) for one in found]
    return Result(study, config, 0.0, findings, [], command_line(study, config), None)


def _with_command(study: Study, config: dict[str, Any], found: Finding) -> Finding:
    command = found.command
    if found.changes or not (command or found.reason):
        if unknown := set(found.changes) - {field.name for field in dataclasses.fields(study.quick)}:
            raise TypeError(f"study {study.name!r} has no option {', '.join(unknown)}")
        command = command_line(study, config | {name: _short(value) for name, value in found.changes.items()})
    return replace(found, study=study.name, command=command, changes={})


def _short(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_short(one) for one in value]
    return float(f"{value:g}") if isinstance(value, float) else value


def judge(study: Study, run: Run) -> list[Finding]:
    """The findings of a recorded run: one for each claim, in the study's order, with where they come from."""
    with run.remembering(), contained(f"the study {study.name}"):
        by_claim = {finding.claim.name: finding for finding in study.judge(run)}
    wanted = [claim.name for claim in study.claims]
    if set(by_claim) != set(wanted):
        raise RuntimeError(f"study {study.name!r} judged {sorted(by_claim)}, but claims {sorted(wanted)}")
    origin = provenance(run)
    return [replace(_with_command(study, run.config, by_claim[name]), provenance=origin) for name in wanted]


def provenance(run: Run) -> Provenance:
    """Where the numbers of a run come from: version, config, commit, machine, record."""
    machine = run.machine.get("gpu") or run.machine.get("cpu") or ""
    config = json.dumps(run.config, sort_keys=True)
    return Provenance(
        study_version=run.version, config_sha256=hashlib.sha256(config.encode()).hexdigest(),
        commit=str(run.versions.get("commit", "")), machine=str(machine), created=run.created, record=run.path.name,
        text_sha256=source_of(run),
    )  # fmt: skip


def seconds_of(run: Run) -> float:
    """What a finished run took."""
    found = run.value("seconds")
    if found.shape != () or np.iscomplexobj(found) or not 0 <= found < np.inf:
        raise RunError(f"{run.path} is damaged: the time that it took cannot be read")
    return float(found)


def draw(study: Study, run: Run) -> list[Picture]:
    """The figures of a recorded run as SVG; none where matplotlib is not installed (the extra `viz`)."""
    if find_spec("matplotlib") is None:
        return []
    with house_style(), run.remembering(), contained(f"the study {study.name}"):
        drawn = [(drawing, drawing.description) for drawing in study.draw(run)]
        return [Picture(one.name, one.caption, to_svg(one.figure, title=seen), seen) for one, seen in drawn]


def plain_config(config: Any) -> dict[str, Any]:
    """A config dataclass as the JSON that a run stores.

    >>> from joma.studies import load
    >>> plain_config(load("fig7").quick)["device"]
    'cpu'
    """
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return plain


def run_path(study: Study, config: dict[str, Any], folder: Path) -> Path:
    """Where the record of this study, version and config lives: the name changes when any of them does.

    >>> from joma.studies import load
    >>> run_path(load("thm2"), {}, Path("out")).parent.as_posix()
    'out/runs'
    """
    identity = json.dumps({"version": study.version, "config": config}, sort_keys=True)
    return folder / "runs" / f"{study.name}-{hashlib.sha256(identity.encode()).hexdigest()[:10]}.sqlite"


def command_line(study: Study, config: dict[str, Any]) -> str:
    """The shortest command that repeats a run: a preset if it is one, else `joma run` with what differs from one.

    >>> from joma.studies import load
    >>> command_line(load("thm2"), plain_config(load("thm2").paper))
    'joma verify thm2 --scale paper'
    """
    quick, called = plain_config(study.quick), shlex.quote(study.file) if study.file else study.name
    complete = quick | config  # an older record lacks the options that came later, which then had their default
    differ: dict[str, dict[str, Any]] = {}
    for scale in SCALES:
        preset = plain_config(study.preset(scale))
        differ[scale] = {key: value for key, value in complete.items() if value != preset.get(key)}
    scale = min(SCALES, key=lambda scale: len(differ[scale]))
    options = [*(["--scale paper"] if scale == "paper" else []), *(_option(*one) for one in differ[scale].items())]
    return " ".join(["joma run" if differ[scale] else "joma verify", called, *options])


def _option(key: str, value: Any) -> str:
    name = "--" + key.replace("_", "-")
    if isinstance(value, bool):
        return name if value else "--no-" + key.replace("_", "-")
    return " ".join([name, *(shlex.quote(str(v)) for v in _flat(value))])


def _flat(value: Any) -> list[Any]:
    return [one for each in value for one in _flat(each)] if isinstance(value, list) else [value]


def _run(study: Study, config: Any, plain: dict[str, Any], path: Path, progress: Progress) -> Run:
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
            with contained(f"the study {study.name}"):
                study.run(config, run, clock)
        except (NotRun, KeyboardInterrupt):
            raise
        except Exception as error:
            run.fail(f"{type(error).__name__}: {error}", traceback.format_exc())
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
