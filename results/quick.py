"""The verdicts of quick scale as one machine gave them, in results/quick.json, to compare those of another with.

make run, then: python results/quick.py joma-out/findings.json [--keep]

A verdict may differ where chance left the claim open on either machine, where nothing was run, or where the verdict is
fragile: rounding alone can move it. Any other difference is listed, and the exit status is 1. --keep writes the file.
"""

import argparse
import json
import sys
from pathlib import Path

from joma.claims.rules import UNJUDGED
from joma.host.file_kinds import OWN
from joma.host.files import write_json

KEPT = Path(__file__).with_name("quick.json")
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


def firm(finding: dict) -> bool:
    """Whether another machine has to come to the same verdict."""
    return finding["verdict"] not in ("undecided", *UNJUDGED) and not finding["fragile"]


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
    if options.keep:
        write_json(KEPT, now, OWN)
        print(f"kept: {KEPT.name}, {len(now['findings'])} claims")
        return
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    differ = differences(kept["findings"], now["findings"])
    compared = sum(name in now["findings"] and firm(one) for name, one in kept["findings"].items())
    print(*differ, sep="\n", end="\n" if differ else "")
    print(f"{compared} claims are decided and not fragile on {kept['machine']}; {len(differ)} of them differ here")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
