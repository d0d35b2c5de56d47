"""Studies that are not joma's own: files that a user names, and what installed packages offer.

A file is given to `joma verify path/to/my_study.py` or stands in the environment variable JOMA_STUDIES (several are
separated as in PATH). A package offers studies by the entry point group `joma.studies`. Both are called as joma's own
are: a file `my_study.py` holds the study my-study as its constant `STUDY`.

Naming a file is asking to run it. Nothing is searched for in the working directory.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.host.errors import BadInput

if TYPE_CHECKING:
    from joma.claims.contract import Study

VARIABLE = "JOMA_STUDIES"
GROUP = "joma.studies"


def add_file(path: str) -> str:
    """Make a file's study known to this process and to those that it starts; returns the name of the study.

    >>> add_file("no/such_study.py")
    Traceback (most recent call last):
        ...
    joma.host.errors.BadInput: there is no file no/such_study.py that could hold a study
    """
    place = Path(path)
    if not place.is_file():
        raise BadInput(f"there is no file {path} that could hold a study")
    listed = [*_listed(), place.resolve()]
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(map(str, listed)))
    return name_of(place)


def name_of(path: Path) -> str:
    """The name of the study in a file.

    >>> name_of(Path("studies/my_study.py"))
    'my-study'
    """
    return _spelt(path.stem)


def _spelt(name: str) -> str:
    return name.lower().replace("_", "-")


def places() -> dict[str, Path | EntryPoint]:
    """Where each foreign study is, by its name: files first."""
    files = {name_of(path): path for path in _listed()}
    return files | {name: one for one in _offered() if (name := _spelt(one.name)) not in files}


def _listed() -> list[Path]:
    return [Path(one) for one in os.environ.get(VARIABLE, "").split(os.pathsep) if one]


@cache
def _offered() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def load_from(name: str, place: Path | EntryPoint) -> Study:
    """The study of this name, checked: what a file or a package holds may be anything."""
    from joma.claims.contract import Study

    # Not asked the other way round: where the package importlib_metadata is loaded, entry points are of its class.
    found = _module(place) if isinstance(place, Path) else place.load()
    study = getattr(found, "STUDY", found)
    where = str(place) if isinstance(place, Path) else f"the package {place.value}"
    if not isinstance(study, Study):
        raise BadInput(f"{where} holds no study: it needs STUDY = Study(...) of joma.claims.contract")
    if study.name != name:
        raise BadInput(
            f"the study in {where} must be called {name!r}, as its file or entry point is, got {study.name!r}"
        )
    return replace(study, file=str(place)) if isinstance(place, Path) else study


def _module(path: Path) -> Any:
    """Run a file once per process. It is found again by its module name, which its dataclasses need."""
    called = f"joma_study_{path.stem}"
    known = sys.modules.get(called)
    if known is not None and known.__file__ == str(path):
        return known
    if not path.is_file():
        raise BadInput(f"there is no file {path} that could hold a study; {VARIABLE} names it")
    spec = spec_from_file_location(called, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} is no Python file, so it holds no study")
    sys.modules[called] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[called]
        raise
    return module
