"""How joma starts a process of its own: the same joma, and never a file that lies in the working directory.

`python -m MODULE` and `python -c CODE` look for modules in the working directory first. That may be the folder of a
stranger's checkpoint: a `numpy.py` in it would be run. So every process of joma starts here, with -P.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import joma

_SAFE = "PYTHONSAFEPATH"
# The joma of this process may stand where a new one does not look, or looks later: a checkout, a script's folder.
_START = (
    "import sys; folder, module = sys.argv[1:3]; del sys.argv[1:3]; "
    "sys.path.insert(0, folder); import joma; sys.path.remove(folder); "
    "import runpy; runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


def child_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this joma in a process of its own. Start it in `child_environment()`."""
    flags = ["-P"] + ["-E"] * bool(sys.flags.ignore_environment) + ["-s"] * bool(sys.flags.no_user_site)
    flags = ["-I"] if sys.flags.isolated else flags
    return [sys.executable, *flags, "-c", _START, str(Path(joma.__file__).parents[1]), module, *arguments]


def child_environment() -> dict[str, str]:
    """The environment of this process, for one that must not look for modules in the working directory.

    PYTHONPATH stays. Its empty entries go: they mean the working directory, and mostly come from `$PYTHONPATH:more`
    where PYTHONPATH was not set. An entry `.` stays, because somebody wrote it.
    """
    found = {**os.environ, _SAFE: "1"}
    named = [entry for entry in found.pop("PYTHONPATH", "").split(os.pathsep) if entry]
    return {**found, "PYTHONPATH": os.pathsep.join(named)} if named else found


@contextmanager
def safe_children() -> Iterator[None]:
    """Within, no Python that this process starts looks into the working directory; torch starts some to compile."""
    with environment_with({_SAFE: "1"}):
        yield


@contextmanager
def environment_with(values: Mapping[str, str]) -> Iterator[None]:
    """Within, these variables have these values.

    >>> with environment_with({"JOMA_DOOR": "open"}):
    ...     os.environ["JOMA_DOOR"]
    'open'
    >>> "JOMA_DOOR" in os.environ
    False
    """
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)
