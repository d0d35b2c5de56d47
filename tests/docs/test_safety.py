"""The page on safety names every limit with its value, and tests and subjects that are there."""

import json
import re

from chaos.run import ROUNDS
from page_blocks import ROOT, text_of

from joma.host import limits


def test_the_table_has_every_limit():
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([0-9,]+) \|", text_of("docs/explanation/safety.md"), re.M)
    assert rows == [(name, f"{getattr(limits, name):,.0f}") for name in limits.names()]


def test_the_page_counts_the_spoiled_inputs_of_the_record():
    record = json.loads(text_of("results/fuzz.json"))
    page = text_of("docs/explanation/safety.md")
    (said,) = re.findall(r"of (\d+) kinds\. .* ([0-9,]+) inputs\ngave no surprise", page)
    assert said == (str(len(record["kinds"])), f"{record['inputs']:,}")
    assert (record["surprises"], "roles" in record["kinds"]) == (0, True)


def promises():
    """(promise, tests, subjects) of each row; a test without a folder lies where the one before it does."""
    table = text_of("tests/SAFETY.md").partition("| Promise | Test | Subject |\n")[2].partition("\n\n")[0]
    for row in table.splitlines()[1:]:
        promise, tests, subjects = (cell.strip() for cell in row.strip("|").split(" |"))
        folder, found = "", []
        for name in re.findall(r"`([^`]+)`", tests):
            folder = name.rpartition("/")[0] or folder
            found.append(f"{folder}/{name.rpartition('/')[2]}")
        yield promise, found, re.findall(r"`([^`]+)`", subjects)


def test_every_promise_stands_beside_a_test_that_is_there():
    rows = list(promises())
    assert len(rows) > 20
    for promise, tests, subjects in rows:
        assert tests or subjects, promise
        assert all((ROOT / name).is_file() for name in tests), promise
    assert {subject for row in rows for subject in row[2]} == set(ROUNDS)
