"""What the tests of all studies share."""

import pytest
from small_runs import small_run  # noqa: F401

from joma.claims import evidence


@pytest.fixture(scope="module")
def run(request, small_run):  # noqa: F811
    """The small run of the study that a test module is about, its STUDY."""
    return small_run(request.module.STUDY.name)


def pytest_generate_tests(metafunc):
    """The rows of a module's SPOILED are what `every_study` asks of it."""
    if metafunc.function.__module__ == "every_study" and "series" in metafunc.fixturenames:
        metafunc.parametrize(("series", "change", "claim", "verdict"), metafunc.module.SPOILED)


@pytest.fixture(autouse=True)
def few_seeds_that_agree_suffice(monkeypatch):
    """Made-up records have few seeds that are alike by construction; tests/claims asks what the rules make of these."""
    monkeypatch.setattr(evidence, "ENOUGH_TO_AGREE", 4)
