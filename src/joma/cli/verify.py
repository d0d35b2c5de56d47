"""`joma verify` and `joma run`: studies carried out, their verdicts, their report."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.cli.options import add_output
from joma.cli.outputs import DEFAULT_OUT, STANDARD_OUTPUT, give_json
from joma.cli.shard import add_on, add_shard, how_to_merge, refuse_with_shard
from joma.host.errors import BadInput, as_bad_input
from joma.host.exit_status import BROKEN, OK
from joma.host.files import make_folder, usable_folder, write_json
from joma.host.printing import say
from joma.host.threads import cores, limited
from joma.host.words import short

if TYPE_CHECKING:
    from joma.claims.contract import Study, Verdict
    from joma.claims.execute import Result
    from joma.cli.terminal import Screen
    from joma.scale.parts import Part
    from joma.scale.task import Event

NOTHING_JUDGED = 3
SILENCE = {"quick": 600.0, "paper": 7200.0}
"""Seconds without a word of progress after which a study counts as stuck: a compiler may be silent for long."""
_MOST_MINUTES = 525_600
_MOST_AT_ONCE = 1024  # studies, or threads of one
_EPILOG = """\
Exit status: 0 claims were tested, 1 a study broke, 2 bad input, 3 nothing could be tested here, 130 and 143 after
Ctrl-C and SIGTERM. Give an interrupted command again to continue. What is recorded is not run again."""
_SCALES = "quick: small networks, minutes on a laptop; paper: the sizes of the sources, on a GPU (default: quick)"


def add_parser(commands: Any) -> None:
    """Add `verify` and `run` to the subcommands of `joma`."""
    verify = commands.add_parser(
        "verify",
        help="test claims and write a report",
        description="Test the claims of all studies, or of those named, and write a report.",
        epilog=_EPILOG,
    )
    verify.add_argument(
        "study", nargs="*", metavar="STUDY",
        help="names from `joma list`, or Python files that hold a study (default: all studies)",
    )  # fmt: skip
    verify.add_argument("--scale", choices=("quick", "paper"), default="quick", help=_SCALES)
    verify.add_argument("-v", "--verbose", action="store_true", help="print every claim with its verdict and numbers")
    claims = "print all claims with these verdicts, as fails,undecided,not-run"
    verify.add_argument("--claims", metavar="VERDICTS", help=claims)
    jobs = "studies at a time (default: one per core; at paper scale 1). The numbers do not depend on it"
    verify.add_argument("-j", "--jobs", type=int, metavar="N", help=jobs)
    minutes = "then spend N minutes on more seeds where they decide most claims; give it again to continue"
    verify.add_argument("--minutes", type=float, metavar="N", help=minutes)
    add_on(verify, "studies run")
    add_output(verify)
    add_shard(verify, "studies")
    verify.set_defaults(call=_verify)

    run = commands.add_parser("run", help="run one study with your own options", add_help=False)
    run.add_argument("study", metavar="STUDY", nargs="?")
    run.set_defaults(call=_run)


@dataclass(frozen=True)
class Wish:
    """What a command asks for, beside the studies."""

    out: Path
    json: Path | str | None
    scale: str
    fresh: bool = False
    threads: int = 1
    jobs: int | None = 1
    verbose: bool = False
    verdicts: tuple[Verdict, ...] | None = None
    on: str | None = None
    minutes: float | None = None

    def check(self) -> None:
        """Refuse now what would fail after minutes of work."""
        _check_counts(self.jobs, self.threads)
        usable_folder(self.out)


def _check_counts(jobs: int | None, threads: int) -> None:
    for option, value in (("--jobs", jobs), ("--threads", threads)):
        if value is None:
            continue
        if value < 1:
            raise BadInput(f"{option} must be at least 1, got {value}")
        if value > _MOST_AT_ONCE:  # torch takes no number of 25 digits, and no machine has as many cores
            raise BadInput(f"{option} must be at most {_MOST_AT_ONCE:,}, got {short(str(value))}")


def _verify(options: argparse.Namespace, _: list[str]) -> int:
    jobs = options.jobs
    if jobs is None and options.on is None:
        jobs = cores() if options.scale == "quick" else 1
    _check_counts(jobs, options.threads)
    if options.minutes is not None:
        if not 0 <= options.minutes <= _MOST_MINUTES:
            raise BadInput(f"--minutes must be from 0 to {_MOST_MINUTES:,}, got {options.minutes:g}")
        if options.shard is not None or options.on is not None:
            raise BadInput("--minutes are spent on this machine by all studies together; leave out --shard and --on")
    with limited(options.threads):  # before torch loads, where it is not loaded yet
        from joma import studies
        from joma.claims.ledger import verdicts_named

        names = list(dict.fromkeys(map(studies.chosen, options.study)) or studies.names())
        if options.shard is not None:
            return _shard(names, options, jobs)
        verdicts = None if options.claims is None else verdicts_named(options.claims)
        how = (options.scale, options.fresh, options.threads, jobs, options.verbose, verdicts, options.on)
        wish = Wish(options.out, options.json, *how, options.minutes)
        wish.check()
        if len(names) > 1 or wish.on is not None:
            return _carry_out(names, wish, _side_by_side(names, wish))
        study = studies.load(names[0])
        return _carry_out(names, wish, partial(_alone, study, study.preset(options.scale), wish))


def _shard(names: list[str], options: argparse.Namespace, jobs: int | None) -> int:
    from joma import studies
    from joma.scale.shards import read_shard
    from joma.studies.parts import part_of, share_in_words

    refuse_with_shard(options, "json", "claims", "verbose", "minutes")
    shard = read_shard(options.shard)
    folder = shard.folder(options.out)
    wish = Wish(folder, None, options.scale, options.fresh, options.threads, jobs, on=options.on)
    wish.check()
    part = part_of(names, shard, folder, scale=options.scale, threads=options.threads)
    part.begin()
    say(share_in_words(part))
    mine = list(part.mine)
    if len(mine) > 1 or (mine and wish.on is not None):
        return _carry_out(mine, wish, _side_by_side(mine, wish), part)
    make: Callable[[Listener], Iterator[Result]] = lambda listener: iter(())
    if mine:  # one study needs no process of its own
        study = studies.load(mine[0])
        make = partial(_alone, study, study.preset(wish.scale), wish, alone=False)
    return _carry_out(mine, wish, make, part)


def _run(options: argparse.Namespace, rest: list[str]) -> int:
    if options.study is None:
        usage = "joma run STUDY [--scale quick|paper] [--OPTION VALUE ...]"
        if not {"-h", "--help"} & set(rest):
            raise BadInput(f"a study must be named: {usage}; `joma list` has their names")
        print(f"usage: {usage}\n")
        print("`joma list` has the names of the studies, `joma run STUDY --help` the options of one.")
        return OK
    from joma import studies
    from joma.claims.contract import check_config
    from joma.cli.options import parse

    study = studies.load(studies.chosen(options.study))
    with as_bad_input():
        chosen = parse(study, rest)
    with chosen.outputs:
        wish = Wish(chosen.out, chosen.json, chosen.scale, chosen.fresh, chosen.threads)
        wish.check()
        with as_bad_input():
            check_config(chosen.config)
        with limited(chosen.threads):
            return _carry_out([study.name], wish, partial(_alone, study, chosen.config, wish))


Listener = Callable[[str, float, str], None]  # hears how far the study of a name is, and what it does now


def _carry_out(
    names: list[str], wish: Wish, make: Callable[[Listener], Iterator[Result]], part: Part | None = None
) -> int:
    """Execute the studies, write the files, and only then print what came out. part: the shard that they are of."""
    from joma.cli.terminal import Screen, pointing_to_finished
    from joma.cli.time_left import TimeLeft

    results: list[Result] = []
    from joma.studies.seconds import times

    takes = times(names, wish.scale)
    screen = Screen(sorted(names, key=lambda name: -takes[name]), to_stderr=wish.json == "-")
    if wish.jobs and wish.on is None and len(names) > 1:
        screen.left = TimeLeft({name: takes[name] for name in screen.studies}, jobs=wish.jobs)
    spent: list[str] = []
    with pointing_to_finished(results, len(names), wish.out), screen:
        for result in make(screen.progress):
            results.append(result)
            screen.finished(result)
        if wish.minutes is not None:
            from joma.cli.minutes import go_on

            how: dict[str, Any] = {"threads": wish.threads, "silence": SILENCE[wish.scale]}
            jobs = wish.jobs or 1
            results, spent = go_on(results, wish.minutes, wish.out, screen, scale=wish.scale, jobs=jobs, **how)
    results.sort(key=lambda result: names.index(result.study.name))
    if part is not None:
        from joma.studies.parts import finish

        finish(part, results)
        say(how_to_merge(part))
        return exit_status(results) if results else OK
    results = write_and_print(results, wish, screen, spent)
    return exit_status(results)


def exit_status(results: Sequence[Result]) -> int:
    """What the command ends with."""
    if any(result.error for result in results):
        return BROKEN
    from joma.claims.rules import UNJUDGED

    judged = any(finding.verdict not in UNJUDGED for result in results for finding in result.findings)
    return OK if judged else NOTHING_JUDGED


def _alone(study: Study, config: Any, wish: Wish, listener: Listener, *, alone: bool = True) -> Iterator[Result]:
    from joma.claims.execute import attempt

    yield attempt(study, config, wish.out, fresh=wish.fresh, progress=partial(listener, study.name), alone=alone)


def _side_by_side(names: list[str], wish: Wish) -> Callable[[Listener], Iterator[Result]]:
    """Several studies, in processes that start now; one that dies or is stuck does not stop the others."""
    from joma.scale.choosing import executor_of
    from joma.scale.local import Local
    from joma.scale.sharing import marked
    from joma.studies.seconds import times
    from joma.studies.task import FUNCTION, study_task

    takes = times(names, wish.scale)
    longest_first = sorted(names, key=lambda name: -takes[name])
    out = wish.out if wish.on is None else wish.out.absolute()  # elsewhere, the working directory is another one
    how: dict[str, Any] = {"jobs": wish.jobs, "threads": wish.threads, "silence": SILENCE[wish.scale]}
    # Unless a place is named, a study whose process died is not begun again: that is said, and the command goes on.
    executor = Local(**how, retries=0) if wish.on is None else executor_of(wish.on, **how)
    with ExitStack() as stack:
        mark = "" if isinstance(executor, Local) else stack.enter_context(marked(out))
        tasks = [study_task(name, wish.scale, out, fresh=wish.fresh, mark=mark) for name in longest_first]
        events = executor.events(FUNCTION, tasks)
        return partial(_results, events, wish, stack.pop_all())


def _results(events: Iterator[Event], wish: Wish, until_the_end: ExitStack, listener: Listener) -> Iterator[Result]:
    from joma.scale.task import Going, Lost
    from joma.studies.task import loaded, lost, result_of

    with until_the_end:
        for event in events:
            if isinstance(event, Going):
                listener(event.task.name, event.share, event.doing)
            elif isinstance(event, Lost):
                yield lost(event.task.name, wish.scale, event.reason)
            else:
                yield result_of(loaded(event.task.name), event.value)


def write_and_print(results: list[Result], wish: Wish, screen: Screen, spent: Sequence[str] = ()) -> list[Result]:
    """The files first: nothing that goes wrong on the screen may cost them. Returns the results, judged together."""
    from joma.claims.ledger import findings_json, with_q
    from joma.report import scan_runs, write_report

    results = with_q(results)
    ledger, page = findings_json(results), None
    try:
        if not all(result.error for result in results):  # else the files of an earlier command are worth more
            make_folder(wish.out)
            if wish.json != STANDARD_OUTPUT:
                give_json(wish.json, ledger)
            write_json(wish.out / "findings.json", ledger)
            page = write_report(results, wish.out, scale=wish.scale, scans=scan_runs(wish.out))
    finally:  # a full disk must not cost the verdicts, too
        unlisted = _print_claims(results, wish, screen)
    if wish.json == STANDARD_OUTPUT:
        give_json(wish.json, ledger)
    screen.summary(results, page, more=[*spent, *(_how_to_see(results, wish) if unlisted else ())])
    return results


def _print_claims(results: list[Result], wish: Wish, screen: Screen) -> bool:
    """What was asked for; else, of what needs attention, as much as fits. Returns whether claims are not listed."""
    from joma.claims.contract import VERDICTS
    from joma.cli.terminal import ATTENTION

    if wish.verbose:
        screen.all(results, wish.verdicts or VERDICTS)
        screen.headlines(results)
        return False
    screen.headlines(results)
    if wish.verdicts:
        return bool(screen.attention(results, wish.verdicts, room=math.inf))
    shown = VERDICTS if len(results) == 1 else ATTENTION
    unlisted = screen.attention(results, shown)
    return bool(unlisted) or any(one.verdict not in shown for result in results for one in result.findings)


def _how_to_see(results: list[Result], wish: Wish) -> list[str]:
    """The commands that list what was not listed. None of them runs anything again."""
    from joma import studies

    names = [result.study.name for result in results]
    out = [] if wish.out == DEFAULT_OUT else ["--out", str(wish.out)]
    if len(names) == 1:
        return [f"to see every claim: {shlex.join(['joma', 'show', names[0], *out])}"]
    chosen = [] if names == list(studies.names()) else names
    scale = [] if wish.scale == "quick" else ["--scale", wish.scale]
    scale += [] if wish.minutes is None else ["--minutes", "0"]
    return [
        f"to see every claim (nothing is run again): {shlex.join(['joma', 'verify', *chosen, *scale, *out, '-v'])}",
        f"to see one study: {shlex.join(['joma', 'show', 'STUDY', *out])}"
        "; what was found at paper scale: joma show STUDY --scale paper",
    ]
