"""Numbers of the front pages are those of the kept records, read from their JSON alone."""

import json
import re
from collections import Counter

import pytest
from page_blocks import ROOT, text_of

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
    """An effect with its interval, `of="control_"` that of its control; sign -1 shows both the other way round."""
    one = decided(claim, case, form)
    value, ends = one[of + "effect"] * sign * scale, [each * sign * scale for each in one[of + "interval"]]
    return f"{value:.{digits}f}{unit} {bracket(min(ends), max(ends), digits)}"


def difference(claim, case, form):
    """An effect minus its control, with half of its interval."""
    one = decided(claim, case, form)
    low, high = one["interval"]
    return f"{abs(one['effect'] - one['control_effect']):.3f} ± {(high - low) / 2:.3f}"


def worse(claim, *, form="corrected"):
    """By how much a forecast of entropy is worse than "no change", with its interval."""
    if form == "printed":
        return f"{-100 * decided(claim, 'entropy, against earlier runs')['effect']:.0f} %"
    beside = FOUND[claim]["cases"]["corrected form against no change, entropy"]
    return f"{-100 * beside['skill']:.0f} % {bracket(-100 * beside['to'], -100 * beside['from'], 0)}"


def counted():
    found = Counter(finding["verdict"] for finding in FOUND.values() if not finding["empirical"])
    return (
        f"Of {found.total()} mathematical claims {found['holds']} hold as printed and {found['holds as corrected']} "
        f"hold with a correction.** {WORDS[found['only qualitative']].capitalize()} are only qualitative, "
        f"{WORDS[found['not above its control']]} are not above their control"
    )


def top_layers():
    effects = FOUND["fig6/fig6-top-layers"]["evidence"]["printed"]["effects"].values()
    beyond = sum(one["interval"][0] > 0 for one in effects)
    return f"Of {WORDS[len(effects)]} top layers in deeper networks {WORDS[beyond]} do so beyond chance"


def costs():
    at = FOUND["kv-cache/a-fifth-of-the-cache-suffices"]["cases"]["cost at a fifth of the cache, in nats"]
    real = [cost for policy, cost in at.items() if policy != "top-k"]  # it evicts nothing: a ceiling
    return (
        f"cache costs {min(real):.3f} to {max(real):.3f} nats, and H2O's choice is not better than the last keys"
        f"(?:\\*\\*)? \\({at['h2o']:.3f} and {at['window']:.3f} nats"
    )


def relu():
    layers = [
        decided("nonlinearity/rebound-needs-nonlinearity", f"layer {n}, rebound with ReLU against identity")
        for n in (1, 2)
    ]
    return " and ".join(f"{one['effect']:.2f}" for one in layers) + " nats: the first layer's difference is undecided"


def lowest_latents():
    claim = "table1/lowest-latents-align"
    return f"from {decided(claim)['control_effect']:.3f} to {shown(claim, digits=3, unit='')}"


SAID = {
    "mathematical claims": (counted, 2),
    "one layer": (lambda: shown("fig6/fig6-one-layer"), 2),
    "top layers": (top_layers, 2),
    "linear MLP, layer 1": (lambda: shown("nonlinearity/linear-mlp-stays-sparse", "layer 1", sign=-1), 2),
    "linear MLP, layer 2": (lambda: shown("nonlinearity/linear-mlp-stays-sparse", "layer 2", sign=-1), 2),
    "ReLU": (relu, 2),
    "MLP below": (
        lambda: shown("rebound-cause/higher-layers-by-lower-mlp", "2 layers: layer 2, against embeddings"),
        1,
    ),
    "own queries and keys": (lambda: shown("rebound-cause/own-qk-higher-layers", "2 layers: layer 2", sign=-1), 1),
    "earlier runs": (
        lambda: shown(
            "forecast/theorem-1-foretells",
            "entropy, against earlier runs",
            digits=0,
            unit=" %",
            of="control_",
            scale=100,
        ),
        1,
    ),
    "Theorem 1, printed": (lambda: f"Theorem 1 adds {worse('forecast/theorem-1-foretells', form='printed')}", 1),
    "Theorem 1, corrected": (lambda: worse("forecast/theorem-1-foretells"), 1),
    "equation 6, printed": (lambda: f"Equation 6 adds {worse('forecast/equation-6-foretells', form='printed')}", 1),
    "equation 6, corrected": (lambda: worse("forecast/equation-6-foretells"), 1),
    "cut cache": (costs, 1),
    "lowest latents": (lowest_latents, 2),
    "GaLore at one rate": (lambda: difference("galore-table/full-rank-is-best", "GaLore", "printed"), 2),
    "GaLore at two rates": (lambda: difference("galore-table/full-rank-is-best", "GaLore", "corrected"), 2),
    "hierarchy from the top": (
        lambda: shown("shallow-first/bottom-up", digits=1, unit=" doublings of time", sign=-1),
        1,
    ),
    "reverse": (
        lambda: shown("reversal-decoder/reverse-no-better-than-uniform", digits=1, unit=" %", of="control_", scale=100),
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
        ("fig6/fig6-top-layers", "only qualitative"),
        ("nonlinearity/linear-mlp-stays-sparse", "fails"),
        ("rebound-cause/higher-layers-by-lower-mlp", "holds"),
        ("rebound-cause/own-qk-higher-layers", "fails"),
        ("forecast/theorem-1-foretells", "fails"),
        ("forecast/equation-6-foretells", "fails"),
        ("kv-cache/a-fifth-of-the-cache-suffices", "fails"),
        ("kv-cache/sparsity-explains-what-eviction-costs", "not above its control"),
        ("table1/published-correlations", "not above its control"),
        ("table1/lowest-latents-align", "fails"),
        ("galore-table/full-rank-is-best", "undecided"),
        ("shallow-first/bottom-up", "fails"),
    ],
)
def test_the_verdicts_that_the_front_pages_put_into_words_still_stand(claim, verdict):
    """Where one changes, its sentence on both pages has to be read again."""
    assert FOUND[claim]["verdict"] == verdict


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
