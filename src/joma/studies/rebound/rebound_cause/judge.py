"""Judges of the study of causes: they read ways, parts and twins from the record, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import above, at_most
from joma.claims.guards import at_paper_scale, hardest
from joma.claims.verdicts import by_effect, by_tests, not_run
from joma.measure.intervals import Comparison, compare
from joma.measure.rebound import FEWEST_SEEDS
from joma.recipes.language.curves import alive, diverged, learned_nothing
from joma.runs import Run
from joma.studies.rebound.rebound_cause.record import (
    BLIND,
    KINDS,
    MATTERS,
    Case,
    Way,
    altered,
    altered_cases,
    bases,
    change_of_way,
    first_layers,
    higher_layers,
    mean_parts,
    parts_of_way,
    rises,
)
from joma.studies.rebound.rebound_cause.run import twin_name

CLOSE = 1e-3
"""Of a layer's drop: what the parts of a way may miss of its change. Decided before any run. That the way back by
itself makes the claim "only qualitative" was added after the run at paper scale."""
WAYS: tuple[Way, Way] = ("down", "back")


def judge_own(claim: Claim, cases_of: Callable[[Run], list[Case]], run: Run) -> Finding:
    """On the way back, the part of a layer's own queries and keys beside that of everything else."""
    expected = (
        f"from the valley to the end, own queries and keys raise the entropy by at least {MATTERS:g} nats more than "
        "all else does, beyond chance (95 %)"
    )
    cases = cases_of(run)
    if finding := _tells_nothing(claim, expected, run, cases):
        return finding
    found = {}
    for case in cases:
        split = {kind: case.mean(values) for kind, values in parts_of_way(run, case.base, "back").items()}
        found[case.name] = compare(split["own QK"], sum(split[kind] for kind in KINDS if kind != "own QK"))
    first = all(case.layers == (0,) for case in cases)
    cases += [case for case in altered_cases(run) if (case.layers == (0,)) == first]
    what = "own queries and keys; control: all else"
    return by_effect(claim, found, expected=expected, what=what, details=_split(run, cases))


def judge_lower_mlp(claim: Claim, run: Run) -> Finding:
    """In higher layers, the MLPs below beside the group of weights that comes nearest to them."""
    expected = (
        f"from the valley to the end, MLPs below raise the entropy of higher layers by at least {MATTERS:g} nats more "
        "than any other group of weights does, beyond chance (95 %)"
    )
    cases = higher_layers(run)
    if finding := _tells_nothing(claim, expected, run, cases):
        return finding
    found: dict[str, Comparison] = {}
    for case in cases:
        split = {kind: case.mean(values) for kind, values in parts_of_way(run, case.base, "back").items()}
        others = {kind: compare(split["lower MLP"], split[kind]) for kind in KINDS if kind != "lower MLP"}
        found |= {f"{case.name}, against {kind}": one for kind, one in hardest(claim, others).items()}
    return by_effect(claim, found, expected=expected, what="MLPs below", details=_split(run, cases))


def judge_twin(claim: Claim, frozen: str, run: Run) -> Finding:
    """The rebound from the valley to the end beside that of twins with a part frozen, seed by seed."""
    expected = (
        f"entropy rises at least {MATTERS:g} nats less with {frozen} frozen from the valley on, beyond chance (95 %), "
        "and what is left is too small to matter"
    )
    cases = first_layers(run) + (higher_layers(run) if frozen != "embeddings" else [])
    cases = [case for case in cases if f"{twin_name(case.base, frozen)}/valid/entropy" in run]
    twins = [twin_name(case.base, frozen) for case in cases]
    if finding := _tells_nothing(claim, expected, run, cases, twins):
        return finding
    left = {case.name: case.mean(rises(run, twin)) for case, twin in zip(cases, twins, strict=True)}
    return by_effect(
        claim,
        {case.name: compare(case.mean(rises(run, case.base)), left[case.name]) for case in cases},
        expected=expected,
        what=f"rise; control: {frozen} frozen",
        size=[
            at_most(f"{name}, rise with {frozen} frozen", compare(rise).value, MATTERS, "nats")
            for name, rise in left.items()
        ],
        details=diverged(run, [*{case.base: None for case in cases}, *twins]),
    )


def judge_closing(claim: Claim, run: Run) -> Finding:
    """How far the parts of a way miss its change; the same without a layer's own queries and keys is the control."""
    variants = [*bases(run), *altered(run)]
    expected = f"what the parts of a way miss of its change is at most {CLOSE:g} of the layer's drop"
    if finding := _lost(claim, expected, run, variants):
        return finding

    def miss(variant: str, way: Way, leave_out: str = "") -> float:
        parts = sum(values for kind, values in parts_of_way(run, variant, way).items() if kind != leave_out)
        gap = np.abs(parts - change_of_way(run, variant, way))
        return float(np.nanmax(gap / np.abs(change_of_way(run, variant, "down"))))

    misses = {way: {variant: miss(variant, way) for variant in variants} for way in WAYS}
    most = {way: max(misses[way].values()) for way in WAYS}
    without = min(miss(variant, "down", leave_out="own QK") for variant in variants)
    unseen = [np.nanmax(np.abs(parts_of_way(run, name, way)[BLIND])) for name in variants for way in WAYS]
    blind = at_most("largest part of weights that cannot matter", float(max(unseen)), 0.0, "nats")
    return by_tests(
        claim,
        expected=expected,
        printed=[at_most("largest miss, as a share of the drop", max(most.values()), CLOSE, "%"), blind],
        direction=[at_most("on the way back alone", most["back"], CLOSE, "%"), blind],
        controls=[above("way down without own queries and keys, smallest miss", without, CLOSE, "%")],
        details={f"largest miss on the way {way}, as a share of the drop": misses[way] for way in WAYS},
    )


def _split(run: Run, cases: Iterable[Case]) -> dict[str, dict[str, float]]:
    return {f"{case.name}, way back": mean_parts(run, case) for case in cases}


def _tells_nothing(
    claim: Claim, expected: str, run: Run, cases: Sequence[Case], twins: Sequence[str] = ()
) -> Finding | None:
    """The finding "not run" where no layer comes back, or networks diverged or learned nothing."""
    if finding := _lost(claim, expected, run, [*bases(run), *twins]):
        return finding
    if cases:
        return None
    found = {f"{name}, layer {n + 1}": compare(rise) for name in bases(run) for n, rise in enumerate(rises(run, name))}
    most = max(found, key=lambda name: found[name].value)
    reason = (
        f"no layer that the claim is about comes back by {MATTERS:g} nats beyond chance; the largest rebound, from the "
        f"valley to the end, is {found[most].value:.3f} nats ({found[most].low:.3f} to {found[most].high:.3f}), {most}"
    )
    return not_run(claim, expected, reason, at_paper_scale("rebound-cause"))


def _lost(claim: Claim, expected: str, run: Run, variants: Sequence[str]) -> Finding | None:
    for name in variants:
        if (left := int(alive(run, name).sum())) < FEWEST_SEEDS:
            reason = f"too many runs of {name} diverged: {left} are left"
            return not_run(claim, expected, reason, f"joma run rebound-cause --rate {run.config['rate'] / 3:g}")
        if reason := learned_nothing(run, name):
            return not_run(claim, expected, reason, f"joma run rebound-cause --steps {2 * run.config['steps']}")
    return None
