"""Checkpoints that hold several models: raw weights and their average, student and teacher.

Each of them is a root: the names that begin with its word. "." is the root of the names that belong to no other, or,
where all belong to some other, of all that are no average. Averages never come into one group with raw weights.
"""

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import pairwise

from joma.scan.errors import UnknownNames
from joma.scan.names.roles import TABLE, is_number, layer_of

TOP = "."
_AVERAGE = re.compile(r"(.*_)?(ema|swa|averaged?|polyak|shadow)(_.*|\d*)", re.I)
# Numbers of the optimizer have the names of the weights that they belong to.
_NO_WEIGHTS = re.compile(
    r"(optim|optimizer|optimizers|optimizer_states?|opt_state|lr_schedulers?|exp_avg|exp_avg_sq|grad|grads|gradients)"
)
_TOGETHER = {"encoder", "decoder"}  # two halves of one model, even where they look alike


def weights_of(names: Iterable[str]) -> list[str]:
    """Names without those of an optimizer's state."""
    return [name for name in names if not any(_NO_WEIGHTS.fullmatch(word) for word in name.split(".")[:3])]


def roots(names: Iterable[str]) -> tuple[str, ...]:
    """The roots of a checkpoint, raw weights first; one alone is "."."""
    return _roots(tuple(weights_of(names)))


@lru_cache(maxsize=8)  # the checkpoints of a series have the same names
def _roots(weights: tuple[str, ...]) -> tuple[str, ...]:
    layered = [name for name in weights if layer_of(name)] or [name for name in weights if _numbered(name)]
    averaged = tuple(sorted({root for name in layered if (root := _average_root(name)) is not None}))
    raw = [name for name in weights if _average_root(name) is None]
    raw_layered = [name for name in layered if _average_root(name) is None]
    if not raw_layered:
        return averaged if len(averaged) > 1 else (TOP,)
    twins = _twins(raw, raw_layered)
    if not averaged:
        return twins or (TOP,)
    return (*(twins or (_raw_root(raw_layered, layered, averaged),)), *averaged)


def _numbered(name: str) -> bool:
    words = name.split(".")
    return any(word in TABLE["stacks"] and is_number(after) for word, after in pairwise(words))


def averages(all_roots: Collection[str]) -> list[str]:
    """Those of the roots that are averages of others by their names."""
    return [root for root in all_roots if _AVERAGE.fullmatch(root.rpartition(".")[2])]


def choose_root(names: Collection[str], wanted: str | None = None) -> str:
    """The root to measure: the wanted one, or the raw weights if everything else is an average of them."""
    there = roots(names)
    if wanted == TOP:
        return TOP
    if wanted is not None:
        fitting = [root for root in there if root == wanted] or [
            root for root in there if root.endswith(f".{wanted}") or f".{wanted}." in f".{root}."
        ]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting and any(name.startswith(f"{wanted}.") for name in names):
            return wanted
        several = f"root must be one of {', '.join(there)}"
        known = "it holds one model, so no root is needed" if list(there) == [TOP] else several
        raise UnknownNames(f"the checkpoint has no weights under {wanted!r}; {known}", argument="root")
    raw = [root for root in there if root not in averages(there)]
    if len(raw) == 1 or len(there) == 1:
        return (raw or list(there))[0]
    how = f"choose one as root {there[0]}, or take them for one model as root ."
    raise UnknownNames(f"the checkpoint holds several sets of weights, {_and(there)}; {how}", argument="root")


def in_root(names: Collection[str], root: str) -> list[str]:
    """The names that belong to a root."""
    if root != TOP:
        return [name for name in names if name.startswith(f"{root}.")]
    there = roots(names)
    others = tuple(f"{other}." for other in (there if TOP in there else averages(there)) if other != TOP)
    return [name for name in names if not name.startswith(others)] if others else list(names)


def root_notes(names: Collection[str], wanted: str | None = None) -> tuple[str, ...]:
    """A sentence on the weights that are left aside, if there are any."""
    there = roots(names)
    chosen = choose_root(names, wanted)
    aside = [root for root in there if root != chosen]
    if not aside or chosen not in there:
        return ()
    where = "at the top" if chosen == TOP else f"under {chosen}"
    how = f"choose {'them' if len(aside) == 1 else 'one'} as root {aside[0]}"
    return (f"the weights {where} were taken, those under {_and(aside)} were left aside: {how}",)


def _average_root(name: str) -> str | None:
    words = name.split(".")
    for at, word in enumerate(words):
        if word.isdecimal():
            return None
        if _AVERAGE.fullmatch(word):
            return ".".join(words[: at + 1])
    return None


def _raw_root(raw: list[str], layered: list[str], averages: Collection[str]) -> str:
    """What raw weights are called beside averages: the word under which they have the names that the averages have."""
    averaged = {name[len(root) + 1 :] for root in averages for name in layered if name.startswith(f"{root}.")}
    for word in _words_above(raw[0]):
        if all(name.startswith(f"{word}.") for name in raw) and any(name[len(word) + 1 :] in averaged for name in raw):
            return word
    return TOP


def _twins(names: list[str], layered: list[str]) -> tuple[str, ...]:
    """Words under which the very same names lie: two models, unless they are halves or parts of one."""
    above = {word for name in layered for word in _words_above(name)}
    under: dict[str, set[str]] = {}
    for name in names:
        for word in _words_above(name):
            if word in above:
                under.setdefault(word, set()).add(name[len(word) + 1 :])
    alike: dict[frozenset[str], list[str]] = {}
    for root, inside in under.items():
        alike.setdefault(frozenset(inside), []).append(root)
    for same, found in sorted(alike.items(), key=lambda item: min(map(len, item[1]))):
        together = {root.rpartition(".")[2] for root in found} <= _TOGETHER
        everything = all(name.startswith(tuple(f"{root}." for root in found)) for name in layered)
        if len(found) > 1 and not together and everything:
            return tuple(found)
        if len(found) == 1 and same <= set(names):
            return (TOP, found[0])
    return ()


def _words_above(name: str) -> list[str]:
    """What stands before the first number of a name: "a", "a.b" and so on, without the stack of layers itself."""
    words = name.split(".")
    first = next((at for at, word in enumerate(words) if word.isdecimal()), len(words))
    return [".".join(words[:at]) for at in range(1, first)]


def _and(words: Collection[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
