"""The paper has the numbers of the kept records, and the form that the Journal of Open Source Software wants."""

import re
import runpy
from collections import Counter

import pytest
import test_headlines as headlines
from kept_records import needs_records
from page_blocks import ROOT, text_of

FILL = runpy.run_path(str(ROOT / "paper" / "fill.py"))
TEXT = text_of("paper/paper.md")
BODY = TEXT.split("---\n", 2)[2]
SHOWN = " ".join(re.sub(r"<!--.*?-->", "", BODY).split())
SECTIONS = ("Summary", "Statement of need", "State of the field", "Software design", "Findings", "Acknowledgements")

pytestmark = needs_records


def test_every_number_is_that_of_the_records():
    assert FILL["filled"](TEXT, FILL["findings"]()) == TEXT, "run python paper/fill.py"


HEADLINES = ("one layer", "linear, layer 2", "held, one layer", "table 1", "GaLore, one rate", "GaLore, two rates")


@pytest.mark.parametrize("name", HEADLINES)
def test_headlines_are_those_of_the_front_pages(name):
    """Which are worked out by other code."""
    (said,) = re.findall(rf"<!-- {name} -->(.+?)<!-- / -->", TEXT)
    assert all(said in " ".join(text_of(page).split()) for page in headlines.PAGES)


def test_claims_are_counted():
    found = headlines.FOUND
    kinds = Counter((one["empirical"], one["verdict"]) for one in found.values())
    assert f"any of {len(found)} claims" in SHOWN
    mathematical = sum(not one["empirical"] for one in found.values())
    first = f"Of {mathematical} mathematical claims {kinds[False, 'holds']} hold as printed"
    assert f"{first} and {kinds[False, 'holds as corrected']} after a correction" in SHOWN
    assert f"The {len(found) - mathematical} empirical claims" in SHOWN
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (\d+) \|$", BODY, re.M))
    assert rows == {verdict: str(count) for (empirical, verdict), count in kinds.items() if empirical}


def test_a_number_that_was_typed_in_is_replaced():
    spoiled = re.sub(r"(<!-- one layer -->).*?(<!-- / -->)", r"\g<1>9.99 nats\2", TEXT)
    assert spoiled != TEXT
    assert FILL["filled"](spoiled, FILL["findings"]()) == TEXT


def test_no_number_of_a_finding_stands_outside_a_field():
    findings = BODY.partition("# Findings")[2].partition("# Acknowledgements")[0]
    outside = re.sub(r"<!-- [^/]+? -->.*?<!-- / -->", "", findings, flags=re.S)
    assert not re.findall(r"\d+\.\d+|\[\d", outside)


def test_the_form():
    head = TEXT.split("---\n", 2)[1]
    assert all(re.search(rf"^{key}:", head, re.M) for key in ("title", "tags", "authors", "affiliations", "date"))
    assert re.findall(r"^  - name: (.+)$", head, re.M) == ["The joma developers", "The joma project"]
    assert [name for name in re.findall(r"^# (.+)$", BODY, re.M) if name != "References"] == list(SECTIONS)
    assert 750 <= len(SHOWN.split()) <= 1750
    assert (ROOT / "paper" / re.search(r"^bibliography: (.+)$", head, re.M)[1]).is_file()
    for picture in re.findall(r"\]\(([^)]+\.png)\)", BODY):
        assert (ROOT / "paper" / picture).is_file()


def test_sources_are_those_that_are_cited():
    known = re.findall(r"^@\w+\{(\w+),", text_of("paper/paper.bib"), re.M)
    assert set(re.findall(r"@(\w+)", BODY)) == set(known)
    assert len(known) == len(set(known))
