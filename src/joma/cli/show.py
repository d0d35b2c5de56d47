"""`joma show ID`: one finding, with its numbers, its control, what it rests on and where it comes from."""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.host.errors import BadInput
from joma.host.exit_status import OK
from joma.host.files import as_json
from joma.host.printing import clean, say

if TYPE_CHECKING:
    from joma.claims.finding import Finding


def add_parser(commands: Any) -> None:
    """Add `show` to the subcommands of `joma`."""
    show = commands.add_parser(
        "show",
        help="print one finding, such as thm1-sgd/adam, with its numbers",
        description="Print one finding with its numbers, its control and where it comes from.",
    )
    show.add_argument("id", metavar="ID", help="STUDY/CLAIM as in `joma list -v`; a study alone names its claims")
    show.add_argument(
        "--out", type=Path, default=Path("joma-out"), metavar="DIR", help="what `joma verify` wrote (default: joma-out)"
    )
    show.add_argument("--json", action="store_true", help="as JSON, with all of its evidence")
    show.set_defaults(call=_show)


def _show(options: argparse.Namespace, _: list[str]) -> int:
    from joma import studies
    from joma.claims.ledger import read_findings

    wanted = options.id.lower()
    name, _, claim = wanted.partition("/")
    study = studies.load(name)
    ids = [f"{study.name}/{each.name}" for each in study.claims]
    if not claim:
        print("\n".join(ids))
        return OK
    if wanted not in ids:
        near = get_close_matches(wanted, ids, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ids)}"
        raise BadInput(f"{study.name} has no claim called {claim!r}; {hint}")
    file = options.out / "findings.json"
    found = [finding for finding in read_findings(file) if finding.id == wanted] if file.is_file() else []
    if not found:
        raise BadInput(f"{options.out} has no finding {wanted}; `joma verify {study.name}` makes it")
    say(as_json(found[0].as_json()) if options.json else text(found[0]), keep="\n", end="")
    return OK


def text(finding: Finding) -> str:
    """A finding for people: verdict first, then the numbers, then where they come from."""
    from joma.claims.text_source import other_text
    from joma.claims.words import show as number

    claim, origin = finding.claim, finding.provenance
    lines = [
        ("", f"{finding.id}: {finding.verdict}"),
        ("claim", f"{claim.says} ({claim.source})"),
        ("corrected", claim.corrected),
        ("expected", finding.expected),
        ("measured", _value(finding.measured)),
        ("control", finding.control),
        ("matters", None if claim.matters is None else f"a difference of {number(claim.matters, claim.unit)}"),
        ("tolerance", None if finding.tolerance is None else _value(finding.tolerance)),
        ("text", other_text(origin.text_sha256) or None),
        ("rests on", ", ".join(claim.uses) or None),
        ("repeat", finding.command or None),
        ("record", ", ".join(part for part in (origin.record, origin.machine, origin.created) if part) or None),
        ("commit", origin.commit or None),
    ]
    return "".join(
        f"{name:<10} {clean(said)}\n" if name else f"{clean(said)}\n" for name, said in lines if said is not None
    )


def _value(value: float | str) -> str:
    from joma.claims.words import show

    return value if isinstance(value, str) else show(value)
