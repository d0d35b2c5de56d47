"""The verdicts of quick scale as one machine gave them, in results/quick.json, to compare those of another with.

make run, then: python results/quick.py joma-out/findings.json [--keep]

A verdict may differ where chance left the claim open on either machine, where nothing was run, or where the verdict is
fragile: rounding alone can move it. Any other difference is listed, and the exit status is 1. --keep writes the file;
studies that findings.json does not have stay as they are. It also writes the tables of results/README.md: what every
study takes and how many claims it decides, and which claims paper scale decides otherwise.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from joma.claims.rules import UNJUDGED
from joma.host.file_kinds import OWN
from joma.host.files import write_json

KEPT = Path(__file__).with_name("quick.json")
PAGE = Path(__file__).with_name("README.md")
TABLE = re.compile(r"(<!-- table of quick scale -->\n).*(?=<!-- end of the table of quick scale -->)", re.DOTALL)
NUMBERS = ("verdict", "fragile", "effect", "interval", "control_effect", "difference_interval", "level")


def told(path: Path) -> dict:
    """What is kept of a findings.json: where it comes from, and of every finding its verdict and its numbers."""
    studies = json.loads(path.read_text(encoding="utf-8"))["studies"]
    every = [finding for study in studies for finding in study["findings"]]
    origin = next(finding["provenance"] for finding in every if finding["provenance"].get("machine"))
    return {
        "command": "joma verify",
        **{name: origin[name] for name in ("machine", "created")},
        "seconds": {study["name"]: study["seconds"] for study in studies},
        "findings": {finding["id"]: {name: finding[name] for name in NUMBERS} for finding in every},
    }


def merged(kept: dict, now: dict) -> dict:
    """What was kept, with the studies of `now` in place of their older selves."""
    left = {name: one for name, one in kept["findings"].items() if name.split("/")[0] not in now["seconds"]}
    return {**now, "seconds": kept["seconds"] | now["seconds"], "findings": left | now["findings"]}


def table(kept: dict) -> str:
    """Study, seconds, how many claims are decided of those that quick scale can judge; the longest first."""
    rows = ["| Study | Seconds | Decided | Of |", "|---|--:|--:|--:|"]
    every = [0.0, 0, 0]
    for study, seconds in sorted(kept["seconds"].items(), key=lambda pair: -pair[1]):
        verdicts = [one["verdict"] for name, one in kept["findings"].items() if name.split("/")[0] == study]
        own = [verdict for verdict in verdicts if verdict != "at paper scale"]
        known = sum(verdict not in ("undecided", "not run") for verdict in own)
        rows.append(f"| `{study}` | {seconds:.1f} | {known} | {len(own)} |")
        every = [total + more for total, more in zip(every, (seconds, known, len(own)), strict=True)]
    return "\n".join([*rows, f"| all | {every[0]:.0f} | {every[1]} | {every[2]} |", ""])


def tables(kept: dict) -> str:
    """Both tables of the page."""
    words = "Decided at both scales, and differently (`docs/results/index.md` says why):"
    return f"{table(kept)}\n{words}\n\n{disagreements(kept)}"


def disagreements(kept: dict) -> str:
    """The claims that both scales decided, and differently."""
    rows = ["| Claim | Quick | Paper |", "|---|---|---|"]
    for path in sorted(KEPT.parent.glob("*/findings.json")):
        for paper in json.loads(path.read_text(encoding="utf-8"))["findings"]:
            quick = kept["findings"].get(paper["id"], paper)
            if quick["verdict"] != paper["verdict"] and all(map(decided, (quick, paper))):
                verdicts = [one["verdict"] + (" (fragile)" if one["fragile"] else "") for one in (quick, paper)]
                rows.append(f"| `{paper['id']}` | {' | '.join(verdicts)} |")
    return "\n".join([*rows, ""])


def decided(finding: dict) -> bool:
    """Whether chance did not leave the claim open."""
    return finding["verdict"] not in ("undecided", *UNJUDGED)


def firm(finding: dict) -> bool:
    """Whether another machine has to come to the same verdict."""
    return decided(finding) and not finding["fragile"]


def differences(kept: dict, now: dict) -> list[str]:
    """Of the claims that both have, and that are firm in both, those whose verdicts differ."""
    both = [(name, kept[name], now[name]) for name in kept if name in now]
    return [
        f"{name}: {then['verdict']} where it was kept, {here['verdict']} here"
        for name, then, here in both
        if firm(then) and firm(here) and then["verdict"] != here["verdict"]
    ]


def main() -> None:
    """Compare, or keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("findings", type=Path, help="what `joma verify` wrote")
    parser.add_argument("--keep", action="store_true", help="keep it as the one to compare with")
    options = parser.parse_args()
    try:
        now = told(options.findings)
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        parser.error(f"{options.findings} is no findings.json of `joma verify` with a claim that was run")
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {"seconds": {}, "findings": {}}
    if options.keep:
        whole = merged(kept, now)
        write_json(KEPT, whole, OWN)
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(TABLE.sub(lambda found: found[1] + tables(whole), page), encoding="utf-8")
        print(f"kept: {KEPT.name}, {len(now['findings'])} of {len(whole['findings'])} claims")
        return
    differ = differences(kept["findings"], now["findings"])
    compared = sum(name in now["findings"] and firm(one) for name, one in kept["findings"].items())
    print(*differ, sep="\n", end="\n" if differ else "")
    print(f"{compared} claims are decided and not fragile on {kept['machine']}; {len(differ)} of them differ here")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
