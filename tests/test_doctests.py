"""Every example in a docstring is run."""

import doctest
import importlib
import pkgutil

import pytest

import joma

MODULES = [m.name for m in pkgutil.walk_packages(joma.__path__, "joma.") if not m.name.endswith("__main__")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
