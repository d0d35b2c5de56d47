"""A plugin of pytest that tests/as_other_machines.py names: threads of another machine.

JOMA_TEST_THREADS=4: torch computes with so many threads, also where there are fewer cores.
JOMA_PIN: of all tests, those that begin a run of a study, see tests/studies/pins.py.
"""

import inspect
import os

import torch


def pytest_configure():
    if "JOMA_TEST_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["JOMA_TEST_THREADS"]))


def pytest_collection_modifyitems(items):
    """One test for each fixture that several share, and each that carries a study out by itself."""
    if "JOMA_PIN" not in os.environ:
        return
    seen = set()
    items[:] = [item for item in items if ({*_shared(item)} - seen and not seen.update(_shared(item))) or _begins(item)]


def _shared(item):
    """The fixtures of a test that outlive it, with their parameters."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        if definitions[-1].scope != "function":
            own = str(item.path) if definitions[-1].scope == "module" else ""  # one of several files may share its name
            yield definitions[-1].baseid, name, repr(given.get(name)), own


def _begins(item):
    return any(word in inspect.getsource(item.function) for word in ("carried_out", "carry_out", "ablations("))
