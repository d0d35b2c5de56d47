"""Every example in a docstring is run."""

import doctest
import importlib
from pathlib import Path

import pytest

import joma

OPTIONAL = {
    "joma.monitor.callbacks.transformers": "transformers",
    "joma.probes._support": "transformers",
    "joma.probes._text": "transformers",
    "joma.probes._transformers": "transformers",
    "joma.figures._end_labels": "matplotlib",
    "joma.figures.bands": "matplotlib",
    "joma.figures.labels": "matplotlib",
    "joma.figures.style": "matplotlib",
    "joma.training.series": "transformers",
}
"""What the examples of a module need beyond joma's own dependencies."""
HOUSE = Path(joma.__file__).parent
MODULES = [
    ".".join(("joma", *path.relative_to(HOUSE).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(HOUSE.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(importlib.import_module(name)):
        # Kept: some time later torch's compiler tidies up in the globals of what it compiled, and warns if it cannot.
        runner.run(example, clear_globs=False)
    assert runner.summarize().failed == 0
