"""Pages use the field's words: none of the private words that grew in this project stands on a page."""

import re

import pytest
from page_blocks import front_pages, pages, text_of

from joma.cli.main import _parser
from joma.studies import load, names

INSTEAD = {
    "twin": "ablation, branch, copy",
    "valley": "minimum",
    "door": "command, function",
    "house": "code, project",
    "room": "folder, package",
    "told": "reported, named",
    "kin": "relative",
    "foretell": "predict",
    "foretold": "predicted",
}
PRIVATE = re.compile(rf"\b({'|'.join(INSTEAD)})s?\b", re.IGNORECASE)
MATTERS = re.compile(r"(?<!effect that )(?<!--)\bmatters\b(?! to)", re.IGNORECASE)
"""The name of a field: the smallest effect that matters. Nothing else matters."""
QUOTES = "docs/how-to/write-docs.md"


def private(text):
    """The private words in running text; code, links' targets and names of pages are none."""
    text = re.sub(r"^ *(`{3,}|~{3,}).*?^ *\1|`[^`]*`|\]\([^)]*\)|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    return [found[0] for found in PRIVATE.finditer(text)] + MATTERS.findall(text)


@pytest.mark.parametrize("page", [page for page in [*pages(), *front_pages()] if page != QUOTES])
def test_no_private_word(page):
    found = private(text_of(page))
    assert not found, f"{page}: " + ", ".join(f"{word} ({INSTEAD.get(word.lower().rstrip('s'), '')})" for word in found)


def test_no_private_word_in_what_studies_say_of_themselves():
    others = [load(name) for name in names()]
    assert not [(one.name, found) for one in others if (found := private(f"{one.title}\n\n{one.about}"))]


def test_no_private_word_in_the_help():
    parser, commands = _parser()
    assert not [word for each in (parser, *commands.values()) for word in private(each.format_help())]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Twins whose logits stay.", ["Twins"]),
        ("It was told once.\n\n```python\ntold = 1\n```", ["told"]),
        ("`room` and {doc}`house` and [code](house.md)", []),
        ("The smallest effect that matters; skins, doormat.", []),
        ("Nothing matters.", ["matters"]),
    ],
)
def test_a_private_word_is_found(text, found):
    assert private(text) == found
