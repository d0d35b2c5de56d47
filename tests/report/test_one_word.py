"""One word for one thing, in what joma says: a rebound is a rebound."""

import re
from pathlib import Path

import joma

SOURCE = Path(joma.__file__).parent


def test_a_rebound_is_called_nothing_else():
    told = {
        str(path.relative_to(SOURCE)): found
        for path in SOURCE.rglob("*")
        if path.suffix in (".py", ".html", ".js")
        if (found := re.findall(r"\bcomebacks?\b", path.read_text(encoding="utf-8")))
    }
    assert told == {}
