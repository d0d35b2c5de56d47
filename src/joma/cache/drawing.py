"""The figure of `joma cache`: what is lost against the share of the cache that is kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joma.cache.costs import Costs
from joma.figures.labels import label_lines
from joma.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, house_style, panels
from joma.host.files import whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOOKS = {
    "window": (RED, "-"),
    "sinks": (ORANGE, "-"),
    "h2o": (BLUE, "-"),
    "h2o-oracle": (BLUE, "--"),
    "snapkv": (PURPLE, "-"),
    "random": (GREY, "-"),
    "top-k": (GREEN, "-"),
}


def draw(costs: Costs, *, title: str = "") -> Figure:
    """One line per policy, with the 95 % interval over sequences; call it inside `house_style`.

    >>> from joma.cache.costs import Cost
    >>> from joma.cache.rules import rule
    >>> made = [Cost(rule("window", k, 64), k / 64, 3.2, 0.8 / k, 0.01, 3.2) for k in (4, 8)]
    >>> with house_style():
    ...     len(draw(Costs(64, 2, 3.0, 3.1, {"window": made})).axes)
    1
    """
    figure, (axis,) = panels(width=5.6, height=3.6)
    for name, several in costs.of.items():
        ordered = sorted(several, key=lambda cost: cost.keep)
        kept = [100 * cost.keep for cost in ordered]
        added, width = ([getattr(cost, key) for cost in ordered] for key in ("added", "half_width"))
        colour, dashes = _LOOKS[name]
        axis.plot(kept, added, color=colour, ls=dashes, marker="o", ms=3, label=name)
        low, high = ([a + sign * w for a, w in zip(added, width, strict=True)] for sign in (-1, 1))
        axis.fill_between(kept, low, high, color=colour, alpha=0.12, lw=0)
    axis.axhline(0, color=INK, lw=0.8, ls=":")
    shares = sorted({100 * cost.keep for several in costs.of.values() for cost in several})
    axis.set_xscale("log")
    axis.set_xticks(shares, [f"{share:.3g}" for share in shares])
    axis.minorticks_off()
    axis.invert_xaxis()  # the lines part where little is kept, and their labels stand on the right
    axis.set_xlabel(f"share of {costs.length} keys that each head keeps (%)")
    axis.set_ylabel("added loss (nats per token)")
    axis.set_title(title)
    label_lines(axis)
    return figure


def write_png(costs: Costs, path: Path, *, title: str = "") -> None:
    """Draw into a file, whole or not at all."""
    with house_style(), whole(path) as unfinished:
        draw(costs, title=title).savefig(unfinished, format="png", dpi=160, facecolor="white", transparent=False)
