"""The figures of `galore-table`: perplexity against rate, perplexity and memory by method, loss over training."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.reading import listing
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, RED, panels
from joma.host.words import counted
from joma.runs import Run
from joma.studies.galore.galore_table.networks import FULL, GALORE, LORA, LOW, MUON, RANDOM, RELORA, SCALED, shown
from joma.studies.galore.galore_table.record import SWEEP, Table

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


def draw(run: Run) -> list[Drawing]:
    """Rates at the short horizon, the ends of the long one with memory, and curves."""
    table = Table(run)
    ends = [_draw_ends(table)] if table.methods() else []  # where nothing was learned there is nothing to compare
    return [_draw_rates(table), *ends, _draw_curves(table)]


def _draw_rates(table: Table) -> Drawing:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure, (axis,) = panels(width=6.2, height=3.6)
    for method in table.tried:
        axis.plot(table.rates, np.exp(table.sweep(method)), marker="o", ms=3.5, label=shown(method), **LOOKS[method])
    axis.set(xscale="log", yscale="log", xlabel="largest rate", ylabel="held-out perplexity")
    axis.set_xticks(table.rates, [f"{rate:g}" for rate in table.rates])
    axis.minorticks_off()
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))  # it may span less than a decade
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    label_lines(axis)
    best = {method: rate for method in table.tried if (rate := table.best_of(SWEEP, method)) is not None}
    rates = sorted(set(best.values()), reverse=True)
    groups = {rate: listing([shown(method) for method in best if best[method] == rate]) for rate in rates}
    caption = (
        f"{'Methods differ in their best rate. ' * (len(rates) > 1)}"
        f"{' '.join(f'{rate:g} is best for {methods}.' for rate, methods in groups.items())} Each point is one "
        f"network after {_short(table, 'sweep_steps')} tokens, with warm-up and cosine. The rates of the comparison "
        "were chosen here, at the short horizon."
    )
    return Drawing("rates", caption, figure)


def _draw_ends(table: Table) -> Drawing:
    figure, (left, right) = panels(2, width=4.4, height=3.2)
    methods = table.methods()
    rows = np.arange(len(methods))[::-1]
    for row, method in zip(rows, methods, strict=True):
        ends, colour = np.exp(table.final(method)), LOOKS[method]["color"]
        left.plot(ends, np.full(len(ends), row), "o", ms=5, mfc="none", color=colour)
        left.plot(np.nanmean(ends), row, "|", ms=16, mew=2, color=colour, label="mean over seeds")
        weights, states = (table.bytes(method)[name] / 2**20 for name in ("weights", "states"))
        right.barh(row, weights, color=colour, alpha=0.45, height=0.6, label="weights")
        right.barh(row, states, left=weights, color=colour, height=0.6, label="optimizer states")
    for axis in (left, right):
        axis.set_yticks(rows, list(map(shown, methods)))
        axis.set_ylim(-0.6, len(methods) - 0.4)
        axis.set_ylabel("method")
    left.set_xlabel("held-out perplexity")
    right.tick_params(labelleft=False)
    right.set_xlabel("MiB: weights (pale) and optimizer states")
    means = {method: float(np.exp(np.nanmean(table.final(method)))) for method in methods}
    gap = ""
    if {GALORE, table.tuned} <= set(means):  # both learned
        found = table.more(GALORE, table.tuned)
        gap = (
            f"GaLore has {means[GALORE]:.1f}, tuned full rank ({shown(table.tuned)}) {means[table.tuned]:.1f}: "
            f"{found.difference:+.3f} ± {found.half_width:.3f} nats over {counted(found.seeds, 'seed')}. "
        )
    caption = (
        f"{_first(methods[0])} ends with the lowest perplexity, {means[methods[0]]:.1f}. {gap}Circles "
        f"are networks after {_short(table, 'steps')} tokens, strokes their means. Right: bytes in float32; GaLore "
        f"keeps {table.bytes(GALORE)['states'] / table.bytes(FULL)['states']:.0%} of the states of full rank."
    )
    return Drawing("perplexity-and-memory", caption, figure)


def _first(method: str) -> str:
    """At the beginning of a sentence."""
    return shown(method)[0].upper() + shown(method)[1:]


def _draw_curves(table: Table) -> Drawing:
    figure, (axis,) = panels(width=6.2, height=3.6)
    last = {}
    unit, size = _unit(int(table.run.config["steps"]) * table.tokens_per_step)
    for method in table.tried:
        losses = table.curve(method)
        if len(losses):
            width = max(1, len(losses) // (2 * SMOOTH))
            count = len(losses) // width
            steps, losses = (
                part[: count * width].reshape(count, width).mean(1) for part in (np.arange(1, len(losses) + 1), losses)
            )
            axis.plot(steps * table.tokens_per_step / size, losses, label=shown(method), **LOOKS[method])
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
    return Drawing("loss", caption, figure)


def _short(table: Table, steps: str) -> str:
    """The tokens of a horizon, with a word for thousands or millions."""
    tokens = int(table.run.config[steps]) * table.tokens_per_step
    unit, size = _unit(tokens)
    return f"{tokens / size:.{1 if size > 1e3 else 0}f} {unit}"


def _unit(tokens: int) -> tuple[str, float]:
    return ("million", 1e6) if tokens >= 1e5 else ("thousand", 1e3)
