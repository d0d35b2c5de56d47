"""What the tests of studies of trees share: tiny runs."""

import pytest
from records import carried_out
from studies.hierarchy.told_shallow_first import TINY as TINY_SHALLOW_FIRST

from joma.studies import load
from joma.studies.hierarchy.hblt_alignment import HBLTAlignmentConfig
from joma.studies.hierarchy.table1 import Table1Config

TINY = {
    "table1": Table1Config(columns=(1, 4), seeds=2, width=8, steps=6, look_at=(2,), rate=1e-2, batch=32),
    "hblt-alignment": HBLTAlignmentConfig(
        depths=(2, 3), rhos=(1.0, 0.8), seeds=2, classes=3, tokens=2, width=8, steps=6, look_at=(2,), batch=8,
        samples=60,
    ),
}  # fmt: skip


@pytest.fixture(scope="session")
def tiny():
    """Study and config, by name."""
    return {name: (load(name), config) for name, config in TINY.items()}


@pytest.fixture(scope="session")
def tiny_runs(tiny, tmp_path_factory):
    """Trained for six steps, which is too short to learn anything."""
    folder = tmp_path_factory.mktemp("runs")
    return {name: carried_out(study, config, folder / name) for name, (study, config) in tiny.items()}


@pytest.fixture(scope="session")
def shallow_first_run(tmp_path_factory):
    return carried_out(load("shallow-first"), TINY_SHALLOW_FIRST, tmp_path_factory.mktemp("runs") / "shallow-first")
