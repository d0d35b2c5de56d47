"""How every figure shows cache policies: one order, one look per policy, one direction of the axis."""

from collections.abc import Iterable, Sequence
from typing import Any

from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, RED
from joma.figures.types import Axes

LOOKS: dict[str, dict[str, Any]] = {
    "window": {"color": RED},
    "sinks": {"color": ORANGE},
    "h2o": {"color": BLUE},
    "h2o-oracle": {"color": BLUE, "ls": ":"},
    "snapkv": {"color": GREEN},
    "random": {"color": CONTROL, "ls": "--"},
    "top-k": {"color": PURPLE, "ls": "-."},
}
"""Colour and dashes of each policy that evicts or leaves out keys, in the order in which they are drawn."""
_DASHES = ("-", "--", "-.", ":")


def in_order(policies: Iterable[str]) -> list[str]:
    """The policies as every figure orders them; those of somebody else come last.

    >>> in_order(["small_keys", "top-k", "h2o", "window"])
    ['window', 'h2o', 'top-k', 'small_keys']
    """
    names = list(LOOKS)
    return sorted(policies, key=lambda name: names.index(name) if name in LOOKS else len(names))


def looks_of(policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The look of each policy: those of somebody else are in ink, each with dashes of its own.

    >>> looks_of(["h2o", "small_keys", "late"])["late"]
    {'color': '#010203', 'ls': '--'}
    """
    others = [name for name in policies if name not in LOOKS]
    return {name: LOOKS.get(name) or {"color": INK, "ls": _DASHES[others.index(name) % 4]} for name in policies}


def share_axis(axis: Axes, shares: Sequence[float], label: str) -> None:
    """Shares of the cache, from 0 to 1, to the right from large to small: lines part there, and labels stand there.

    >>> from joma.figures.style import house_style, panels
    >>> with house_style():
    ...     _, (axis,) = panels()
    ...     share_axis(axis, [0.05, 0.2], "share kept")
    >>> [text.get_text() for text in axis.get_xticklabels()], bool(axis.xaxis_inverted())
    (['5 %', '20 %'], True)
    """
    axis.set_xscale("log")
    axis.set_xticks(list(shares), [f"{100 * share:.3g} %" for share in shares])
    axis.minorticks_off()
    axis.xaxis.set_inverted(True)
    axis.set_xlabel(label)
