"""The small runs of all studies: sizes that train in a second, each made once per session, whoever asks first."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from records import carried_out

from joma.runs import Run
from joma.studies import load

CHAOTIC = ("collapse",)
"""Of these no numbers are kept: some of their networks diverge, and rounding grows into every digit."""
SIZES = json.loads(Path(__file__).with_name("small_sizes.json").read_text(encoding="utf-8"))


def small(name, **changes):
    """The config of a study's small run: its quick preset with the sizes that are kept for it, and these changes."""
    return replace(load(name).quick, **{key: _frozen(value) for key, value in SIZES.get(name, {}).items()} | changes)


def _frozen(value):
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


class SmallRuns:
    """`runs(name)` is the small run of a study, read only. Processes that test side by side share its file."""

    def __init__(self, folder, mktemp, data):
        self.folder, self.mktemp, self.data, self.open = folder, mktemp, data, {}

    def __call__(self, name):
        if name not in self.open:
            path = self.folder / f"{name}.sqlite"
            with FileLock(f"{path}.lock"):
                if not path.exists():
                    self.make(name).replace(path)
            self.open[name] = Run.open(path)
        return self.open[name]

    def make(self, name):
        folder, study = self.mktemp(name), load(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JOMA_CACHE", str(folder / "cache"))
            patch.delenv("JOMA_DATA", raising=False)
            config = small(name, **{"data": str(self.data)} if hasattr(study.quick, "data") else {})
            carried_out(study, config, folder / "run.sqlite", pinned=name not in CHAOTIC).close()
        return folder / "run.sqlite"

    def config(self, name):
        made = self(name).config
        return small(name, **{"data": made["data"]} if "data" in made else {})


@pytest.fixture(scope="session")
def small_run(tmp_path_factory, data_folder):
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "small-runs"
    folder.mkdir(exist_ok=True)
    return SmallRuns(folder, tmp_path_factory.mktemp, data_folder)
