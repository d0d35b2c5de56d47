"""Figures of `galore-theory`: bounds on the stable rank, Corollary 3.4, fixed projections, memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import bound
from joma.figures.labels import label_lines
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, CORRECTED, GREEN, ORANGE, PRINTED, PURPLE, panels
from joma.runs import Run
from joma.studies.galore import _theory_descent as descent
from joma.studies.galore import _theory_half as halves
from joma.studies.galore._theory_findings import KEPT, excess, share_broken
from joma.studies.galore._theory_memory import MODELS, UNITS
from joma.studies.galore._theory_tables import ODD, reading, three_quarters

SHOWN = 30  # steps of Lemma 3.3 in the figure


def draw_bounds(run: Run) -> Drawing:
    """Of each family the case that was made by hand."""
    figure, axes = panels(2, 2, width=4.3)
    seen = [_draw_family(run, axis, family) for axis, family in zip(axes, descent.FAMILIES, strict=True)]
    broken = {family: number(share_broken(run, family), "%") for family in descent.FAMILIES}
    caption = (
        f"The printed bound of Lemma 3.3 holds with one pair (B, C), a small rate and the right start. Of "
        f"random cases it fails in {broken[descent.SEVERAL]} with several pairs, in {broken[descent.HIGH]} with a high "
        f"rate and in {broken[descent.LATE]} where G₀ is not the gradient at t₀. The corrected bound holds in all. "
        "Each panel has a 2 × 2 case made by hand."
    )
    return Drawing("stable-rank-bounds", caption, figure, f"Four panels over {SHOWN} steps. {' '.join(seen)}")


def _draw_family(run: Run, axis: Any, family: str) -> str:
    above = float(excess(run, family, "printed")[0])
    t = run.value("lemma/t")[: SHOWN + 1]
    rank, printed, corrected = (
        run.value(f"lemma/{family}/{name}")[0, : SHOWN + 1] for name in ("rank", "printed", "corrected")
    )
    axis.plot(t, corrected, color=CORRECTED, ls="--", label="corrected bound")
    axis.plot(t, printed, color=PRINTED, label="printed bound")
    axis.plot(t, rank, color=GREEN, label="stable rank of G")
    axis.set(xlabel="step", ylabel="stable rank", ylim=(0.9, 1.1 * float(max(corrected.max(), rank.max()))))
    axis.set_title(family)
    label_lines(axis)
    over = f"at most {number(above, '%')}" if above > KEPT else "never"
    return f"{family.capitalize()}: the stable rank {course(t, rank)}, {over} above the printed bound."


def draw_half(run: Run) -> Drawing:
    """Corollary 3.4."""
    n = int(run.config["inputs"])
    figure, (axis,) = panels(width=6.0, height=3.0)
    seen, ends = [], {}
    for kind, colour in zip(halves.KINDS, (GREEN, BLUE, PURPLE), strict=True):
        t, rank = run.value(f"half/{kind}/t"), run.value(f"half/{kind}/rank")
        axis.plot(t + 1, rank, color=colour, label=kind.replace(", ", ",\n"))
        seen.append(f"{kind}: the stable rank {course(t, rank)}")
        ends[kind] = number(rank[-1])
    axis.axhline(n / 2, color=PRINTED, ls="--", label="printed bound n/2")
    axis.set(xscale="log", xlabel="step + 1", ylabel="stable rank of G", ylim=(0, n))
    label_lines(axis)
    caption = (
        f"Corollary 3.4 bounds the stable rank by n/2 = {n // 2} for large t. With {n - 1} orthonormal inputs in {n} "
        f"dimensions and B = 1 it stays at {ends[halves.EVEN]}. Generic inputs end at {ends[halves.SAME]} with one B "
        f"for all and at {ends[halves.OWN]} with a B for each input. In all three G has no part in the eigenspace "
        "that the proof divides by."
    )
    alt = f"Three curves over steps on a log scale and a dashed line at {n // 2}. {'; '.join(seen)}."
    return Drawing("half-rank", caption, figure, alt)


FORMS = (("factor", GREEN, "measured"), ("printed", PRINTED, "theorem"), ("proof", ORANGE, "proof"))
HAND_MADE = {"peak": "B and C\nvanish at W = 0", "constant C": "C constant"}


def draw_projection(run: Run) -> Drawing:
    """Theorem 3.8: growth of |R| per unit of rate, and a descent that does not end."""
    figure, (bars, path) = panels(2, width=4.8, height=3.0)
    rates = {name: _growth(run, name) for name in HAND_MADE}
    forms = (*FORMS, ("corrected", CORRECTED, "corrected"))
    for i, (form, colour, label) in enumerate(forms):
        heights = [rates[name][form] for name in HAND_MADE]
        drawn = bars.bar(np.arange(len(HAND_MADE)) + (i - 1.5) * 0.2, heights, 0.18, color=colour, label=label)
        bars.bar_label(drawn, fmt="%.2f", fontsize=7, padding=1)
    bars.axhline(0, lw=0.8, color="0.5")
    bars.set_xticks(range(len(HAND_MADE)), HAND_MADE.values())
    bars.set(xlabel="problem", ylabel="growth of |R| per step and rate", ylim=(-0.4, 1.6))
    bars.set_title("|R| grows where the theorem says it cannot")
    bars.legend(ncols=2, loc="upper right")
    size = run.value("projection/cycle/size")[:60]
    t = np.arange(len(size))
    path.plot(t, size, color=GREEN, label="measured |R|")
    path.plot(t, size[0] * 0.9**t, color=PRINTED, label="theorem")
    path.set(xlabel="step", ylabel="|R|", ylim=(0, None))
    path.set_title("A descent that does not end")
    label_lines(path)
    peak, still = rates["peak"], rates["constant C"]
    caption = (
        f"The bound of Theorem 3.8 is too low. Left: the largest growth of the projected gradient R in one step, over "
        f"the rate, in two problems with one number in place of matrices. Where B and C vanish at W = 0 it is "
        f"{number(peak['factor'])}; the theorem allows {number(peak['printed'])}, its proof {number(peak['proof'])}. "
        f"With a constant C it is {number(still['factor'])}, and both allow {number(still['printed'])}. Right: a "
        "gradient that meets the printed condition and does not vanish (rate 1, κ ≥ 0.1, L_A = L_C = 0)."
    )
    told = listing(f"{label} {number(peak[form])} and {number(still[form])}" for form, _, label in forms)
    alt = f"Left: bars for the two problems: {told}. Right: |R| {course(t, size)} while the theorem's curve falls to 0."
    return Drawing("fixed-projections", caption, figure, alt)


def _growth(run: Run, name: str) -> dict[str, float]:
    """(factor - 1) / rate at the lowest rate, measured and allowed."""
    rate = float(run.value(f"projection/{name}/rate")[0])
    forms = ("factor", "printed", "proof", "corrected")
    return {form: float((run.value(f"projection/{name}/{form}")[0] - 1) / rate) for form in forms}


def draw_memory(run: Run) -> Drawing:
    """Computed over printed, for the states and for the total."""
    read, unit = reading(run), UNITS[ODD]
    figure, axes = panels(2, width=4.6)
    shown = {
        "optimizer states": (read["galore"] / unit, three_quarters(run), read["printed states"]),
        "weights and states": (
            (read["weights"] + read["galore"]) / unit,
            read["nominal weights"] / unit + three_quarters(run),
            read["printed total"],
        ),
    }
    seen = []
    for axis, (title, (formula, guess, printed)) in zip(axes, shown.items(), strict=True):
        for i, (values, colour, label) in enumerate(
            ((formula, BLUE, "the paper's formula"), (guess, ORANGE, "with ¾ of LoRA's states"))
        ):
            axis.bar(np.arange(len(MODELS)) + (i - 0.5) * 0.36, values / printed, 0.33, color=colour, label=label)
        bound(axis, 1.0, "as printed")
        axis.set_xticks(range(len(MODELS)), MODELS)
        axis.set(xlabel="model", ylabel="computed / printed memory", ylim=(0, 1.9))
        axis.set_title(title)
        axis.legend(loc="upper right", ncols=1)
        seen.append(f"{title}: formula over print {_row(formula / printed)}, the other count {_row(guess / printed)}")
    over = read["galore"] / unit / read["printed states"] - 1
    caption = (
        f"The formula gives {number(over.min(), '%')} to {number(over.max(), '%')} more memory for optimizer states "
        "than Table 6 prints for GaLore. The printed numbers are, to their two digits, three quarters of LoRA's, "
        "embeddings included. Totals of Table 2 follow with parameters in round numbers. Unit: 1.024 · 10⁹ bytes, in "
        "which LoRA's column comes out."
    )
    return Drawing("memory", caption, figure, f"Two panels of bars for {listing(MODELS)}. {'. '.join(seen)}.")


def _row(values: Any) -> str:
    return listing(number(value) for value in values)
