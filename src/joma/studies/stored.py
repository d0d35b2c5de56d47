"""Stored runs: which a folder has, and what they say when they are judged and drawn again."""

import shlex
from dataclasses import replace
from pathlib import Path

from joma.claims.contract import NotRun, Study
from joma.claims.execute import Result, broken, command_line, draw, judge, not_run_at_all, plain_config, seconds_of
from joma.runs import Run, RunError
from joma.runs.following import must_stay_in
from joma.studies import is_trusted, load, names


def stored_runs(folder: Path, passed_over: set[str] | None = None) -> list[tuple[str, Path | None]]:
    """The newest finished run of every study under `folder`, None for a study that has none there.

    In FOLDER/runs, where `joma verify` puts them; studies without one are not run. Or, if there is no such folder, in
    FOLDER/STUDY/STUDY.sqlite, as records are kept, perhaps by an earlier version of the study; then only of those
    studies that have one. Where no study has one, the list is empty.

    A record does not decide what is loaded: of studies that are not joma's own, those count that a user has named.

    passed_over: gets the names of the others.

    >>> stored_runs(Path("nothing is stored here"))
    []
    """
    verified = (folder / "runs").is_dir()
    newest: dict[str, tuple[str, Path]] = {}
    trusted = [name for name in names() if is_trusted(name)]
    kept = (folder / name / f"{name}.sqlite" for name in trusted)
    for path in sorted((folder / "runs").glob("*.sqlite")) if verified else filter(Path.is_file, kept):
        try:
            must_stay_in(path, folder)
            with Run.open(path) as run:
                if run.study not in trusted and run.study != "scan" and passed_over is not None:
                    passed_over.add(run.study)
                known = run.study in trusted and (run.version == load(run.study).version or not verified)
                if run.status == "finished" and known and (run.created, path) > newest.get(run.study, ("", path)):
                    newest[run.study] = (run.created, path)
        except RunError:  # damaged: the study whose name it has will say so, unless it has another run
            name = path.stem.rpartition("-")[0] if verified else path.stem
            if name in trusted:
                newest.setdefault(name, ("", path))
    shown = [name for name in trusted if name in newest or (verified and newest)]
    return [(name, newest[name][1] if name in newest else None) for name in shown]


def stored_result(name: str, path: Path | None, folder: Path) -> Result:
    """Judge and draw what `stored_runs` found of one study. A run that was removed or begun anew since is none."""
    study = load(name)
    if path is None:
        return _none_stored(study, folder)
    try:
        must_stay_in(path, folder)
        with Run.open(path) as run:
            return _judged(study, run) if run.status == "finished" else _none_stored(study, folder)
    except Exception as error:  # whatever one record holds, the others are judged
        return broken(study, study.quick, error) if path.exists() else _none_stored(study, folder)


def _none_stored(study: Study, folder: Path) -> Result:
    command = command_line(study, plain_config(study.quick)) + f" --out {shlex.quote(str(folder))}"
    return not_run_at_all(study, plain_config(study.quick), NotRun("no finished run of it is stored here", command))


def result_of(path: Path, *, pictures: bool = True) -> Result:
    """Judge and draw one finished run, wherever it lies."""
    with Run.open(path) as run:
        if not is_trusted(run.study):
            who = f"{path} is a run of {run.study!r}, which is not a study of joma's own"
            unknown = RunError(f"{who}; name it, or the file that holds it")
            unknown.argument = "study"
            raise unknown
        if run.status != "finished":
            raise RunError(f"{path} is not finished, so there is nothing to judge; the command that made it goes on")
        return _judged(load(run.study), run, pictures)


def _judged(study: Study, run: Run, pictures: bool = True) -> Result:
    command, seconds = command_line(study, run.config), seconds_of(run)
    recorded = replace(study, version=run.version)
    found, drawn = judge(study, run), draw(study, run) if pictures else []
    return Result(recorded, run.config, seconds, found, drawn, command, run.path, cached=True)
