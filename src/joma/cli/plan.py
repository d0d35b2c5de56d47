"""`joma plan`: what so many seeds can decide, before they are run."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joma.cli.outputs import add_json, give_json, screen_beside
from joma.host.errors import BadInput, as_bad_input
from joma.host.exit_status import OK
from joma.host.printing import say

_EPILOG = """\
Verdicts follow joma's own rules, over 2,000 simulated experiments whose seeds are Gaussian unless --law says otherwise.
The number of seeds that would decide holds with probability 0.8, for Gaussian seeds."""


def add_parser(commands: Any) -> None:
    """Add `plan` to the subcommands of `joma`."""
    words = "say what a number of seeds can decide, and how many would decide"
    plan = commands.add_parser("plan", help=words, description=f"{words.capitalize()}.", epilog=_EPILOG)
    plan.add_argument("--matters", metavar="NUMBER", help="the smallest difference that would matter; 2%% is 0.02")
    plan.add_argument("--sd", type=float, metavar="NUMBER", help="standard deviation over seeds of effect - control")
    plan.add_argument("--pilot", type=Path, metavar="RESULTS", help="a table as for `joma judge`, which gives --sd")
    plan.add_argument("--seeds", type=int, metavar="N", help="that you can afford (default: those that would decide)")
    plan.add_argument("--difference", type=float, metavar="NUMBER", help="another truth to suppose")
    plan.add_argument(
        "--unpaired", dest="paired", action="store_false", help="the arms have other seeds: --sd is of each"
    )
    plan.add_argument("--law", metavar="NAME", default="Gaussian", help="of the seeds, such as 'a fifth collapse'")
    for name, what in (("effect", "ARM"), ("control", "ARM|NUMBER"), ("value", "COLUMN")):
        plan.add_argument(f"--{name}", metavar=what, help="of the pilot, as for `joma judge`")
    plan.add_argument("--lower", action="store_true", default=None, help="of the pilot: less is better")
    add_json(plan, "write the numbers there as JSON")
    plan.set_defaults(call=_plan)


def _plan(options: argparse.Namespace, _: list[str]) -> int:
    from joma.claims.power import power, seeds_needed
    from joma.claims.sentences import show

    screen, rows = screen_beside(options.json), list[dict[str, Any]]()
    for name, matters, sd, measured in _cases(options):
        say(f"{name}matters {show(matters)}, standard deviation over seeds {show(sd)}", screen)
        truths = {0.0: "no difference", matters: "what matters", 2 * matters: "twice that"}
        given = options.difference if options.difference is not None else measured
        truths |= {} if given is None else {given: "measured" if options.difference is None else "as given"}
        for truth, words in truths.items():
            how: dict[str, Any] = {"difference": truth, "paired": options.paired}
            with as_bad_input():
                needed = seeds_needed(matters, sd, **how)
                found = power(matters, sd, options.seeds or min(needed or 100, 1000), law=options.law, **how)
            chances = ", ".join(f"{verdict} {share:.0%}" for verdict, share in found.chances.items())
            decide = f"{needed:,} seeds would probably decide" if needed else "no known number of seeds would decide"
            say(f"  {f'{words}, {show(truth)}':<26} {found.seeds:>4} seeds: {chances}; {decide}", screen)
            rows.append({"claim": name.removesuffix(": "), "matters": matters, "sd": sd, "difference": truth,
                         "seeds": found.seeds, "chances": dict(found.chances), "decided": found.decided,
                         "not_fragile": dict(found.not_fragile),
                         "law": options.law, "draws": found.draws, "seeds_to_decide": needed})  # fmt: skip
    give_json(options.json, {"schema": "joma-plan", "version": 1, "plans": rows})
    return OK


def _cases(options: argparse.Namespace) -> Iterator[tuple[str, float, float, float | None]]:
    """Name, what matters, standard deviation and measured difference: of what was given, or of each case of a pilot."""
    from joma.claims.judging import Wanted, judge_tables, typed
    from joma.claims.power import spread_of

    if options.seeds is not None and not 2 <= options.seeds <= 10**4:
        raise BadInput(f"--seeds must be from 2 to 10,000, got {options.seeds}")
    if (options.pilot is None) == (options.sd is None):
        raise BadInput("give the standard deviation over seeds (--sd), or a pilot that tells it (--pilot)")
    if options.pilot is None:
        if options.matters is None:
            raise BadInput("state the smallest difference that would matter", argument="matters")
        yield "", typed("plan", "matters", options.matters, float), options.sd, None
        return
    given = {name: getattr(options, name) for name in ("matters", "effect", "control", "value", "lower")}
    for one in judge_tables([options.pilot], **given, paired=None if options.paired else False):
        wanted: Wanted = one.wanted
        for case, arms in one.cases.items():
            if arms.found.seeds < 2 or not (sd := spread_of(arms.found)) > 0:
                raise BadInput(f"{options.pilot}: seeds that all give the same do not tell how unlike others are")
            about = f"{wanted.name}{f', {case}' * bool(case)}: "
            yield about, float(wanted.matters or 0.0), sd, arms.found.difference
