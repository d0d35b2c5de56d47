"""Links of README and manual lead somewhere: to a file, a heading, a picture. Other hosts are not asked."""

import re
from urllib.parse import urlsplit

import pytest
from kept_records import RECORDS
from page_blocks import ROOT, front_pages, pages, text_of

LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()\s]*\))?)\)")
DOC = re.compile(r"\{doc\}`(?:[^`<]*<)?([^`<>]+)>?`")


def prose(page):
    return re.sub(r"^ *(```|~~~).*?^ *\1", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """The headings of a page as GitHub and MyST name them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^ *```.*?^ *```", "", path.read_text("utf-8"), flags=re.M | re.S), re.M
    )
    return {slug(heading) for heading in headings}


def slug(heading):
    words = re.sub(r"[`*]|\{[^}]*\}", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def broken(page, target):
    """Why the link leads nowhere, or None."""
    parts = urlsplit(target)
    if parts.scheme:
        return None if parts.scheme in ("https", "mailto") and (parts.netloc or parts.path) else "not an https address"
    path = (ROOT / page).parent / parts.path if parts.path else ROOT / page
    if path.resolve().is_relative_to(RECORDS) and not RECORDS.is_dir():
        return None  # see kept_records.py
    if not path.exists():
        return "no such file"
    if not path.resolve().is_relative_to(ROOT):
        return "outside the checkout"
    if parts.fragment and parts.fragment not in anchors(path):
        return f"no such heading; there are {sorted(anchors(path))}"
    return None


def broken_page(page, target):
    """Why a {doc} role leads nowhere, or None."""
    start = ROOT / "docs" if target.startswith("/") else (ROOT / page).parent
    return None if (start / f"{target.lstrip('/')}.md").is_file() else "no such page"


@pytest.mark.parametrize("page", [*pages(), *front_pages()])
def test_links_lead_somewhere(page):
    wrong = [(target, why) for target in LINK.findall(prose(page)) if (why := broken(page, target))]
    wrong += [(target, why) for target in DOC.findall(prose(page)) if (why := broken_page(page, target))]
    assert not wrong


def test_every_page_is_in_the_contents():
    listed = set()
    for page in pages()[1:]:
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", text_of(page), re.DOTALL):
            entries = [line.strip() for line in tree.splitlines() if line.strip() and not line.startswith(":")]
            entries = [re.sub(r".*<(.*)>", r"\1", entry) for entry in entries]
            listed |= {((ROOT / page).parent / f"{entry}.md").resolve() for entry in entries}
    missing = {(ROOT / page).resolve() for page in pages()[1:]} - listed - {ROOT / "docs" / "index.md"}
    assert not missing


@pytest.mark.parametrize(
    "target",
    ["no-such-page.md", "docs/index.md#no-such-heading", "docs/no-such.png", "http://example.org", "../outside.md"],
)
def test_a_broken_link_is_found(target):
    assert broken("README.md", target)


def test_a_good_link_is_not():
    assert broken("README.md", "docs/index.md") is None
    assert broken("README.md", "https://example.org/page") is None
