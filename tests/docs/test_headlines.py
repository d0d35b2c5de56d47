"""Numbers of the front pages are those of the kept records, read from their JSON alone."""

import importlib
import json
import re
from collections import Counter

import pytest
from page_blocks import ROOT, built, text_of
from scipy.stats import t

PAGES = ("README.md", "docs/index.md")
RECORDS = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("results/*/findings.json"))]
FOUND = {finding["id"]: finding for record in RECORDS for finding in record["findings"]}
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def decided(claim, case=None, form="printed"):
    """The comparison of a claim, or of one of its cases."""
    effects = FOUND[claim]["evidence"][form]["effects"]
    return effects[case] if case else next(iter(effects.values()))


def bracket(low, high, digits):
    return f"[{low:.{digits}f}, {high:.{digits}f}]".replace("-", "−")


def shown(claim, case=None, *, digits=2, unit=" nats", sign=1, of="", scale=1, form="printed"):
    """An effect with its own interval, or its control, or the difference; sign -1 shows them the other way round."""
    one = decided(claim, case, form)
    value = one[{"": "effect", "control": "control_effect"}.get(of, of)] * sign * scale
    ends = [each * sign * scale for each in one[f"{of}_interval".lstrip("_")]]
    return f"{value:.{digits}f}{unit} {bracket(min(ends), max(ends), digits)}{level(one)}"


def level(one):
    return " at 99 %" if one["level"] == 0.99 else ""


def linear(layer):
    return shown("nonlinearity/linear-mlp-stays-sparse", layer, sign=-1)


def galore(form):
    """GaLore's loss minus that of full rank, with half of its interval."""
    one = decided("galore-table/full-rank-is-best", "GaLore", form)
    low, high = one["difference_interval"]
    return f"{abs(one['difference']):.3f} ± {(high - low) / 2:.3f} nats{level(one)}"


def skills(names):
    """The skill of forecasts of entropy over "no change", the second without its unit."""
    cases = FOUND["forecast/focus-and-dilution-foretells"]["cases"]["skill"]
    return [f"−{-100 * cases[name]:.0f}" for name in names]


def damped_trend():
    one = decided("forecast/focus-and-dilution-foretells")
    low, high = (100 * end for end in one["control_interval"])
    return f"{100 * one['control_effect']:.1f} % [{low:.1f}, {high:.1f}]"


def rivals_beaten():
    one = decided("reversal-decoder/no-trace-of-the-reverse", "24 layers")
    low, high = one["control_interval"]
    assert high > 1
    return f"{100 * one['control_effect']:.0f} % [{100 * low:.0f}, 100 (cut)]{level(one)}"


def held(case):
    return shown("dilution/logits-shrink", case, digits=0, unit=" %", scale=100)


def counted():
    found = Counter(finding["verdict"] for finding in FOUND.values() if not finding["empirical"])
    return (
        f"We checked {found.total()} mathematical claims: {found['holds']} are correct as printed and "
        f"{found['holds as corrected']} after a correction. "
        f"{WORDS[found['only qualitative']].capitalize()} are only qualitative, "
        f"{WORDS[found['not above its control']]} are not above their control"
    )


def lower_end(one, level):
    """Of the interval of Student's t at another level than the record's."""
    half = (one["interval"][1] - one["interval"][0]) / 2
    return one["effect"] - half * t.ppf((1 + level) / 2, one["freedom"]) / t.ppf((1 + one["level"]) / 2, one["freedom"])


def top_layers():
    effects = FOUND["fig6/fig6-top-layers"]["evidence"]["printed"]["effects"].values()
    beyond, closer = (sum(lower_end(one, level) > 0 for one in effects) for level in (0.99, 0.95))
    return (
        f"{WORDS[beyond].capitalize()} of {WORDS[len(effects)]} recover beyond chance at 99 %, {WORDS[closer]} at 95 %"
    )


def costs():
    found = FOUND["kv-cache/a-fifth-of-the-cache-suffices"]["cases"]["cost at a fifth of the cache, in nats"]
    real = real_costs(found)
    return (
        f"costs {min(real):.3f} to {max(real):.3f} nats in our network. H2O's choice of keys is not better than "
        f"keeping the last keys ({found['h2o']:.3f} and {found['window']:.3f} nats)"
    )


def far_back():
    """What every policy costs there: the cheapest, which the others are near to."""
    found = FOUND["kv-cache/a-fifth-suffices-far-back"]["cases"]["cost at a fifth of the cache, in nats"]
    least = min(real_costs(found))
    assert max(real_costs(found)) < least + 0.15
    return f"over 151 words lose {least:.1f} nats"


def real_costs(by_policy):
    """Of what a cache can do: top-k evicts nothing, and the oracle knows the queries to come."""
    return [cost for policy, cost in by_policy.items() if policy not in ("top-k", "h2o-oracle")]


def relu():
    layers = [
        decided("nonlinearity/rebound-needs-nonlinearity", f"layer {n}, rebound with ReLU against identity")
        for n in (1, 2)
    ]
    return " and ".join(f"{one['effect']:.2f}" for one in layers) + " nats: more in layer 2, undecided in layer 1"


def lowest_latents():
    claim = "table1/lowest-latents-align"
    one = decided(claim)
    fall = shown(claim, digits=3, unit="", sign=-1, of="difference")
    return f"from {one['control_effect']:.3f} to {one['effect']:.3f}, by {fall}"


SAID = {
    "mathematical claims": (counted, 2),
    "one layer": (lambda: shown("fig6/fig6-one-layer"), 2),
    "top layers": (top_layers, 2),
    "linear MLP, layer 1": (lambda: linear("layer 1").removesuffix(" at 99 %"), 2),
    "linear MLP, layer 2": (lambda: linear("layer 2"), 2),
    "ReLU": (relu, 1),
    "held sizes": (lambda: f"{held('1 layer')} of it in a one-layer model and {held('2 layers: layer 2')} in the", 2),
    "MLPs frozen": (
        lambda: shown("need-or-delay/delayed-by-mlp", "2 layers: layer 2", digits=3) + ", with nothing frozen by 0.407",
        1,
    ),
    "Theorem 1": (
        lambda: "a skill of {} % as printed and {} % as corrected".format(
            *skills(["Theorem 1, as printed", "Theorem 1"])
        ),
        1,
    ),
    "equation 6": (
        lambda: "its skill is {} % as printed and {} % as corrected".format(*skills(["eq. 6, as printed", "eq. 6"])),
        1,
    ),
    "focus and dilution": (
        lambda: "a skill of " + shown("forecast/focus-and-dilution-foretells", digits=1, unit=" %", scale=100),
        1,
    ),
    "damped trend": (lambda: f"a damped trend {damped_trend()}", 1),
    "sparsity and cost": (
        lambda: "correlation is " + shown("kv-cache/sparsity-explains-what-eviction-costs", unit="", sign=-1),
        1,
    ),
    "cost of eviction": (costs, 1),
    "cost of eviction for one that looks back": (far_back, 1),
    "lowest latents": (lowest_latents, 2),
    "GaLore at one rate": (lambda: galore("printed"), 2),
    "GaLore at two rates": (lambda: galore("corrected").removesuffix(" at 99 %"), 2),
    "hierarchy from the top": (
        lambda: shown("shallow-first/bottom-up", digits=1, unit=" doublings of time", sign=-1),
        1,
    ),
    "reverse": (
        lambda: shown("reversal-decoder/reverse-no-better-than-uniform", digits=1, unit=" %", of="control", scale=100),
        1,
    ),
    "rivals beaten": (rivals_beaten, 1),
}
"""What the record says, and on how many of the two pages it stands."""


def pages_with(said):
    pattern = said if "(?:" in said else re.escape(said)
    return [page for page in PAGES if re.search(pattern, " ".join(text_of(page).split()))]


@pytest.mark.parametrize("name", SAID)
def test_a_headline_has_the_number_of_its_record(name):
    said, count = SAID[name]
    assert len(pages_with(said())) == count, said()


QUICK = json.loads((ROOT / "results/quick.json").read_text(encoding="utf-8"))["findings"]
TESTED = {
    "Attention entropy falls and then recovers": "fig6/fig6-one-layer",
    "Top layers of deeper models recover too": "fig6/fig6-top-layers",
    "With a linear MLP attention stays sparse": "nonlinearity/linear-mlp-stays-sparse",
    "The recovery needs the nonlinearity": "nonlinearity/rebound-needs-nonlinearity",
    "Attention recovers because its logits shrink": "dilution/logits-shrink",
    "Neurons align with the lowest latents": "table1/lowest-latents-align",
    "Full rank beats GaLore": "galore-table/full-rank-is-best",
    "The second layer's recovery needs the MLPs to learn": "need-or-delay/needs-mlp",
    "Theorem 1 predicts entropy better than “no change”": "forecast/theorem-1-foretells",
    "Equation 6 predicts logits better than “no change”": "forecast/equation-6-foretells",
    "A law of focus and dilution predicts entropy better than trends": "forecast/focus-and-dilution-foretells",
    "Attention becomes sparse in training": "kv-cache/sparsity-arises-in-training",
    "A fifth of the cache is enough": "kv-cache/a-fifth-of-the-cache-suffices",
    "It is enough for a network that must look far back": "kv-cache/a-fifth-suffices-far-back",
    "Sparser attention makes eviction cheaper": "kv-cache/sparsity-explains-what-eviction-costs",
    "A hierarchy is learned from the bottom": "shallow-first/bottom-up",
    "The reverse of a fact is no better than a uniform guess": "reversal-decoder/reverse-no-better-than-uniform",
    "Nothing of the reverse is learned": "reversal-decoder/no-trace-of-the-reverse",
    "Text read backwards cures the reversal curse": "reversal-decoder/text-read-backwards",
}
"""What a row of the front pages says is tested."""
MATHEMATICS = "Theorems, lemmas and equations are correct as printed"


def rows(page):
    """By its claim, in order: the page that a row leads to, its result, its verdicts."""
    section = text_of(page).partition("## What we found")[2].partition("\n## ")[0]
    found = re.findall(
        r"^\| (?:\[|{doc}`)([^\]<]+?)(?:\]\(| <)([^)>]+)(?:\)|>`) \| (.*) \| (.*) \| (.*) \|$", section, re.M
    )
    return {claim: (link.rpartition("/")[2].removesuffix(".md"), *cells) for claim, link, *cells in found}


def test_the_readme_begins_with_the_headlines_of_report_and_terminal():
    from joma.report.claims.headlines import HEADLINES

    found = rows("README.md")
    assert list(dict.fromkeys(page for page, *_ in found.values())) == [one.page for one in HEADLINES]
    for headline in HEADLINES[1:]:
        (claim,) = [name for name, claim in TESTED.items() if claim == headline.claim]
        page, result, *_ = found[claim]
        words = re.split("[,:]", headline.sentences.get(FOUND[headline.claim]["verdict"], ""))[0]
        assert (page, words in f"{claim}. {result}") == (headline.page, True)


def test_the_rows_of_the_front_pages_are_the_same_and_lead_to_the_same_pages():
    readme, manual = map(rows, PAGES)
    assert readme.items() <= manual.items()
    assert manual.keys() == {MATHEMATICS, *TESTED}


@pytest.mark.parametrize("page", PAGES)
def test_a_front_page_has_what_its_script_writes(page, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    script = importlib.import_module("findings_table")
    assert script.table(readme=page == "README.md") in text_of(page), "run python docs/findings_table.py"
    assert "| Claim |" not in script.TABLE.sub("gone", text_of(page))


def test_a_row_has_the_verdicts_that_are_kept():
    for claim, (*_, quick, paper) in rows("docs/index.md").items():
        if claim != MATHEMATICS:
            kept = (QUICK[TESTED[claim]], FOUND[TESTED[claim]])
            verdicts = tuple(one["verdict"] + " (fragile)" * one["fragile"] for one in kept)
            assert (quick, paper) == verdicts, claim


def test_one_verdict_on_mathematics_differs_at_quick_scale():
    mathematical = [name for name, finding in FOUND.items() if not finding["empirical"]]
    assert sum(QUICK[name]["verdict"] != FOUND[name]["verdict"] for name in mathematical) == 1
    assert {rows(page)[MATHEMATICS][2] for page in PAGES} == {"one verdict differs"}


def test_verdicts_are_counted():
    from joma.claims.rules import VERDICTS

    assert f"explains all {WORDS[len(VERDICTS)]} verdicts" in text_of("docs/start/tutorial.md")


def test_constants_without_an_interval_are_counted():
    judged = [one for one in FOUND.values() if one["empirical"] and one["verdict"] != "not run"]
    constant = sum("the constant" in one["control"] for one in judged)
    said = f"{constant} of the {len(judged)} empirical claims at paper scale"
    assert said in " ".join(text_of("docs/explanation/findings.md").split())


def test_fragile_verdicts_are_counted():
    quick, paper = (sum(finding["fragile"] for finding in found.values()) for found in (QUICK, FOUND))
    page = " ".join(text_of("docs/explanation/many-claims.md").split())
    said = f"At quick scale {quick} of {len(QUICK)} verdicts are fragile, at paper scale {paper} of {len(FOUND)}."
    assert said in page
    table = " ".join(text_of("docs/results/index.md").split())
    assert f"{quick} of them are fragile" in table
    assert f"{paper} of these verdicts are fragile" in table


def test_the_number_of_claims_is_that_of_the_studies():
    from joma.studies import load, names

    claims = sum(len(load(name).claims) for name in names())
    assert f"**{claims} claims, {len(FOUND)} of them kept at paper scale**" in built("docs/results/index.md")


def test_the_table_of_verdicts_has_those_that_are_kept():
    from joma.claims.rules import VERDICTS

    page = built("docs/results/index.md")
    legend = next(line for line in page.splitlines() if line.startswith("✓"))
    marks = {verdict: re.search(rf"(\S) {verdict}(?: ·|$)", legend)[1] for verdict in VERDICTS}
    rows = dict(re.findall(r"^\| `([\w-]+)` \| .* \| [^|]* \| ([^|]*) \|$", page, re.M))
    for record in RECORDS:
        found = Counter(marks[finding["verdict"]] for finding in record["findings"])
        name = record["findings"][0]["id"].split("/")[0]
        assert {word[-1]: int(word[:-1]) for word in rows[name].split()} == found, name
