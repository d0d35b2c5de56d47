"""Studies, in folders by subject: one file per study, named as the study is, or one folder where it is long.

`names()` lists them, `load(name)` imports one, nothing loads before. `joma.studies.foreign` finds those of others;
`is_trusted(name)` is asked where a record names a study.

To add a study: write `joma/studies/FOLDER/your_study.py` with a module constant `STUDY`. It is called your-study, and
nothing else has to know of it. Above about 500 lines it becomes a folder `your_study/` with `run` and `study`. What
studies of a folder share begins with an underscore. No folder imports another.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from joma.host.errors import BadInput
from joma.host.words import did_you_mean, short
from joma.studies import foreign

if TYPE_CHECKING:
    from joma.claims.contract import Claim, Drawing, Finding, NotRun, Study

__all__ = ["Claim", "Drawing", "Finding", "NotRun", "Study", "chosen", "is_own", "is_trusted", "left_out", "load",
           "names", "offered_by", "room", "spelt", "title"]  # fmt: skip


def __getattr__(name: str) -> Any:
    """What studies are written with loads when it is first named: a list of names needs none of it."""
    if name in __all__:
        return getattr(import_module("joma.claims.contract"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_ROOMS = (
    "invariant",
    "linear",
    "isotropic",
    "salience",
    "hierarchy",
    "syntax",
    "language",
    "ablations",
    "rebound",
    "stability",
    "checkpoints",
    "sparsity",
    "depth_width",
    "scan_snap",
    "reversal",
    "inductive_bias",
    "grokking",
    "cdag",
    "galore",
)
"""In the order of the report: the paper first, then its companions; folders not named here come last."""


def names() -> tuple[str, ...]:
    """The names of all studies, in the order of the report.

    >>> names()[:3]
    ('block', 'thm1', 'thm1-coherence')
    """
    return (*_rooms(), *_foreign())


def left_out() -> list[str]:
    """What others offer and joma leaves out, each with its reason: a name that joma has, metadata that is broken."""
    return foreign.places(_rooms())[1]


def is_trusted(name: str) -> bool:
    """Whether a record may name this study: it is joma's own, or a user named it. Data never decides what is loaded.

    >>> is_trusted("thm2"), is_trusted("os")
    (True, False)
    """
    return is_own(name) or foreign.is_named(name, _foreign())


def is_own(name: str) -> bool:
    """Whether joma itself has a study of this name, spelt as it is called.

    >>> is_own("thm2"), is_own("Thm2")
    (True, False)
    """
    return name in _rooms()


def offered_by(name: str) -> str:
    """The package that offers a study, in words; empty for joma's own and for files.

    >>> offered_by("thm2")
    ''
    """
    place = _foreign().get(name)
    return "" if place is None or isinstance(place, Path) else foreign.origin(place)


def room(name: str) -> str:
    """The folder of the study called `name`; empty for a study that is not joma's own.

    >>> room("thm2")
    'linear'
    """
    known = {**_rooms(), **dict.fromkeys(_foreign(), "")}
    given, name = name, spelt(name)
    study, slash, _ = name.partition("/")
    if slash and study in known:
        raise BadInput(
            f"{name!r} names a claim, and here a study is needed: `joma verify {study}` judges all claims of {study}, "
            f"`joma show {name}` prints this one"
        )
    if name not in known:
        hint = did_you_mean(study, known, f"`joma list` has the names of all {len(known)} studies")
        named = study if re.fullmatch(r"[\w-]+", study) else given  # of a path, its first word says nothing
        raise BadInput(f"no study is called {short(named)}; {hint}")
    return known[name]


def load(name: str) -> Study:
    """The study of a name.

    - name: one of `names()`, in any spelling: neither case nor the choice of - or _ matters

    >>> load("thm2").title
    'Theorem 2: winner take all under a linear MLP'
    """
    where = room(name)
    if not where:
        return foreign.load_from(spelt(name), _foreign()[spelt(name)])
    module = f"joma.studies.{where}.{_file(name)}{'.study' if _source(name).name == 'study.py' else ''}"
    study: Study = import_module(module).STUDY
    return study


def chosen(name: str) -> str:
    """What a user typed, as the name of a study: one of `names()` in any spelling, or the path of a Python file.

    >>> chosen("Thm1_SGD")
    'thm1-sgd'
    """
    if name.endswith(".py"):
        called = foreign.name_of(Path(name))
        if called in _rooms():
            raise BadInput(f"{name} would be called {called!r}, and joma has a study of that name; rename it")
        foreign.add_file(name)
        name = called
    name = spelt(name)
    if not room(name):  # which refuses what there is not
        foreign.name_it(name)
    return name


def _foreign() -> dict[str, foreign.Place]:
    return foreign.places(_rooms())[0]


def title(name: str) -> str:
    """The title of a study. Of joma's own it is read from the source, so that a list of all takes no time.

    >>> title("thm2")
    'Theorem 2: winner take all under a linear MLP'
    """
    if not room(name):
        return load(name).title
    return _title_in(_source(name).read_text(encoding="utf-8"))


def _source(name: str) -> Path:
    """The file with the constant `STUDY` of one of joma's own studies."""
    place = Path(__path__[0]) / room(name) / _file(name)
    return place / "study.py" if place.is_dir() else place.with_suffix(".py")


def _title_in(source: str) -> str:
    r"""The title that the source of a study gives it, by its place or by its name.

    >>> _title_in('\nSTUDY = Study("sparser", "Only sparser", version=1)')
    'Only sparser'
    """
    (declared,) = ast.parse(source[source.index("\nSTUDY = ") :]).body[:1]
    assert isinstance(declared, ast.Assign)
    assert isinstance(declared.value, ast.Call)
    placed = dict(zip(("name", "title"), declared.value.args, strict=False))
    named = {word.arg: word.value for word in declared.value.keywords}
    return str(ast.literal_eval((placed | named)["title"]))


def spelt(name: str) -> str:
    """A name as studies are called: neither case nor the choice of - or _ matters.

    >>> spelt("Thm1_SGD")
    'thm1-sgd'
    """
    return name.lower().replace("_", "-")


def _file(name: str) -> str:
    return spelt(name).replace("-", "_")


@cache
def _rooms() -> dict[str, str]:
    """The folder of every study, by listing the files: nothing of a study is imported."""
    rooms = sorted((entry.name for entry in iter_modules(__path__) if entry.ispkg), key=_place)
    return {
        file.replace("_", "-"): room
        for room in rooms
        for file in sorted(_files(room), key=_natural)
        if not file.startswith("_")
    }


def _files(room: str) -> list[str]:
    return [entry.name for entry in iter_modules([f"{folder}/{room}" for folder in __path__])]


def _place(room: str) -> tuple[int, str]:
    return (_ROOMS.index(room) if room in _ROOMS else len(_ROOMS), room)


def _natural(name: str) -> list[tuple[int, str]]:
    """fig7 before fig10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
