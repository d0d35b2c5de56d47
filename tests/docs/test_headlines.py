"""Numbers of the front pages are those of the kept records, read from their JSON alone."""

import json
import re
from collections import Counter

import pytest
from page_blocks import ROOT, text_of
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


def other_seeds():
    cases = FOUND["forecast/theorem-1-foretells"]["cases"]
    adam, sgd = (100 * cases[f"skill with {name}, entropy"]["earlier runs"] for name in ("Adam", "SGD"))
    return f"it avoids {adam:.0f} % of that error with Adam and {sgd:.0f} % with SGD"


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
        f"{found['holds as corrected']} after a correction.** "
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
    return f"{WORDS[beyond]} of {WORDS[len(effects)]} recover beyond chance at 99 %, {WORDS[closer]} at 95 %"


def costs():
    ours, others = (
        FOUND[f"kv-cache/{claim}"]["cases"]["cost at a fifth of the cache, in nats"]
        for claim in ("a-fifth-of-the-cache-suffices", "a-fifth-suffices-others-network")
    )
    ends = [f"{min(real):.3f} to {max(real):.3f} nats" for real in map(real_costs, (ours, others))]
    return (
        f"cache costs {ends[0]} in our network, and H2O's choice is not better than the last keys ({ours['h2o']:.3f} "
        f"and {ours['window']:.3f} nats, less apart than the 0.02 that would matter). In stories260K, which others "
        f"trained, it costs {ends[1]} (a fragile verdict). **Networks that must look back over 151 words lose "
        f"{far_back()} nats** with a fifth of the cache, whichever keys it keeps."
    )


def far_back():
    """What every policy costs there: the cheapest, which the others are near to."""
    found = FOUND["kv-cache/a-fifth-suffices-far-back"]["cases"]["cost at a fifth of the cache, in nats"]
    least = min(real_costs(found))
    assert max(real_costs(found)) < least + 0.15
    return f"{least:.1f}"


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


def with_frozen(part):
    return shown(f"need-or-delay/delayed-by-{part}", "2 layers: layer 2", digits=3)


SAID = {
    "mathematical claims": (counted, 2),
    "one layer": (lambda: shown("fig6/fig6-one-layer"), 2),
    "top layers": (top_layers, 2),
    "linear MLP, layer 1": (lambda: linear("layer 1").removesuffix(" at 99 %"), 2),
    "linear MLP, layer 2": (lambda: linear("layer 2"), 2),
    "ReLU": (relu, 2),
    "held sizes": (lambda: f"{held('1 layer')} of it in a one-layer model and {held('2 layers: layer 2')} in the", 2),
    "queries and keys frozen": (lambda: with_frozen("qk"), 1),
    "MLPs frozen": (lambda: with_frozen("mlp"), 1),
    "embeddings frozen": (lambda: with_frozen("embeddings"), 1),
    "other seeds": (other_seeds, 1),
    "Theorem 1": (
        lambda: "a skill of {} % as printed and {} % as corrected".format(
            *skills(["Theorem 1, as printed", "Theorem 1"])
        ),
        1,
    ),
    "equation 6": (lambda: "equation 6 {} and {} %".format(*skills(["eq. 6, as printed", "eq. 6"])), 1),
    "focus and dilution": (
        lambda: "has " + shown("forecast/focus-and-dilution-foretells", digits=1, unit=" %", scale=100),
        1,
    ),
    "damped trend": (lambda: f"a damped trend with two {damped_trend()}", 1),
    "sparsity and cost": (
        lambda: "correlation is " + shown("kv-cache/sparsity-explains-what-eviction-costs", unit="", sign=-1),
        1,
    ),
    "rivals beaten": (rivals_beaten, 1),
    "cut cache": (costs, 1),
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
}
"""What the record says, and on how many of the two pages it stands."""


def pages_with(said):
    pattern = said if "(?:" in said else re.escape(said)
    return [page for page in PAGES if re.search(pattern, " ".join(text_of(page).split()))]


@pytest.mark.parametrize("name", SAID)
def test_a_headline_has_the_number_of_its_record(name):
    said, count = SAID[name]
    assert len(pages_with(said())) == count, said()


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("fig6/fig6-one-layer", "holds"),
        ("fig6/fig6-top-layers", "undecided"),
        ("nonlinearity/linear-mlp-stays-sparse", "fails"),
        ("dilution/logits-shrink", "holds"),
        ("need-or-delay/needs-mlp", "undecided"),
        ("need-or-delay/delayed-by-mlp", "only qualitative"),
        ("forecast/theorem-1-foretells", "not above its control"),
        ("forecast/equation-6-foretells", "fails"),
        ("forecast/focus-and-dilution-foretells", "only qualitative"),
        ("kv-cache/a-fifth-of-the-cache-suffices", "not above its control"),
        ("kv-cache/a-fifth-suffices-others-network", "not above its control"),
        ("kv-cache/sparsity-arises-in-training", "holds"),
        ("kv-cache/sparsity-explains-what-eviction-costs", "not above its control"),
        ("kv-cache/a-fifth-suffices-far-back", "not above its control"),
        ("table1/published-correlations", "not above its control"),
        ("table1/lowest-latents-align", "not above its control"),
        ("nonlinearity/rebound-needs-nonlinearity", "undecided"),
        ("reversal-decoder/reverse-no-better-than-uniform", "undecided"),
        ("reversal-decoder/text-read-backwards", "holds"),
        ("galore-table/full-rank-is-best", "undecided"),
        ("shallow-first/bottom-up", "fails"),
    ],
)
def test_the_verdicts_that_the_front_pages_put_into_words_still_stand(claim, verdict):
    """Where one changes, its sentence on both pages has to be read again."""
    assert FOUND[claim]["verdict"] == verdict


QUICK = json.loads((ROOT / "results/quick.json").read_text(encoding="utf-8"))["findings"]
AT_QUICK = {
    "figure6": "{fig6/fig6-one-layer}.",
    "ablations": "that it stays away with a linear MLP {nonlinearity/linear-mlp-stays-sparse}, in one narrow layer.",
    "why-attention-comes-back": "{dilution/logits-shrink}.",
    "rebound": "Theorem 1 {forecast/theorem-1-foretells}, equation 6 {forecast/equation-6-foretells}, the law "
    "{forecast/focus-and-dilution-foretells}.",
    "sparse-attention": "{kv-cache/a-fifth-of-the-cache-suffices}.",
    "table1": "{table1/lowest-latents-align}.",
    "galore-table": "{galore-table/full-rank-is-best}.",
}
"""By the page that a headline leads to: what it says of quick scale."""


def test_the_readme_begins_with_the_headlines_of_report_and_terminal():
    from joma.report.claims.headlines import HEADLINES

    bullets = re.findall(r"^- \*\*.*?(?=^- |^$)", text_of("README.md"), re.M | re.S)[: len(HEADLINES)]
    assert [re.search(r"docs/\w+/([\w-]+)\.md", one)[1] for one in bullets] == [one.page for one in HEADLINES]
    for bullet, headline in zip(bullets[1:], HEADLINES[1:], strict=True):
        assert f"{{{headline.claim}}}" in AT_QUICK[headline.page]
        words = headline.sentences.get(FOUND[headline.claim]["verdict"], "").removeprefix("Attention entropy ")
        assert re.split("[,:]", words)[0] in bullet


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("about", AT_QUICK)
def test_what_is_said_of_quick_scale_is_what_is_kept_of_it(page, about):
    said = re.findall(rf"/{about}(?:\.md\)|`).{{,3}}\s+\*Quick: ([^*]*)\*", text_of(page))
    words = re.sub(r"{(.*?)}", lambda name: QUICK[name[1]]["verdict"], AT_QUICK[about])
    said = [" ".join(one.split()) for one in said]
    assert said == [words] or (page == "README.md" and f"/{about}.md" not in text_of(page))


def test_what_else_is_said_of_quick_scale_still_stands():
    mathematical = [name for name, finding in FOUND.items() if not finding["empirical"]]
    assert sum(QUICK[name]["verdict"] != FOUND[name]["verdict"] for name in mathematical) == 1  # "but for one claim"
    delay = QUICK["shallow-first/bottom-up"]
    assert (delay["verdict"], round(delay["effect"], 1)) == ("fails", -2.9)
    cures = ("text-read-backwards", "reverse-no-better-than-uniform")
    assert {QUICK[f"reversal-decoder/{name}"]["verdict"] for name in cures} == {"holds"}
    assert QUICK["reversal-decoder/no-trace-of-the-reverse"]["verdict"] == "not above its control"
    assert QUICK["kv-cache/sparsity-arises-in-training"]["verdict"] == "holds"
    assert QUICK["kv-cache/sparsity-explains-what-eviction-costs"]["verdict"] == "undecided"


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
    assert f"**{claims} claims, {len(FOUND)} of them kept at paper scale**" in text_of("docs/results/index.md")


def test_the_table_of_verdicts_has_those_that_are_kept():
    from joma.claims.rules import VERDICTS

    page = text_of("docs/results/index.md")
    legend = next(line for line in page.splitlines() if line.startswith("✓"))
    marks = {verdict: re.search(rf"(\S) {verdict}(?: ·|$)", legend)[1] for verdict in VERDICTS}
    rows = dict(re.findall(r"^\| `([\w-]+)` \| .* \| [^|]* \| ([^|]*) \|$", page, re.M))
    for record in RECORDS:
        found = Counter(marks[finding["verdict"]] for finding in record["findings"])
        name = record["findings"][0]["id"].split("/")[0]
        assert {word[-1]: int(word[:-1]) for word in rows[name].split()} == found, name
