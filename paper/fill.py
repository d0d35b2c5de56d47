"""Fill the numbers of paper.md from the kept records: each stands between `<!-- its name -->` and `<!-- / -->`.

    python paper/fill.py            # writes paper/paper.md
    python docs/ablation_summary.py results docs/_static/ablations.png    # its figure

Reads the findings' JSON alone. The paper is in the form of the Journal of Open Source Software.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAPER = ROOT / "paper" / "paper.md"
FIELD = re.compile(r"<!-- ([^/]+?) -->.*?<!-- / -->", re.DOTALL)
ORDER = ("holds", "holds as corrected", "only qualitative", "mixed", "not above its control", "undecided", "fails")
Findings = dict[str, dict[str, Any]]


def findings() -> Findings:
    """Every finding at paper scale, by its id."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("results/*/findings.json"))]
    return {finding["id"]: finding for record in records for finding in record["findings"]}


def case(finding: dict[str, Any], name: str = "", form: str = "printed") -> dict[str, Any]:
    """The comparison of one case of a finding; of its only one where no name is given."""
    effects = finding["evidence"][form]["effects"]
    chosen: dict[str, Any] = effects[name] if name else next(iter(effects.values()))
    return chosen


def level(one: dict[str, Any]) -> str:
    """What is said of a level that is not 95 %."""
    return "" if one["level"] == 0.95 else f" at {100 * one['level']:.0f} %"


def number(value: float, ends: list[float], one: dict[str, Any], *, digits: int = 2, unit: str = " nats") -> str:
    """A number with its interval, the lower end first."""
    low, high = sorted(ends)
    return f"{value:.{digits}f}{unit} [{low:.{digits}f}, {high:.{digits}f}]{level(one)}"


def effect(one: dict[str, Any], *, times: float = 1, digits: int = 2, unit: str = " nats") -> str:
    """An effect with its own interval, both times a number."""
    return number(times * one["effect"], [times * end for end in one["interval"]], one, digits=digits, unit=unit)


def linear(layer: str) -> Callable[[Findings], str]:
    """The recovery of a layer with a linear MLP, which is minus the claim's effect."""
    return lambda found: effect(case(found["nonlinearity/linear-mlp-stays-sparse"], layer), times=-1)


def lowered(found: Findings) -> str:
    """Table 1: the correlation of untrained and of trained networks, and the difference."""
    one = case(found["table1/lowest-latents-align"])
    fall = number(-one["difference"], [-end for end in one["difference_interval"]], one, digits=3, unit="")
    return f"from {one['control_effect']:.3f} to {one['effect']:.3f}, by {fall}"


def galore(form: str) -> Callable[[Findings], str]:
    """The difference in loss between GaLore and full rank, without its sign."""

    def shown(found: Findings) -> str:
        one = case(found["galore-table/full-rank-is-best"], "GaLore", form)
        low, high = one["difference_interval"]
        return f"{abs(one['difference']):.3f} ± {(high - low) / 2:.3f} nats{level(one)}"

    return shown


def count(empirical: bool, *verdicts: str) -> Callable[[Findings], str]:
    """How many claims of a kind there are, or how many have one of these verdicts."""
    return lambda found: str(
        sum(one["empirical"] == empirical and (not verdicts or one["verdict"] in verdicts) for one in found.values())
    )


def table(found: Findings) -> str:
    """Verdicts of the empirical claims."""
    counts = Counter(one["verdict"] for one in found.values() if one["empirical"])
    rows = [(name, counts[name]) for name in [*ORDER, *sorted(counts.keys() - {*ORDER})] if counts[name]]
    return "\n".join(["\n| Verdict | Claims |", "|:--|--:|", *(f"| {name} | {many} |" for name, many in rows), "\n"])


FIELDS: dict[str, Callable[[Findings], str]] = {
    "claims": lambda found: str(len(found)),
    "mathematical": count(False),
    "as printed": count(False, "holds"),
    "as corrected": count(False, "holds as corrected"),
    "empirical": count(True),
    "verdicts": table,
    "one layer": lambda found: effect(case(found["fig6/fig6-one-layer"])),
    "linear, layer 1": linear("layer 1"),
    "linear, layer 2": linear("layer 2"),
    "held, one layer": lambda found: effect(
        case(found["dilution/logits-shrink"], "1 layer"), times=100, digits=0, unit=" %"
    ),
    "table 1": lowered,
    "GaLore, one rate": galore("printed"),
    "GaLore, two rates": galore("corrected"),
}
"""What each name stands for."""


def filled(text: str, found: Findings) -> str:
    """The paper with the numbers of these findings."""
    return FIELD.sub(lambda field: f"<!-- {field[1]} -->{FIELDS[field[1]](found)}<!-- / -->", text)


def main() -> None:
    """Write the paper."""
    PAPER.write_text(filled(PAPER.read_text(encoding="utf-8"), findings()), encoding="utf-8")
    print(PAPER)


if __name__ == "__main__":
    main()
