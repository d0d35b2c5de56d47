"""What Figure 6 says of layers, judged on variants that differ in depth, whatever their networks read."""

from collections.abc import Mapping
from math import nan

import numpy as np

from joma.claims.contract import Claim, Finding, NotRun
from joma.claims.guards import still_falls
from joma.claims.verdicts import above, by_effect
from joma.measure.intervals import compare
from joma.recipes.language import curves
from joma.runs import Run

Depths = Mapping[int, str]  # the name of a variant by its number of layers
FLAT = 0.05  # nats of entropy: what curves of single runs of one recipe were seen to differ by (RMS)
SHARE = 0.02  # of its drop: what comes back must be more than that
NOTHING = compare([])  # the comparison of a depth that tells nothing


def tells(run: Run, name: str) -> bool:
    """Whether the networks of a depth learned more than the words' frequencies; not if all diverged."""
    return bool(curves.learned_at(run, name)[0])


def must_learn(run: Run, variants: Depths, *, fewest: int = 1) -> None:
    """Raise `NotRun` where fewer depths than `fewest` have networks that learned anything."""
    if len(variants) < fewest:
        why = f"the record has too few depths for this claim: {run.config['layers']} layers"
        raise NotRun(why, f"joma verify {run.study}")
    silent = [name for name in variants.values() if not tells(run, name)]
    if len(variants) - len(silent) >= fewest:
        return
    lost = [name for name in silent if not curves.alive(run, name).any()]
    reasons = [f"all runs of {', '.join(lost)} diverged"] if lost else []
    reasons += [curves.learned_nothing(run, name) for name in silent if name not in lost]
    remedy = {"rate": run.config["rate"] / 3} if lost else {"steps": 2 * run.config["steps"]}
    raise NotRun("; ".join(reasons), **remedy)


def judge_rebounds(run: Run, claim: Claim, variants: Depths) -> Finding:
    """Every layer of the top half must drop and come back, and the only one; details: what the bottom half does."""
    must_learn(run, variants)
    cases, details, shares, lower, falling = {}, {}, [], [], 0
    for layers, name in variants.items():
        unseen = still_falls(curves.layer_curves(run, name))
        for layer, pair in enumerate(zip(*curves.drops_and_rebounds(run, name), strict=True)):
            down, up = (compare(part, 0.0, level=0.99) for part in pair)
            falls = bool(unseen[layer])  # it may come back later, or never
            # A layer that does not drop has nothing to come back from: the one with the lower interval decides.
            found = min(down, up, key=lambda one: one.low) if tells(run, name) and not falls else NOTHING
            if layer < layers // 2:
                lower.append(found.low > 0)
                continue
            falling += falls
            drop, back = map(curves.mean_over_seeds, pair)
            cases[case := f"L = {layers}, layer {layer + 1}"] = found
            details[case] = {"drop": drop, "rebound": back}
            shares.append(back / drop if drop > 0 else nan)
    if lower:
        details["lower layers"] = {"that drop and come back": float(sum(lower)), "of": float(len(lower))}
    if falling == len(cases):
        reason = "entropy still falls at the end of training, with every seed: whether it comes back later is not seen"
        raise NotRun(reason, steps=2 * run.config["steps"])
    if falling:
        details["still falling at the end, so they do not tell"] = {"layers": float(falling)}
    return by_effect(
        claim,
        cases,
        what="rebound after a drop",
        size=[above("smallest share of a drop that comes back", float(np.min(shares)), SHARE, "%")],
        details=details | curves.diverged(run, variants.values()),
    )


def judge_halves(run: Run, claim: Claim, variants: Depths) -> Finding:
    """The top half of the layers must end above the bottom half, by more than before training."""
    must_learn(run, variants)
    cases, ends = {}, []
    for layers, name in variants.items():
        entropy = curves.layer_curves(run, name)  # (layers, seeds, points)
        gap = entropy[layers // 2 :].mean(0) - entropy[: layers // 2].mean(0)
        gap = np.pad(gap, ((0, int((~curves.alive(run, name)[0]).sum())), (0, 0)), constant_values=nan)  # who diverged
        cases[f"L = {layers}"] = compare(gap[:, -1], gap[:, 0]) if tells(run, name) else NOTHING
        ends.append(compare(gap[:, -1]).low if tells(run, name) else nan)
    return by_effect(
        claim,
        cases,
        what="entropy of the top half minus the bottom half, at the end",
        size=[above("smallest lower end of the gap, control not subtracted", float(np.min(ends)), 0.0, "nats")],
        details=curves.diverged(run, variants.values()),
    )
