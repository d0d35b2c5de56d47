"""The figure of `joma cache`: what is lost against the share of the cache that is kept."""

from pathlib import Path

from joma.cache.costs import Costs
from joma.figures.labels import label_lines
from joma.figures.policies import in_order, looks_of, share_axis
from joma.figures.style import INK, house_style, panels
from joma.figures.types import Figure
from joma.host.file_kinds import FIGURE, FIGURE_MARK
from joma.host.files import atomically


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
    looks = looks_of(in_order(costs.of))
    for name, look in looks.items():
        ordered = sorted(costs.of[name], key=lambda cost: cost.keep)
        kept, added, low, high = ([getattr(cost, key) for cost in ordered] for key in ("keep", "added", "low", "high"))
        axis.plot(kept, added, marker="o", ms=3, label=name, **look)
        axis.fill_between(kept, low, high, color=look["color"], alpha=0.12, lw=0)
    axis.axhline(0, color=INK, lw=0.8, ls=":")
    shares = sorted({cost.keep for several in costs.of.values() for cost in several})
    share_axis(axis, shares, f"share of {costs.seq_len} keys that each head keeps")
    axis.set_ylabel("added loss (nats per token)")
    axis.set_title(title)
    label_lines(axis)
    return figure


def write_png(costs: Costs, path: Path, *, title: str = "") -> None:
    """Draw into a file, which is there in full or not at all.

    - costs: what `joma.cache.evaluate` gives
    - path: of the PNG
    - title: above the axes
    """
    with house_style(), atomically(path, FIGURE) as unfinished:
        figure, mark = draw(costs, title=title), {"Software": FIGURE_MARK}
        figure.savefig(unfinished, format="png", dpi=160, facecolor="white", transparent=False, metadata=mark)
