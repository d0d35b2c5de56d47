"""`joma verify --minutes N`: rounds of further seeds after the verdicts are there, until the time is over."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from joma.claims.execute import plain_config, run_path
from joma.claims.rules import UNJUDGED
from joma.host.words import counted
from joma.report.markup import duration
from joma.runs import Run
from joma.scale.local import Local
from joma.scale.task import Done, Going
from joma.studies import load
from joma.studies.further import Further, chosen, further
from joma.studies.task import FUNCTION, result_of, study_task

if TYPE_CHECKING:
    from joma.claims.execute import Result
    from joma.cli.terminal import Screen


def go_on(
    results: Sequence[Result], minutes: float, out: Path, screen: Screen, *, scale: str, jobs: int, **how: Any
) -> tuple[list[Result], list[str]]:
    """The results, of some studies those of further seeds, and lines on what was spent and what it decided."""
    now, began = {result.study.name: result for result in results}, monotonic()

    def path_of(one: Further) -> Path:
        study = load(one.study)
        return run_path(study, plain_config(study.preset(scale)) | one.changes, out)

    def recorded(one: Further) -> bool:
        return (path := path_of(one)).exists() and _status(path) == "finished"

    unfinished = list[str]()
    while True:
        left = 60 * minutes - (monotonic() - began)
        able = [result for name, result in now.items() if name not in unfinished]
        wanted = chosen(able, max(left, 0.0), jobs, recorded=recorded)
        if not wanted:
            break
        screen.begin([one.study for one in wanted])
        unfinished += [one.study for one in wanted]
        tasks = [study_task(one.study, scale, out, changes=one.changes) for one in wanted]
        # What is recorded is judged in no time; it does not end with the minutes.
        limit = inf if all(map(recorded, wanted)) else left
        for event in Local(jobs=jobs, seconds=limit, **how).events(FUNCTION, tasks):
            name = event.task.name
            if isinstance(event, Going):
                screen.progress(name, event.share, event.doing)
            elif isinstance(event, Done):
                result = result_of(load(name), event.value)
                screen.finished(result)
                if not result.error:
                    now[name] = result
                    unfinished.remove(name)
    return list(now.values()), _spent(results, now, unfinished, monotonic() - began)


def _status(path: Path) -> str:
    with Run.open(path) as run:
        return run.status


def _spent(results: Sequence[Result], now: dict[str, Result], unfinished: Sequence[str], seconds: float) -> list[str]:
    """What was decided in that time, what was not finished, and what would come next."""
    open_before = {one.id for result in results for one in result.findings if one.verdict == "undecided"}
    after = [one for result in now.values() for one in result.findings if one.id in open_before]
    decided = [f"{one.id} {one.verdict}" for one in after if one.verdict not in ("undecided", *UNJUDGED)]
    lines = [f"{duration(seconds)} more for further seeds: {counted(len(decided), 'claim')} decided"]
    lines[0] += f" ({', '.join(decided)})" if decided else ""
    if unfinished:
        lines.append(f"not finished in time: {', '.join(unfinished)}; the same command continues from what is recorded")
    coming = sorted((one for name in now for one in further(now[name])), key=lambda one: one.seconds / one.decides)
    if coming:
        next_one = coming[0]
        lines.append(f"the cheapest to decide next: {next_one.study} with {next_one.seeds} seeds, about "
                     f"{duration(next_one.seconds)}")  # fmt: skip
    return lines
