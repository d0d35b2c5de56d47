"""What the tests of `depth-width` share: a tiny run on Python source, on a text of words and on trees."""

import pytest


@pytest.fixture(scope="session")
def tiny(small_run):
    return small_run("depth-width")


@pytest.fixture(scope="session")
def config(small_run):
    return small_run.config("depth-width")
