"""`joma forecast`: scores anybody's forecast of attention entropy. Nothing heavy loads before it is called."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.cli.outputs import add_json, give_json, screen_beside
from joma.host.errors import BadInput
from joma.host.exit_status import OK
from joma.host.named_code import import_named, loading, run_file
from joma.host.printing import say

if TYPE_CHECKING:
    from joma.measure.intervals import Comparison
    from joma.studies.rebound.forecast.board import Score
    from joma.studies.rebound.forecast.entries import Entry

_EPILOG = """\
A forecaster is a function `forecast(history, t)` that gives the attention entropy of every layer at step 2t. It gets
the past of a run up to step t: entropy, loss, how far logits spread and why. The file runs with your rights.
Skill is the part of the squared error of "no change" that a forecast avoids: 100 % is perfect, less than 0 is worse.
Without a forecaster the command prints joma's own entries.
Exit status: 0 all well, 2 bad input."""


def add_parser(commands: Any) -> None:
    """Add `forecast` to the subcommands of `joma`."""
    parser = commands.add_parser(
        "forecast",
        help="score a forecast of attention entropy",
        description="Score a forecast of attention entropy at step 2t, made at step t, on kept training runs.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("forecaster", nargs="*", metavar="FILE.py|MODULE:NAME",
        help="a file with a function forecast(history, t), or any function by its name")  # fmt: skip
    add_json(parser, "write the scores there as JSON, too")
    parser.set_defaults(call=call)


def call(options: argparse.Namespace, _: list[str] | None = None) -> int:
    """Carry `joma forecast` out; returns the exit status. Bad input raises BadInput with one sentence."""
    from joma.studies.rebound.forecast import board, kept_runs

    given = {one: _found(one) for one in options.forecaster}
    screen = screen_beside(options.json)
    sealed, seal = kept_runs.sealed_runs(), kept_runs.seal_of()
    scores = []
    for name, entry in (given | board.standing(seal["constants"])).items():
        say(f"scoring {name}", sys.stderr)
        scores.append(board.score(entry, name, sealed, first=seal["first"]))
    _print(sorted(scores, key=lambda one: -one.skill.value), screen)
    head = {"schema": "joma-forecast", "schema_version": 1}
    give_json(options.json, head | {"scores": [one.as_json() for one in scores], "sealed": seal})
    return OK


def _print(scores: list[Score], screen: Any) -> None:
    from joma.studies.rebound.forecast.entries import LATE

    width = max(len(one.name) for one in scores)
    say(f"{'skill over no change':{width}}  {'all t':>18}  {f'from t = {LATE}':>18}", screen)
    for one in scores:
        say(f"{one.name:{width}}  {_percent(one.skill):>18}  {_percent(one.late):>18}", screen)
    skill = scores[0].skill
    say(f"[,]: {100 * skill.level:g} % interval over {skill.seeds} sealed seeds", screen)


def _percent(skill: Comparison) -> str:
    return f"{100 * skill.value:.0f} % [{100 * skill.low:.0f}, {100 * skill.high:.0f}]"


def _found(given: str) -> Entry:
    """FILE.py, FILE.py:NAME or MODULE:NAME; in a file it is `forecast` if no name is given.

    Naming a file is asking to run it.
    """
    place, _, name = given.rpartition(":")
    if given.endswith(".py"):
        place, name = given, "forecast"
    if not place or not name:
        raise BadInput(f"a forecaster is given as FILE.py, FILE.py:NAME or MODULE:NAME, got {given!r}")
    file = place.endswith(".py")
    module = run_file(Path(place), "joma_forecast", "a forecaster") if file else import_named(place)
    with loading(place):
        found = getattr(module, name, None)
    if not callable(found):
        raise BadInput(f"{place} has no function {name}(history, t)")
    return found  # type: ignore[no-any-return]
