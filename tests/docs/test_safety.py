"""The page on safety names every limit with its value."""

import re

from page_blocks import text_of

from joma.host import limits


def test_the_table_has_every_limit():
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([0-9,]+) \|", text_of("docs/explanation/safety.md"), re.M)
    assert rows == [(name, f"{getattr(limits, name):,.0f}") for name in limits.names()]
