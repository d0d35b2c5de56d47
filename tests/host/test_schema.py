"""The checker of JSON Schemas against another one, and joma's own schemas against what joma writes."""

import json
import random
from copy import deepcopy

import pytest
from kept_records import RECORDS, needs_records

from joma.host import schema
from joma.host.schema import KEYWORDS, faults, load, names

VALIDATORS = pytest.importorskip("jsonschema")
SMALL = {
    "type": "object",
    "required": ["p", "kind"],
    "properties": {
        "p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "size": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
        "kind": {"enum": ["a", "b", 1]},
        "version": {"const": 3},
        "ends": {"type": "array", "items": {"$ref": "#/$defs/number"}, "minItems": 2, "maxItems": 2},
        "either": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"$ref": "#/$defs/number"}]},
        "hash": {"type": "string", "pattern": "^[0-9a-f]+$", "minLength": 2},
    },
    "patternProperties": {"^x-": {"type": "boolean"}},
    "additionalProperties": False,
    "$defs": {"number": {"anyOf": [{"type": "number"}, {"enum": ["nan"]}]}},
}
VALUES = [None, True, False, 0, 1, 1.0, 2, 3, 3.0, 9, 10, 0.5, 2.0, -1, "a", "b", "nan", "0f", "", [], [1, "nan"], [1],
          ["a"], [1, 2, 3], [True, 1], {}, {"p": 1}]  # fmt: skip


@pytest.mark.parametrize("key", [*SMALL["properties"], "x-a", "y"])
def test_it_says_what_another_checker_says(key):
    another = VALIDATORS.Draft202012Validator(SMALL)
    for value in VALUES:
        content = {"p": 0.5, "kind": "a", key: value}
        assert (not list(faults(content, SMALL))) == another.is_valid(content), value


@pytest.mark.parametrize("name", names())
def test_the_schemas_are_valid_and_use_known_keywords_alone(name):
    VALIDATORS.Draft202012Validator.check_schema(load(name))
    assert load(name)["$id"] == f"urn:joma:schema:{name}:{names()[name]}"

    def keywords(one):
        for key, value in one.items():
            assert key in KEYWORDS, key
            inner = value.values() if key in ("properties", "patternProperties", "$defs") else value
            inner = (
                [inner] if isinstance(inner, dict) else inner if key in ("anyOf", "items") or inner is not value else []
            )
            for each in inner:
                keywords(each)

    keywords(load(name))


def test_the_newest_version_is_found_by_its_number(tmp_path, monkeypatch):
    for version in (2, 10, 9):
        (tmp_path / f"a-{version}.json").write_text("{}")
    monkeypatch.setattr(schema, "_folder", lambda: tmp_path)
    assert names.__wrapped__() == {"a": 10}


def spoiled(content, draw):
    """A copy with one value changed, removed, added, or of another kind."""
    content = deepcopy(content)
    places = []

    def walk(one):
        for key, value in one.items() if isinstance(one, dict) else enumerate(one):
            places.append((one, key))
            if isinstance(value, dict | list):
                walk(value)

    walk(content)
    inside, key = draw.choice(places)
    if draw.random() < 0.3 and isinstance(inside, dict):
        inside.pop(key) if draw.random() < 0.5 else inside.update(other=1)
    else:
        inside[key] = draw.choice(VALUES)
    return content


@needs_records
def test_spoiled_findings_are_refused_where_another_checker_refuses_them():
    record, draw = json.loads((RECORDS / "fig6" / "findings.json").read_text()), random.Random(0)
    record["findings"] = record["findings"][:2]  # of one kind: more places, no other ones
    another, refused = VALIDATORS.Draft202012Validator(load("findings")), 0
    for _ in range(150):
        content = spoiled(record, draw)
        found = list(faults(content, load("findings")))
        assert (not found) == another.is_valid(content), found
        assert all(fault.startswith(("/", "the whole ")) and "\n" not in fault for fault in found)
        refused += bool(found)
    assert refused > 60


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"p": 0.5, "kind": "c"}, "/kind must be one of 'a', 'b', 1, got 'c'"),
        ({"p": "x", "kind": 1}, "/p must be a number or null, got 'x'"),
        ({"kind": "a"}, "the whole lacks the key 'p'"),
        ({"p": 2, "kind": "a"}, "/p must be at most 1, got 2"),
        ({"p": 0, "kind": "a", "size": 0}, "/size must be above 0, got 0"),
        ({"p": 0, "kind": "a", "ends": [1]}, "/ends must have at least 2 entries, got 1"),
        ({"p": 0, "kind": "a", "ends": [1, "x"]}, "/ends/1 must be a number or 'nan', got 'x'"),
        ({"p": 0, "kind": "a", "either": ["a", 1]}, "/either/1 must be a string, got 1"),
        ({"p": 0, "kind": "a", "knid": 1}, "the whole has no key 'knid'; did you mean 'kind'?"),
        ({"p": 0, "kind": "a", "hash": "0g"}, "/hash must match ^[0-9a-f]+$, got '0g'"),
        ([], "the whole must be an object, got []"),
    ],
)
def test_a_fault_is_one_sentence_that_names_its_place(content, sentence):
    assert any(fault.startswith(sentence) for fault in faults(content, SMALL)), list(faults(content, SMALL))
