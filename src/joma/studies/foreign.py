"""Studies that are not joma's own: files that a user names, and what installed packages offer.

A file is given to `joma verify path/to/my_study.py` or stands in the environment variable JOMA_STUDIES (several are
separated as in PATH). A package offers studies by the entry point group `joma.studies`. Both are called as joma's own
are: a file `my_study.py` holds the study my-study as its constant `STUDY`.

Naming a file is asking to run it. Nothing is searched for in the working directory. Of a package nothing but its
metadata is read until a user names its study; that a record names one is not enough.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.host.errors import BadInput
from joma.host.named_code import loading, one_line, run_file

if TYPE_CHECKING:
    from joma.claims.contract import Study

VARIABLE = "JOMA_STUDIES"
GROUP = "joma.studies"
Place = Path | EntryPoint
_PREFIX = "joma_study"  # of the module that a file becomes
_NAMED: set[str] = set()
"""Studies of packages that a user has named in this process."""


def add_file(path: str) -> None:
    """Make a file's study known to this process and to those that it starts; it comes before others of its name.

    >>> add_file("no/such_study.py")
    Traceback (most recent call last):
        ...
    joma.host.errors.BadInput: there is no file no/such_study.py that could hold a study
    """
    place = Path(path)
    if not place.is_file():
        raise BadInput(f"there is no file {path} that could hold a study")
    listed = [place.resolve(), *_listed()]
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(map(str, listed)))


def name_of(place: Place) -> str:
    """The name of the study in a file, or of an entry point.

    >>> name_of(Path("studies/my_study.py"))
    'my-study'
    """
    name = place.stem if isinstance(place, Path) else place.name
    return name.lower().replace("_", "-")


def origin(place: Place) -> str:
    """Where a study comes from, in words.

    >>> origin(Path("my_study.py"))
    'the file my_study.py'
    """
    if isinstance(place, Path):
        return f"the file {place}"
    package: Any = getattr(place, "dist", None)
    try:
        return f"the package {package.name} {package.version}"
    except Exception:  # of no package, or of one whose metadata is broken
        return f"the package of {place.value}"


def places(own: Collection[str]) -> tuple[dict[str, Place], list[str]]:
    """Where each foreign study is, by its name, files first; and what is left out, each with its reason.

    - own: names that joma has; nothing of others takes their place

    >>> places(own=[])[1]
    []
    """
    offered, unreadable = _offered()
    found, left_out = dict[str, Place](), list(unreadable)
    given: list[Place] = [*_listed(), *offered]
    for place in given:
        name = name_of(place)
        called = f"{origin(place)} would be called {name!r}"
        if name in own:
            left_out.append(f"{called}, and joma has a study of that name; rename it")
        elif not name.isprintable() or not name.strip("-") or "/" in name:
            left_out.append(f"{called}, which is no name of a study")
        elif name in found:
            left_out.append(f"{called}, as that of {origin(found[name])}, which comes first")
        elif not isinstance(place, Path) and not _is_there(place):
            left_out.append(f"{origin(place)} offers {name!r} in {place.value!r}, and there is no such module")
        else:
            found[name] = place
    return found, left_out


def name_it(name: str) -> None:
    """A user asks for this study, so that it may be loaded, also for the records that are of it."""
    _NAMED.add(name)


def is_named(name: str, known: Mapping[str, Place]) -> bool:
    """Whether a user has named it: on the command line, or its file in JOMA_STUDIES."""
    return name in known and (name in _NAMED or isinstance(known[name], Path))


def _listed() -> list[Path]:
    return [Path(one) for one in dict.fromkeys(os.environ.get(VARIABLE, "").split(os.pathsep)) if one]


@cache
def _offered() -> tuple[tuple[EntryPoint, ...], tuple[str, ...]]:
    """The entry points of all packages, and the packages whose metadata cannot be read. Nothing is imported."""
    found, broken = dict[tuple[str, str], EntryPoint](), []
    for package in distributions():
        try:
            mine = [(package.name, one) for one in package.entry_points if one.group == GROUP]
        except Exception as error:
            where = getattr(package, "_path", "a package")
            broken.append(f"the entry points of {where} cannot be read: {one_line(error)}")
            continue
        for called, one in mine:  # of a package that is there twice, the first counts, as for Python
            found.setdefault((called, one.name), one)
    return tuple(found.values()), tuple(broken)


def _is_there(place: EntryPoint) -> bool:
    """Whether Python finds the module of an entry point, or at least the package that it lies in."""
    try:
        return find_spec(place.module.partition(".")[0]) is not None
    except Exception:  # no name of a module, or something broken in its place
        return False


def load_from(name: str, place: Place) -> Study:
    """The study of this name, checked: what a file or a package holds may be anything."""
    from joma.claims.contract import Study

    # Not asked the other way round: where the package importlib_metadata is loaded, entry points are of its class.
    if isinstance(place, Path):
        found, where = _module(place), str(place)
    else:
        where = f"{origin(place)} ({place.value})"
        with loading(f"the study {name} of {where}"):
            found = place.load()
    with loading(f"the study {name} of {where}"):
        study = getattr(found, "STUDY", found)
    if not isinstance(study, Study):
        raise BadInput(f"{where} holds no study: it needs STUDY = Study(...) of joma.claims.contract")
    if study.name != name:
        raise BadInput(
            f"the study in {where} must be called {name!r}, as its file or entry point is, got {study.name!r}"
        )
    return replace(study, file=str(place)) if isinstance(place, Path) else study


def described(name: str, *, title: str = "", version: int = 0, about: str = "", file: str = "") -> Study:
    """A study of which only words are known: it stands beside findings, and can neither run, judge nor draw.

    - name, title, version, about, file: as of `Study`

    >>> described("mine").title
    'mine'
    """
    from joma.claims.contract import Study, StudyConfig

    def refuse(*_: object) -> Any:
        raise BadInput(f"the study {name} is not loaded; name it, or the file that holds it")

    return Study(name, title or name, version, {}, StudyConfig(), StudyConfig(), refuse, refuse, about, file=file)


def _module(path: Path) -> Any:
    """Run a file once per process. It is found again by its module name, which its dataclasses need."""
    known = sys.modules.get(f"{_PREFIX}_{path.stem}")
    if known is not None and known.__file__ == str(path):
        return known
    return run_file(path, _PREFIX, "a study")
