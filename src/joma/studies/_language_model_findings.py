"""What studies of language models say and draw alike: which layers drop and rebound, what was not run, curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.measure.rebound import FEWEST_SEEDS, Rebound
from joma.runs import Run
from joma.studies._language_model_curves import alive, best_loss, layer_curves, learned_at, over_seeds, steps_of
from joma.studies._language_models import PAPER
from joma.studies._stored_curves import Distance
from joma.studies.contract import Claim, Finding
from joma.studies.drawing import depth_colours
from joma.studies.verdicts import by_effect, by_test

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AS_THE_PAPER = {
    **{name: value for name, value in PAPER.items() if name not in ("device", "precision", "every", "seed")},
    "heads": 1, "dropout": 0.2, "valid_streams": 10, "length": 35, "clip": 0.5, "renew_each_epoch": True, "decay": 1.0,
}  # fmt: skip
"""What must not be changed if results are to be compared with the paper's numbers."""


SIZES = (28_782, 2_049_990, 214_417)
"""Words of WikiText-2, tokens to train on, tokens to validate."""


def differs(config: Mapping[str, Any], **changes: Any) -> str:
    """In what a recorded config differs from the paper's recipe, in words; empty if in nothing.

    changes: what else is wanted, or wanted otherwise.
    """
    wanted = AS_THE_PAPER | changes
    found = [f"{name} is {config[name]}, not {value}" for name, value in wanted.items() if config[name] != value]
    return found[0] + (f" (and {len(found) - 1} more options differ)" if found[1:] else "") if found else ""


def not_wikitext_2(run: Run) -> str:
    """Why a run's text, in a folder of that name, is not WikiText-2; empty if it is."""
    words, train, valid = (int(size) for size in run.value("corpus/sizes"))
    if (words, train, valid) == SIZES:
        return ""
    wanted = f"{SIZES[0]} and {SIZES[1]} + {SIZES[2]}"
    return f"the text is not WikiText-2: it has {words} words and {train} + {valid} tokens, not {wanted}"


def not_run(claim: Claim, expected: str, reason: str, command: str) -> Finding:
    """A finding about what this run cannot tell."""
    return Finding(claim, expected, f"{reason}; run it with: {command}", None, "not run")


def layers_rebound(
    claim: Claim,
    found: Mapping[str, Rebound | None],
    which: Callable[[int], slice] = lambda layers: slice(None),
    beside: str = "",
    idle: Mapping[str, str] | None = None,
) -> Finding:
    """Do these layers drop and come back, by more than seeds differ by chance? All: holds; some: only qualitative.

    found: `layer_rebounds` of every variant, by its label; which: the layers that count, given their number; beside:
    what the layers that do not count are called, to say how many of them do so too; idle: the variants that
    do not count, by their label, and why (see `learned_nothing`).
    """
    idle = idle or {}
    said, chance, ratios, yes, left_out = [], [], [0.0], [], []
    for label, rebound in found.items():
        if rebound is None:
            said.append(f"{label}: fewer than {FEWEST_SEEDS} runs did not diverge")
            yes.append(np.array([False]))
            continue
        some = which(len(rebound.drop))
        drop, back, margin, drops, comes_back = (
            getattr(rebound, name)[some].numpy() for name in ("drop", "rebound", "rebound_margin", "drops", "rebounds")
        )
        yes.append(comes_back & (label not in idle))
        if label not in idle:
            ratios += [float(b / m) if m > 0 else 0.0 for b, m, d in zip(back, margin, drops, strict=True) if d]
        count = f"{label}: {comes_back.sum()} of {len(back)} layers come back"
        said.append(
            f"{count} (down {_listed(drop)}, back {_listed(back)} nats)"
            + (f", but {idle[label]}" if label in idle else "")
        )
        chance.append(f"{_listed(margin)} ({label})")
        rest = np.delete(rebound.rebounds.numpy(), np.arange(len(rebound.drop))[some])
        left_out.append(f"{rest.sum()} of {len(rest)} ({label})")
    return by_effect(
        claim,
        measured=max(ratios),
        control=1.0,
        margin=0.0,
        expected="each of these layers drops and comes back, by more than seeds differ by chance (99 %), and by 2 % of "
        "its drop",
        quantitative=bool(np.concatenate(yes).all()),
        shown="; ".join(said),
        control_shown="means over seeds are uncertain (99 %) by "
        + "; ".join(chance)
        + (f"; of the {beside} layers come back: {', '.join(left_out)}" if beside else ""),
    )


def _listed(values: np.ndarray) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def near_stored(claim: Claim, run: Run) -> Finding:
    """Are the recorded distances to the stored curves within their tolerances?"""
    reason, command = (
        differs(run.config) or not_wikitext_2(run),
        f"JOMA_DATA=FOLDER joma verify {run.study} --scale paper",
    )
    rows = [Distance(*row) for row in run.value("stored")] if "stored" in run else []
    if not reason and "stored" not in run:  # a finished run is taken as it is
        reason, command = "reference/wikitext2_runs.json was not in the folder of the data", f"{command} --fresh"
    elif not (reason or rows):
        reason = "reference/wikitext2_runs.json has no curves of these depths, rates and measuring points"
    if reason:
        return not_run(claim, "the stored curves of those runs", reason, command)
    losses = [row.loss for row in rows if np.isfinite(row.loss)]
    return by_test(
        claim,
        measured="RMS "
        + ", ".join(f"{row.rms:.3f} of {row.allowed:.2f} (L = {row.layers:.0f}, {row.rate:g})" for row in rows)
        + (f"; single runs {', '.join(f'{row.single:.3f}' for row in rows)}" if np.isfinite(rows[0].single) else "")
        + (f"; best losses off by {max(losses):.3f} at most" if losses else ""),
        expected="mean curves as near as 0.1 nats RMS, or as twice the noise of the stored seeds above L = 5 or 1e-3 "
        "(less, if the published curves without their rises are as near as that)",
        as_printed=all(row.rms <= row.allowed for row in rows),
        in_direction=all(row.rms < row.untrained / 2 for row in rows),
        tolerance=float(max(row.allowed for row in rows)),
        control="if entropy had stayed where it began: "
        + ", ".join(f"{row.untrained:.2f}" for row in rows)
        + "; the published curves without their rises: "
        + ", ".join(f"{row.one_way:.3f}" for row in rows),
    )


def diverged(run: Run, variants: list[str]) -> str:
    """A remark about the members whose loss was no longer finite, or nothing."""
    lost = {name: (~alive(run, name)).sum() for name in variants}
    parts = [f"{count} of {alive(run, name).size} runs of {name}" for name, count in lost.items() if count]
    return f"; diverged and left out: {', '.join(parts)}" if parts else ""


def learned_nothing(run: Run, variant: str) -> str:
    """Why a variant's attention shows nothing: no more was learned than the words' frequencies. Empty if more was."""
    if learned_at(run, variant)[0]:
        return ""
    loss, frequencies = over_seeds(best_loss(run, variant)[0]).mean, float(run.value(f"{variant}/loss by frequency"))
    return f"no more was learned than the words' frequencies (best loss {loss:.3f} against {frequencies:.3f})"


WITH_RANGE = 5
"""Up to so many layers the range of seeds is drawn around every curve; beyond, one would hide the other."""


def plot_layers(axis: Axes, run: Run, variant: str, measure: str = "valid/entropy", rate: int = 0) -> None:
    """Mean curves of all layers, dark to light from the input upwards, and up to `WITH_RANGE` of them their range.

    The labels are those a legend has room for: all, or the first, the middle and the last.
    """
    steps, curves = steps_of(run, variant), layer_curves(run, variant, measure, rate)
    if not curves.shape[1]:
        axis.text(0.5, 0.5, "diverged", ha="center", transform=axis.transAxes)
        return
    few = len(curves) <= WITH_RANGE
    for layer, (curve, colour) in enumerate(zip(curves, depth_colours(len(curves)), strict=True), start=1):
        named = few or layer in (1, len(curves) // 2, len(curves))
        axis.plot(
            steps, curve.mean(0), color=colour, lw=None if few else 1.2, label=f"layer {layer}" if named else None
        )
        if few:
            axis.fill_between(steps, curve.min(0), curve.max(0), color=colour, alpha=0.18, lw=0)
