"""A plugin of pytest that tests/as_other_machines.py names: threads and memory of another machine.

JOMA_TEST_THREADS=4: torch computes with so many threads, also where there are fewer cores.
JOMA_TEST_MEMORY=odd: see odd_memory.py.
"""

import os
import sys

import odd_memory
import pytest
import torch

ODD = os.environ.get("JOMA_TEST_MEMORY") == "odd"
STATUS = []
"""How the session ended."""


def pytest_configure():
    if "JOMA_TEST_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["JOMA_TEST_THREADS"]))
    if ODD:
        odd_memory.install()


def pytest_sessionfinish(exitstatus):
    STATUS.append(int(exitstatus))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    """Leave at once: when Python takes itself down, it would give memory back to functions that are gone."""
    if ODD:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(STATUS[-1] if STATUS else 3)
