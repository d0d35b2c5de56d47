"""What a shard left, against its form: the first thing that differs is named by the way to it."""

from pathlib import Path

import pytest

from joma.host.errors import BadInput
from joma.scale.contents import Maybe, content_of
from joma.scale.parts import Part
from joma.scale.shards import Shard

FORM = {"run": str, "rows": [(int, str | None)], "by": {str: [str]}, "index": Maybe({str: str})}
GOOD = {"run": "a", "rows": [[1, "x"], [2, None]], "by": {"10": ["note"], "20": []}, "index": None, "more": 7}


def part(content):
    return Part(Path("a"), "scan", Shard(1, 1), {}, [], [], content, versions={})


@pytest.mark.parametrize("changed", [{}, {"rows": []}, {"by": {}}, {"index": {}}, {"index": {"a": "b"}}])
def test_content_of_its_form_is_given_back(changed):
    assert content_of(part(GOOD | changed), FORM) == GOOD | changed


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"run": 7}, "content.run"),
        ({"rows": {}}, "content.rows"),
        ({"rows": [[1, "x"], [2]]}, "content.rows[1]"),
        ({"rows": [[1, "x", "y"]]}, "content.rows[0]"),
        ({"rows": [["1", "x"]]}, "content.rows[0][0]"),
        ({"rows": [[1, 2]]}, "content.rows[0][1]"),
        ({"by": []}, "content.by"),
        ({"by": {"10": [], "20": None}}, "content.by.20"),
        ({"by": {"10": ["a", 1]}}, "content.by.10[1]"),
        ({"index": {"a": None}}, "content.index.a"),
        ({"index": 0}, "content.index"),
    ],
)
def test_what_has_another_form_is_named_with_its_file(changed, where):
    with pytest.raises(BadInput) as error:
        content_of(part(GOOD | changed), FORM)
    left = "is not what a shard of joma scan leaves; remove it and give the shard's command again"
    assert str(error.value) == f"{Path('a/shard.json')} is damaged: {where} {left}"


@pytest.mark.parametrize("name", FORM)
def test_what_is_lacking_is_named(name):
    with pytest.raises(BadInput, match=rf"is damaged: content\.{name} is not what"):
        content_of(part({key: value for key, value in GOOD.items() if key != name}), FORM)
