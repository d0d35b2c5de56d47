"""The table "What we found" of the front pages: every number and verdict is that of a kept record.

python docs/findings_table.py    # writes it into docs/index.md, and its first rows into README.md
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from scipy.stats import t

ROOT = Path(__file__).parents[1]
RECORDS = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("results/*/findings.json"))]
PAPER = {finding["id"]: finding for record in RECORDS for finding in record["findings"]}
QUICK = json.loads((ROOT / "results/quick.json").read_text(encoding="utf-8"))["findings"]
HEAD = "| Claim | Result, with 95 % or 99 % intervals over seeds | Quick | Paper scale |\n|---|---|---|---|"
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
FIFTH = "cost at a fifth of the cache, in nats"
TABLE = re.compile(r"(?<=## What we found\n\n).*?(?=\n\n)", re.DOTALL)


def case(claim: str, name: str = "", form: str = "printed") -> dict[str, Any]:
    """The comparison of one case of a claim at paper scale; of its first one where no name is given."""
    effects = PAPER[claim]["evidence"][form]["effects"]
    chosen: dict[str, Any] = effects[name] if name else next(iter(effects.values()))
    return chosen


def level(one: dict[str, Any]) -> str:
    """What is said of a level that is not 95 %."""
    return "" if one["level"] == 0.95 else f" at {100 * one['level']:.0f} %"


def shown(
    claim: str, name: str = "", unit: str = " nats", *, digits: int = 2, times: float = 1, of: str = "effect"
) -> str:
    """A number with its own interval: the effect, its control_effect or its difference, times a number."""
    one = case(claim, name)
    interval = {"effect": "interval", "control_effect": "control_interval", "difference": "difference_interval"}[of]
    low, high = sorted(times * end for end in one[interval])
    top = f"{high:.{digits}f}"
    if of == "control_effect" and unit == " %" and low > 0 and high > 100:  # a share of seeds
        top = "100 (cut)"
    return f"{times * one[of]:.{digits}f}{unit} [{low:.{digits}f}, {top}]{level(one)}".replace("-", "−")


def within(claim: str, form: str) -> str:
    """The difference without its sign, with half of its interval."""
    one = case(claim, "GaLore", form)
    low, high = one["difference_interval"]
    return f"{abs(one['difference']):.3f} ± {(high - low) / 2:.3f} nats{level(one)}"


def mathematics() -> str:
    counts = Counter(finding["verdict"] for finding in PAPER.values() if not finding["empirical"])
    qualitative, not_above = (WORDS[counts[verdict]] for verdict in ("only qualitative", "not above its control"))
    return (
        f"We checked {counts.total()} mathematical claims: {counts['holds']} are correct as printed and "
        f"{counts['holds as corrected']} after a correction. {qualitative.capitalize()} are only qualitative, "
        f"{not_above} are not above their control."
    )


def mathematics_at_quick_scale() -> str:
    claims = [name for name, finding in PAPER.items() if not finding["empirical"]]
    differ = sum(QUICK[name]["verdict"] != PAPER[name]["verdict"] for name in claims)
    return f"{WORDS[differ]} verdict{'' if differ == 1 else 's'} differ{'s' if differ == 1 else ''}"


def layers_that_recover() -> str:
    effects = case_by_name("fig6/fig6-top-layers").values()
    firm, loose = (sum(lower_end(one, at) > 0 for one in effects) for at in (0.99, 0.95))
    return f"{WORDS[firm].capitalize()} of {WORDS[len(effects)]} recover beyond chance at 99 %, {WORDS[loose]} at 95 %."


def case_by_name(claim: str) -> dict[str, dict[str, Any]]:
    """All comparisons of a claim at paper scale."""
    found: dict[str, dict[str, Any]] = PAPER[claim]["evidence"]["printed"]["effects"]
    return found


def lower_end(one: dict[str, Any], at: float) -> float:
    """Of the interval at another level than the record's."""
    half = (one["interval"][1] - one["interval"][0]) / 2
    scale = t.ppf((1 + at) / 2, one["freedom"]) / t.ppf((1 + one["level"]) / 2, one["freedom"])
    return float(one["effect"] - half * scale)


def costs(claim: str) -> dict[str, float]:
    """What policies of a cache cost; top-k evicts nothing, and the oracle knows the queries to come."""
    found = PAPER[claim]["cases"][FIFTH]
    return {policy: cost for policy, cost in found.items() if policy not in ("top-k", "h2o-oracle")}


def rows() -> list[tuple[str, str, str, str, bool]]:
    """Each row: claim, page, its id, what was found, and whether README has it."""
    linear, held, sparse = "nonlinearity/linear-mlp-stays-sparse", "dilution/logits-shrink", "kv-cache/"
    relu = [
        case("nonlinearity/rebound-needs-nonlinearity", f"layer {n}, rebound with ReLU against identity")["effect"]
        for n in (1, 2)
    ]
    table1, law = case("table1/lowest-latents-align"), "forecast/focus-and-dilution-foretells"
    skill = {name: f"{100 * each:.0f} %".replace("-", "−") for name, each in PAPER[law]["cases"]["skill"].items()}
    cost, far = costs(f"{sparse}a-fifth-of-the-cache-suffices"), costs(f"{sparse}a-fifth-suffices-far-back")
    arises = case(f"{sparse}sparsity-arises-in-training")
    first, fourth = (one["effect"] for one in case_by_name("reversal-decoder/text-read-backwards").values())
    needs = PAPER["need-or-delay/needs-mlp"]["cases"]["2 layers: layer 2, nothing frozen"]
    ratio = "If full rank gets the ratio of rates that GaLore implies, GaLore is worse by"
    galore = "galore-table/full-rank-is-best"
    none_of_it, uniform = "reversal-decoder/no-trace-of-the-reverse", "reversal-decoder/reverse-no-better-than-uniform"
    return [
        ("Attention entropy falls and then recovers", "results/figure6", "fig6/fig6-one-layer",
         f"In a one-layer model it recovers by {shown('fig6/fig6-one-layer')}.", True),
        ("Top layers of deeper models recover too", "results/figure6", "fig6/fig6-top-layers",
         layers_that_recover(), True),
        ("With a linear MLP attention stays sparse", "results/ablations", linear,
         "Attention entropy also recovers with a linear MLP: in two layers by "
         f"{shown(linear, 'layer 1', times=-1).removesuffix(' at 99 %')} and {shown(linear, 'layer 2', times=-1)}.",
         True),
        ("The recovery needs the nonlinearity", "results/ablations", "nonlinearity/rebound-needs-nonlinearity",
         f"With ReLU it is {relu[0]:.2f} and {relu[1]:.2f} nats: more in layer 2, undecided in layer 1.", False),
        ("Attention recovers because its logits shrink", "explanation/why-attention-comes-back", held,
         "Holding the size of the logits fixed removes the recovery: "
         f"{shown(held, '1 layer', ' %', digits=0, times=100)} of it in a one-layer model and "
         f"{shown(held, '2 layers: layer 2', ' %', digits=0, times=100)} in the second of two layers.", True),
        ("Neurons align with the lowest latents", "results/table1", "table1/lowest-latents-align",
         "Untrained networks match Table 1 as well as trained ones. Training lowers this correlation from "
         f"{table1['control_effect']:.3f} to {table1['effect']:.3f}, by "
         f"{shown('table1/lowest-latents-align', '', '', digits=3, times=-1, of='difference')}.", True),
        ("Full rank beats GaLore", "results/galore-table", galore,
         f"At one learning rate GaLore beats full rank by {within(galore, 'printed')}. {ratio} "
         f"{within(galore, 'corrected').removesuffix(' at 99 %')}.", True),
        ("The second layer's recovery needs the MLPs to learn", "explanation/why-attention-comes-back",
         "need-or-delay/needs-mlp",
         "With the MLPs frozen it recovers by "
         f"{shown('need-or-delay/delayed-by-mlp', '2 layers: layer 2', digits=3)}, with "
         f"nothing frozen by {needs['rise (nats)']:.3f} nats.", False),
        ("Theorem 1 predicts entropy better than “no change”", "results/rebound", "forecast/theorem-1-foretells",
         f"It has a skill of {skill['Theorem 1, as printed']} as printed and {skill['Theorem 1']} as corrected.",
         False),
        ("Equation 6 predicts logits better than “no change”", "results/rebound", "forecast/equation-6-foretells",
         f"For entropy its skill is {skill['eq. 6, as printed']} as printed and {skill['eq. 6']} as corrected.", False),
        ("A law of focus and dilution predicts entropy better than trends", "results/rebound", law,
         f"It has a skill of {shown(law, '', ' %', digits=1, times=100)}, a damped trend "
         f"{shown(law, '', ' %', digits=1, times=100, of='control_effect')}. It misses the turn.", False),
        ("Attention becomes sparse in training", "results/sparse-attention", f"{sparse}sparsity-arises-in-training",
         f"It leaves out {100 * arises['control_effect']:.0f} % of the keys before training and "
         f"{100 * arises['effect']:.0f} % after.", False),
        ("A fifth of the cache is enough", "results/sparse-attention", f"{sparse}a-fifth-of-the-cache-suffices",
         f"It costs {min(cost.values()):.3f} to {max(cost.values()):.3f} nats in our network. H2O's choice of keys is "
         f"not better than keeping the last keys ({cost['h2o']:.3f} and {cost['window']:.3f} nats).", False),
        ("It is enough for a network that must look far back", "results/sparse-attention",
         f"{sparse}a-fifth-suffices-far-back",
         f"Networks that must look back over 151 words lose {min(far.values()):.1f} nats, whichever keys the cache "
         "keeps.", False),
        ("Sparser attention makes eviction cheaper", "results/sparse-attention",
         f"{sparse}sparsity-explains-what-eviction-costs",
         "We found no evidence: the partial correlation is "
         f"{shown(f'{sparse}sparsity-explains-what-eviction-costs', '', '', times=-1)}.", False),
        ("A hierarchy is learned from the bottom", "results/shallow-first", "shallow-first/bottom-up",
         "Decoders learn it from the top: the highest level comes "
         f"{shown('shallow-first/bottom-up', '', ' doublings of time', digits=1, times=-1)} before the lowest.", False),
        ("The reverse of a fact is no better than a uniform guess", "results/reversal",
         uniform, "With 24 layers its probability is "
         f"{shown(uniform, '', ' %', digits=1, times=100, of='control_effect')}.", False),
        ("Nothing of the reverse is learned", "results/reversal", none_of_it, "The right answer is more likely than "
         f"{shown(none_of_it, '24 layers', ' %', digits=0, times=100, of='control_effect')} of the answers to other "
         "untrained reverses.", False),
        ("Text read backwards cures the reversal curse", "results/reversal", "reversal-decoder/text-read-backwards",
         f"In one layer the reverse of a fact then has probability {first:.2f}, in four layers {fourth:.2f}.", False),
    ]  # fmt: skip


def verdict(finding: dict[str, Any]) -> str:
    return finding["verdict"] + (" (fragile)" if finding["fragile"] else "")


def table(*, readme: bool) -> str:
    """The whole table, or the rows of README with links that a forge follows."""

    def link(claim: str, page: str) -> str:
        return f"[{claim}](docs/{page}.md)" if readme else f"{{doc}}`{claim} <{page}>`"

    theory = link("Theorems, lemmas and equations are correct as printed", "results/errata")
    lines = [HEAD, f"| {theory} | {mathematics()} | {mathematics_at_quick_scale()} | as stated |"]
    lines += [
        f"| {link(claim, page)} | {found} | {verdict(QUICK[name])} | {verdict(PAPER[name])} |"
        for claim, page, name, found, front in rows()
        if front or not readme
    ]
    return "\n".join(lines)


def main() -> None:
    """Write both tables."""
    for page in ("README.md", "docs/index.md"):
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        path.write_text(TABLE.sub(table(readme=page == "README.md"), text), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
