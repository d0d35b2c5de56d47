"""Workers find the functions that the tests give them."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _workers_find_the_tasks(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
