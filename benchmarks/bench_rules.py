"""How often the rules are wrong: verdicts on seeds whose truth is known, drawn anew thousands of times.

    python benchmarks/bench_rules.py [--before CHECKOUT] [--record]

A claim needs a difference of 0.01 standard deviations, so that "holds" hangs on chance alone. Of every law of seeds the
mean is zero: each "holds" is false. "holds" counts those that are not fragile, "fragile" the others. `effect` is the
share of firm verdicts where the truth is so many standard deviations of Gaussian seeds. `cases` has nine of which none
differs from its control, each precise enough to say so, and counts "only qualitative". Of seeds that collapse, a fifth
lie at -4 and the others at 1: n seeds without a collapse among them, whose share is `unseen`, are like seeds with an
effect of 1, so no rule that ever says "holds" can be wrong less often than it says so there.

--before CHECKOUT: the same draws by the rules of another checkout of joma.
"""

import json
import os
import subprocess
import sys

import numpy as np

from joma.claims.evidence import Effect, Evidence
from joma.claims.rules import is_fragile, judged
from joma.measure.intervals import compare

DRAWS, MATTERS, SEEDS = 4000, 0.01, (3, 4, 5, 6, 8, 10)
LAWS = {
    "Gaussian": lambda draw, shape: draw.standard_normal(shape),
    "tail upwards (exponential)": lambda draw, shape: draw.exponential(size=shape) - 1,
    "tail downwards (exponential)": lambda draw, shape: 1 - draw.exponential(size=shape),
    "tail upwards (lognormal)": lambda draw, shape: draw.lognormal(size=shape) - np.exp(0.5),
    "tail downwards (lognormal)": lambda draw, shape: np.exp(0.5) - draw.lognormal(size=shape),
    "heavy tails (t, 3 degrees)": lambda draw, shape: draw.standard_t(3, size=shape),
    "a fifth collapse": lambda draw, shape: np.where(draw.random(shape) < 0.2, -4, 1) + draw.normal(0, 0.05, shape),
}
EFFECTS = (1, 2, 3, 4)
CASES = 9


def verdict(*cases: np.ndarray, matters: float = MATTERS) -> tuple[str, bool]:
    """What the rules say of a claim with these cases, each a row of seeds, and whether that is fragile."""
    evidence = Evidence({str(at): Effect.of(compare(row), matters=matters) for at, row in enumerate(cases)})
    found = judged(evidence)
    return found, found == "holds" and is_fragile(evidence)


def share(wanted: tuple[str, bool], found: list[tuple[str, bool]]) -> float:
    return round(found.count(wanted) / len(found), 4)


def rows() -> list[dict]:
    """One for every law and number of seeds."""
    found = []
    for seeds in SEEDS:
        for name, law in LAWS.items():
            several = [verdict(row) for row in law(np.random.default_rng(seeds), (DRAWS, seeds))]
            numbers = {"holds": share(("holds", False), several), "fragile": share(("holds", True), several)}
            found.append({"law": name, "seeds": seeds} | numbers)
        found[-1]["unseen"] = round(0.8**seeds, 4)
        for size in EFFECTS:
            several = [verdict(row) for row in size + np.random.default_rng(seeds).standard_normal((DRAWS, seeds))]
            found.append({"effect": size, "seeds": seeds, "holds": share(("holds", False), several)})
        nulls = np.random.default_rng(seeds).standard_normal((DRAWS // CASES, CASES, seeds))
        several = [verdict(*cases, matters=20.0) for cases in nulls]
        found.append({"cases": CASES, "seeds": seeds, "only qualitative": share(("only qualitative", False), several)})
    return found


def before(checkout: str) -> list[dict]:
    """The rows that the rules of another checkout give."""
    code = "import json, bench_rules; print(json.dumps(bench_rules.rows()))"
    paths = f"{checkout}/src:{os.path.dirname(__file__)}"
    ran = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths}, stdout=-1, check=True)
    return json.loads(ran.stdout)


def main() -> None:
    from _record import record

    found = [{"rules": "now"} | row for row in rows()]
    if "--before" in sys.argv:
        found += [{"rules": "before"} | row for row in before(sys.argv[sys.argv.index("--before") + 1])]
    for row in found:
        print(*(f"{name} {value}" for name, value in row.items()), sep=", ")
    record("rules", found)


if __name__ == "__main__":
    main()
