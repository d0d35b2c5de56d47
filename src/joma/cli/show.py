"""`joma show ID`: one finding, with its numbers, its control, what it rests on and where it comes from."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.cli.outputs import DEFAULT_OUT
from joma.cli.wrapping import columns, hanging
from joma.host.errors import BadInput
from joma.host.exit_status import OK
from joma.host.files import as_json
from joma.host.printing import clean, say
from joma.host.words import did_you_mean

if TYPE_CHECKING:
    from joma.claims.claim import Claim
    from joma.claims.finding import Finding
    from joma.report.claims.kept import KeptFinding

_COPIED = ("repeat", "record")  # lines with a command or a path stay whole, so that they can be copied
_EPILOG = """\
`--scale paper` needs no run: the findings at paper scale come with joma. `--out results` reads the records that are
kept in joma's repository."""


def add_parser(commands: Any) -> None:
    """Add `show` to the subcommands of `joma`."""
    show = commands.add_parser(
        "show",
        help="print one finding with its numbers",
        description="Print one finding: its verdict, its numbers, its control and its source.",
        epilog=_EPILOG,
    )
    show.add_argument(
        "id", metavar="ID", help="STUDY/CLAIM as in `joma list -v`, or a STUDY to list all of its claims with verdicts"
    )
    place = show.add_mutually_exclusive_group()
    where = f"folder that `joma verify` wrote, or kept records (default: {DEFAULT_OUT})"
    place.add_argument("--out", type=Path, metavar="DIR", help=where)
    place.add_argument("--scale", choices=("paper",), help="show the findings at paper scale, without a run")
    show.add_argument("--json", action="store_true", help="print it as JSON")
    show.set_defaults(call=_show)


def _show(options: argparse.Namespace, _: list[str]) -> int:
    from joma import studies

    if options.out and not options.out.exists():
        raise BadInput(f"there is no {options.out}; joma show reads one that joma verify wrote", argument="out")
    name, _, claim = options.id.lower().partition("/")
    study = studies.load(name)
    claims = {f"{study.name}/{each.name}": each for each in study.claims}
    wanted = f"{study.name}/{claim}"
    if claim and wanted not in claims:
        hint = did_you_mean(wanted, claims, f"`joma show {study.name}` lists its claims")
        raise BadInput(f"{study.name} has no claim called {claim!r}; {hint}")
    found = _kept(claims) if options.scale else _stored(study.name, options.out or DEFAULT_OUT)
    if claim and wanted not in found:
        raise BadInput(_missing(wanted, claims, options))
    shown = {id: found.get(id) for id in ([wanted] if claim else claims)}
    if options.json:
        given = [one.as_json() for one in shown.values() if one is not None]
        say(as_json(given[0] if claim else {"findings": given}), keep="\n", end="")
    elif claim:
        say(text(found[wanted], columns()), keep="\n", end="")
    else:
        for id, one in shown.items():
            say(id if one is None else _head(one), keep="\n")
            if one is not None and one.brief:
                say(hanging(" " * 4, clean(one.brief), columns()), keep="\n")
        if not found:
            say(f"joma: {_missing(study.name, claims, options)}", sys.stderr)
    return OK


def _stored(study: str, place: Path) -> Mapping[str, Finding | KeptFinding]:
    from joma.claims.ledger import findings_of

    return {finding.id: finding for finding in findings_of(study, place)}


def _kept(claims: Mapping[str, Claim]) -> Mapping[str, Finding | KeptFinding]:
    from joma.report.claims.kept import kept_of

    return {id: one for id, claim in claims.items() if (one := kept_of(id, claim)) is not None}


def _missing(wanted: str, claims: Mapping[str, Claim], options: argparse.Namespace) -> str:
    """Where there is no finding on a claim or a study: what makes it, and what is there already."""
    study, of_claim, _ = wanted.partition("/")
    what = f"no finding {wanted}" if of_claim else f"no findings of {study}"
    if options.scale:
        return f"there is {what} at paper scale; `joma verify {study} --scale paper` makes it"
    out = f" --out {shlex.quote(str(options.out))}" if options.out else ""
    kept = _kept({wanted: claims[wanted]} if of_claim else claims)
    there = f"; `joma show {wanted} --scale paper` needs no run" if kept else ""
    made = f"`joma verify {study}{out}` makes {'it' if of_claim else 'them'}"
    return f"{options.out or DEFAULT_OUT} has {what}; {made}{there}"


def _head(found: Finding | KeptFinding) -> str:
    from joma.claims.finding import Finding

    return clean(f"{found.id}: {found.full_verdict}") + ("" if isinstance(found, Finding) else " at paper scale")


def text(found: Finding | KeptFinding, width: int | None = None) -> str:
    """A finding for people: verdict first, then the numbers, then where they come from.

    width: of the terminal; None for lines as long as they are.
    """
    from joma.claims.sentences import show as number
    from joma.claims.text_source import other_text

    claim, origin = found.claim, found.provenance
    lines = {
        "claim": f"{claim.says} ({claim.source})",
        "corrected": claim.corrected,
        "expected": found.expected,
        "measured": found.measured if isinstance(found.measured, str) else number(found.measured),
        "control": found.control,
        "same for": ", ".join(found.shares) or None,
        "matters": None if claim.matters is None else f"a difference of {number(claim.matters, claim.unit)}",
        "q": None if found.q is None else number(found.q),
        "tolerance": None if found.tolerance is None else number(found.tolerance),
        "text": other_text(origin.text_sha256) or None,
        "rests on": ", ".join(claim.uses) or None,
        "repeat": found.command or None,
        "record": ", ".join(filter(None, (origin.record, origin.machine, origin.created))) or None,
        "commit": origin.commit or None,
    }
    known = {name: clean(line) for name, line in lines.items() if line is not None}
    printed = [hanging(f"{name:<10} ", line, None if name in _COPIED else width) for name, line in known.items()]
    return "\n".join([_head(found), *printed, ""])
