"""What the tests of studies of trees share: tiny runs."""

import pytest
from small_runs import small

from joma.studies import load


@pytest.fixture(scope="session")
def tiny():
    return {name: (load(name), small(name)) for name in ("table1", "hblt-alignment")}


@pytest.fixture(scope="session")
def tiny_runs(tiny, small_run):
    return {name: small_run(name) for name in tiny}


@pytest.fixture(scope="session")
def shallow_first_run(small_run):
    return small_run("shallow-first")
