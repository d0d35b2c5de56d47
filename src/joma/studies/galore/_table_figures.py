"""The figures of `galore-table`: perplexity against rate, perplexity and memory by method, loss over training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, RED, panels
from joma.host.words import counted
from joma.studies.galore._table_config import FULL, GALORE, LORA, LOW, MUON, RANDOM, RELORA, SCALED, shown
from joma.studies.galore._table_record import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS: dict[str, dict[str, Any]] = {
    FULL: {"color": CONTROL},
    SCALED: {"color": CONTROL, "ls": "--"},
    GALORE: {"color": BLUE},
    RANDOM: {"color": ORANGE},
    LORA: {"color": GREEN},
    RELORA: {"color": GREEN, "ls": "--"},
    LOW: {"color": RED},
    MUON: {"color": PURPLE},
}
SMOOTH = 20
"""A loss curve is a mean over a part of its steps, one in so many."""


def draw_rates(table: Table) -> Drawing:
    """Perplexity at the short horizon against the rate."""
    figure, (axis,) = panels(width=6.2, height=3.6)
    for method in table.tried:
        axis.plot(table.rates, np.exp(table.sweep(method)), marker="o", ms=3.5, label=shown(method), **LOOKS[method])
    axis.set(xscale="log", yscale="log", xlabel="largest rate", ylabel="held-out perplexity")
    _plain_ticks(axis, table.rates)
    label_lines(axis)
    best = {method: rate for method in table.tried if (rate := table.best_of("sweep", method)) is not None}
    tokens = int(table.run.config["sweep_steps"]) * _tokens_per_step(table)
    spread = {method: np.exp(np.nanmin(table.sweep(method))) for method in best}
    lowest = min(spread, key=lambda method: spread[method])
    caption = (
        f"{_grouped(best)} Each point is one network after {_short(tokens)} tokens, with warm-up and cosine. The rates "
        "of the comparison were chosen here, at the short horizon."
    )
    alt = (
        f"Perplexity against the rate, one line per method. Lowest of all is {shown(lowest)}, {spread[lowest]:.0f}. "
        + (" ".join(f"{shown(method)}: lowest {spread[method]:.0f} at rate {best[method]:g}." for method in best))
    )
    return Drawing("rates", caption, figure, alt)


def draw_ends(table: Table) -> Drawing:
    """Perplexity of every seed at the long horizon, and the bytes of weights and states."""
    figure, (left, right) = panels(2, width=4.4, height=3.2)
    methods = table.methods()
    rows = np.arange(len(methods))[::-1]
    for row, method in zip(rows, methods, strict=True):
        ends = np.exp(table.final(method))
        left.plot(ends, np.full(len(ends), row), "o", ms=5, mfc="none", color=LOOKS[method]["color"])
        left.plot(np.nanmean(ends), row, "|", ms=16, mew=2, color=LOOKS[method]["color"])
        size = table.bytes(method)
        right.barh(row, size["weights"] / 2**20, color=LOOKS[method]["color"], alpha=0.45, height=0.6)
        right.barh(row, size["states"] / 2**20, left=size["weights"] / 2**20, color=LOOKS[method]["color"], height=0.6)
    for axis in (left, right):
        axis.set_yticks(rows, list(map(shown, methods)))
        axis.set_ylim(-0.6, len(methods) - 0.4)
        axis.set_ylabel("method")
    left.set_xlabel("held-out perplexity")
    right.set_yticklabels([])
    right.set_xlabel("MiB: weights (pale) and optimizer states")
    tokens = int(table.run.config["steps"]) * _tokens_per_step(table)
    means = {method: float(np.exp(np.nanmean(table.final(method)))) for method in methods}
    caption = (
        f"{_first(methods[0])} ends with the lowest perplexity, {means[methods[0]]:.1f}. {_gap(table, means)}Circles "
        f"are networks after {_short(tokens)} tokens, strokes their means. Right: bytes in float32; GaLore keeps "
        f"{table.bytes(GALORE)['states'] / table.bytes(FULL)['states']:.0%} of the states of full rank."
    )
    alt = (
        "Two panels, one row per method. Perplexity: "
        + ", ".join(f"{shown(m)} {means[m]:.1f}" for m in methods)
        + (". Weights and states in MiB: " + ", ".join(f"{shown(m)} {_mebibytes(table, m)}" for m in methods) + ".")
    )
    return Drawing("perplexity-and-memory", caption, figure, alt)


def _mebibytes(table: Table, method: str) -> str:
    """Of weights and states, with three digits."""
    size = table.bytes(method)
    return f"{(size['weights'] + size['states']) / 2**20:.3g}"


def _gap(table: Table, means: dict[str, float]) -> str:
    """How far GaLore is from tuned full rank; nothing where one of them did not learn."""
    if not {GALORE, table.tuned} <= set(means):
        return ""
    gap = table.more(GALORE, table.tuned)
    return (
        f"GaLore has {means[GALORE]:.1f}, tuned full rank ({shown(table.tuned)}) {means[table.tuned]:.1f}: "
        f"{gap.difference:+.3f} ± {gap.half_width:.3f} nats over {counted(gap.seeds, 'seed')}. "
    )


def _first(method: str) -> str:
    """At the beginning of a sentence."""
    return shown(method)[0].upper() + shown(method)[1:]


def draw_curves(table: Table) -> Drawing:
    """Training loss, step by step, of the first seed."""
    figure, (axis,) = panels(width=6.2, height=3.6)
    last = {}
    unit, size = _unit(int(table.run.config["steps"]) * _tokens_per_step(table))
    for method in table.tried:
        steps, losses = table.curve(method)
        if len(losses):
            steps, losses = _smooth(steps, losses)
            axis.plot(steps * _tokens_per_step(table) / size, losses, label=shown(method), **LOOKS[method])
            last[method] = float(losses[-1])
    axis.set(xlabel=f"{unit} tokens", ylabel="training loss (nats per token)")
    axis.axhline(table.by_frequency, ls=":", lw=1.0, color=INK, label="token frequencies alone")
    axis.set_ylim(min([*last.values(), table.by_frequency]) - 0.2, table.by_frequency + 0.5)
    label_lines(axis)
    order = sorted(last, key=lambda method: last[method])
    caption = (
        f"{_first(order[0])} ends with the lowest training loss, {shown(order[-1])} with the highest. Curves are those "
        "of the first seed, each method at its own rate, smoothed. The dotted line is the held-out loss of token "
        "frequencies alone."
    )
    alt = "Falling curves of training loss, one per method. At the end: " + ", ".join(
        f"{shown(method)} {last[method]:.2f}" for method in order
    )
    return Drawing("loss", caption, figure, alt + " nats.")


def _grouped(best: dict[str, float]) -> str:
    """Which methods have which best rate, in one sentence per rate."""
    rates = sorted(set(best.values()), reverse=True)
    first = "Methods differ in their best rate. " if len(rates) > 1 else ""
    return first + " ".join(
        f"{rate:g} is best for {' and '.join(_listed([shown(m) for m in best if best[m] == rate]))}." for rate in rates
    )


def _listed(names: list[str]) -> list[str]:
    return [", ".join(names[:-1]), names[-1]] if len(names) > 1 else names


def _smooth(steps: Any, losses: Any) -> tuple[Any, Any]:
    """Means over neighbouring steps."""
    width = max(1, len(losses) // (2 * SMOOTH))
    count = len(losses) // width
    return (
        steps[: count * width].reshape(count, width).mean(1),
        losses[: count * width].reshape(count, width).mean(1),
    )


def _tokens_per_step(table: Table) -> int:
    return int(table.run.config["batch"]) * int(table.run.config["context"])


def _short(tokens: int) -> str:
    unit, size = _unit(tokens)
    return f"{tokens / size:.{1 if size > 1e3 else 0}f} {unit}"


def _unit(tokens: int) -> tuple[str, float]:
    return ("million", 1e6) if tokens >= 1e5 else ("thousand", 1e3)


def _plain_ticks(axis: Axes, rates: list[float]) -> None:
    """The rates that were tried, and round numbers on a logarithmic axis that may span less than a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axis.minorticks_off()
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
