"""The tables of file formats are made from the schemas: each key that a file may have is on the page."""

import importlib

import pytest
from page_blocks import ROOT, text_of

from joma.host.schema import load, names

PAGE = "docs/reference/file-formats.md"


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    source = [text_of(PAGE)]
    importlib.import_module("schemas")._put(None, "reference/file-formats", source)
    assert "{schema}" not in source[0]
    return source[0].splitlines()


@pytest.mark.parametrize("name", names())
def test_every_key_of_a_schema_is_on_the_page(name, page):
    schema = load(name)
    parts = [
        schema,
        *(part for key, part in schema.get("$defs", {}).items() if key not in ("compared", "study", "row")),
    ]
    for part in parts:
        for key in part.get("properties", {}):
            assert any(line.startswith((f"| `{key}` | ", f"| `{key}` (optional) | ")) for line in page), key
    assert f"{name}-{names()[name]}.json" in "\n".join(page)


def test_a_row_says_what_a_key_holds(page):
    assert "| `residuals` | number by name |" in "\n".join(page)
    assert "| `seeds` | integer or null | how many seeds could be compared |" in page
    assert any(line.startswith("| `must` | `<=`, `<`, `>=`, `>` |") for line in page)
    assert any(line.startswith("| `half_width` (optional) | number |") for line in page)
    assert any(line.startswith("| `dims/...` (optional) | list of list |") for line in page)
