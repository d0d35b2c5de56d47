"""Numbers of the front pages are those of the kept records, read from their JSON alone."""

import importlib
import json
import re
from collections import Counter

import pytest
from page_blocks import ROOT, built, text_of
from test_result_pages import NUMBER, UNIT, is_known

PAGES = ("README.md", "docs/index.md")
RECORDS = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("results/*/findings.json"))]
FOUND = {finding["id"]: finding for record in RECORDS for finding in record["findings"]}
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@pytest.mark.parametrize("page", PAGES)
def test_every_interval_of_a_front_page_is_that_of_a_finding(page):
    """Whichever row it stands in: `docs/findings_table.py` says of which claim it is."""
    written = re.findall(rf"{NUMBER}{UNIT} \[{NUMBER}, {NUMBER}\]|{NUMBER} ± {NUMBER}", text_of(page))
    assert len(written) > 7
    assert [one for one in written if not is_known(one)] == []


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
