"""Figures of `galore-theory`: bounds on the stable rank, Corollary 3.4, fixed projections, memory."""

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import bound
from joma.figures.labels import label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, CORRECTED, GREEN, ORANGE, PRINTED, PURPLE, panels
from joma.runs import Run
from joma.studies.galore.galore_theory.descent import EVEN, FAMILIES, HIGH, KINDS, LATE, OWN, SAME, SEVERAL
from joma.studies.galore.galore_theory.run import MODELS, ODD, columns, share_broken

SHOWN = 30  # steps of Lemma 3.3 in the figure


def draw(run: Run) -> list[Drawing]:
    """Stable ranks and bounds; the counterexample to Corollary 3.4; fixed projections; memory."""
    return [_draw_bounds(run), _draw_half(run), _draw_projection(run), _draw_memory(run)]


def _draw_bounds(run: Run) -> Drawing:
    figure, axes = panels(2, 2, width=4.3)
    t = run.value("lemma/t")[: SHOWN + 1]
    for axis, family in zip(axes, FAMILIES, strict=True):
        rank, printed, corrected = (
            run.value(f"lemma/{family}/{name}")[0, : SHOWN + 1] for name in ("rank", "printed", "corrected")
        )
        axis.plot(t, corrected, color=CORRECTED, ls="--", label="corrected bound")
        axis.plot(t, printed, color=PRINTED, label="printed bound")
        axis.plot(t, rank, color=GREEN, label="stable rank of G")
        axis.set(xlabel="step", ylabel="stable rank", ylim=(0.9, 1.1 * float(max(corrected.max(), rank.max()))))
        axis.set_title(family)
        label_lines(axis)
    broken = {family: number(share_broken(run, family), "%") for family in FAMILIES}
    caption = (
        f"The printed bound of Lemma 3.3 holds with one pair (B, C), a small rate and the right start. Of "
        f"random cases it fails in {broken[SEVERAL]} with several pairs, in {broken[HIGH]} with a high "
        f"rate and in {broken[LATE]} where G₀ is not the gradient at t₀. The corrected bound holds in all. "
        "Each panel has a 2 × 2 case made by hand."
    )
    return Drawing("stable-rank-bounds", caption, figure)


def _draw_half(run: Run) -> Drawing:
    n = int(run.config["inputs"])
    figure, (axis,) = panels(width=6.0, height=3.0)
    ends = {}
    for kind, colour in zip(KINDS, (GREEN, BLUE, PURPLE), strict=True):
        t, rank = run.value(f"half/{kind}/t"), run.value(f"half/{kind}/rank")
        axis.plot(t + 1, rank, color=colour, label=kind.replace(", ", ",\n"))
        ends[kind] = number(rank[-1])
    axis.axhline(n / 2, color=PRINTED, ls="--", label="printed bound n/2")
    axis.set(xscale="log", xlabel="step + 1", ylabel="stable rank of G", ylim=(0, n))
    label_lines(axis)
    caption = (
        f"Corollary 3.4 bounds the stable rank by n/2 = {n // 2} for large t. With {n - 1} orthonormal inputs in {n} "
        f"dimensions and B = 1 it stays at {ends[EVEN]}. Generic inputs end at {ends[SAME]} with one B "
        f"for all and at {ends[OWN]} with a B for each input. In all three G has no part in the eigenspace "
        "that the proof divides by."
    )
    return Drawing("half-rank", caption, figure)


def _draw_projection(run: Run) -> Drawing:
    figure, (bars, path) = panels(2, width=4.8, height=3.0)
    problems = {"peak": "B and C\nvanish at W = 0", "constant C": "C constant"}
    growth: dict[str, list[float]] = {}  # (factor - 1) / rate at the lowest rate, measured and allowed
    labels = {"factor": "measured", "printed": "theorem", "proof": "proof", "corrected": "corrected"}
    for i, (form, colour) in enumerate(zip(labels, (GREEN, PRINTED, ORANGE, CORRECTED), strict=True)):
        growth[form] = [
            float((run.value(f"projection/{name}/{form}")[0] - 1) / float(run.value(f"projection/{name}/rate")[0]))
            for name in problems
        ]
        drawn = bars.bar(
            np.arange(len(problems)) + (i - 1.5) * 0.2, growth[form], 0.18, color=colour, label=labels[form]
        )
        bars.bar_label(drawn, fmt="%.2f", fontsize=7, padding=1)
    bars.axhline(0, lw=0.8, color="0.5")
    bars.set_xticks(range(len(problems)), problems.values())
    bars.set(xlabel="problem", ylabel="growth of |R| per step and rate", ylim=(-0.4, 1.6))
    bars.set_title("|R| grows where the theorem says it cannot")
    bars.legend(ncols=2, loc="upper right")
    size = run.value("projection/cycle/size")[:60]
    t = np.arange(len(size))
    path.plot(t, size, color=GREEN, label="measured |R|")
    path.plot(t, size[0] * 0.9**t, color=PRINTED, label="theorem")
    path.set(xlabel="step", ylabel="|R|", ylim=(0, None), title="A descent that does not end")
    label_lines(path)
    peak, still = ({form: number(both[i]) for form, both in growth.items()} for i in (0, 1))
    caption = (
        f"The bound of Theorem 3.8 is too low. Left: the largest growth of the projected gradient R in one step, over "
        f"the rate, in two problems with one number in place of matrices. Where B and C vanish at W = 0 it is "
        f"{peak['factor']}; the theorem allows {peak['printed']}, its proof {peak['proof']}. "
        f"With a constant C it is {still['factor']}, and both allow {still['printed']}. Right: a "
        "gradient that meets the printed condition and does not vanish (rate 1, κ ≥ 0.1, L_A = L_C = 0)."
    )
    return Drawing("fixed-projections", caption, figure)


def _draw_memory(run: Run) -> Drawing:
    read = columns(run)
    figure, axes = panels(2, width=4.6)
    states, quarters = read["galore"] / ODD, read["three quarters"]
    total, guessed = (read["weights"] + read["galore"]) / ODD, read["nominal weights"] / ODD + quarters
    for axis, title, formula, guess, printed in (
        (axes[0], "optimizer states", states, quarters, read["printed states"]),
        (axes[1], "weights and states", total, guessed, read["printed total"]),
    ):
        x = np.arange(len(MODELS))
        axis.bar(x - 0.18, formula / printed, 0.33, color=BLUE, label="the paper's formula")
        axis.bar(x + 0.18, guess / printed, 0.33, color=ORANGE, label="with ¾ of LoRA's states")
        bound(axis, 1.0, "as printed")
        axis.set_xticks(x, MODELS)
        axis.set(xlabel="model", ylabel="computed / printed memory", ylim=(0, 1.9), title=title)
        axis.legend(loc="upper right", ncols=1)
    over = states / read["printed states"] - 1
    caption = (
        f"The formula gives {number(over.min(), '%')} to {number(over.max(), '%')} more memory for optimizer states "
        "than Table 6 prints for GaLore. The printed numbers are, to their two digits, three quarters of LoRA's, "
        "embeddings included. Totals of Table 2 follow with parameters in round numbers. Unit: 1.024 · 10⁹ bytes, in "
        "which LoRA's column comes out."
    )
    return Drawing("memory", caption, figure)
