"""Judges of the study of causes: they read ways, parts and twins from the record, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import above, at_most
from joma.claims.guards import hardest
from joma.claims.verdicts import by_effect, by_tests, not_run
from joma.measure.intervals import Comparison, compare
from joma.measure.rebound import FEWEST_SEEDS
from joma.recipes.language_curves import alive
from joma.recipes.language_findings import diverged, learned_nothing
from joma.runs import Run
from joma.studies.rebound._cause_claims import CLOSES, LOWER_MLP, NEEDS_EMBEDDINGS
from joma.studies.rebound._cause_networks import twin_name
from joma.studies.rebound._cause_record import (
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
    parts_of_way,
    rises,
    told_parts,
)

CLOSE = 1e-3
"""Of a layer's drop: what the parts of a way may miss of its change. Decided before any run. That the way back by
itself makes the claim "only qualitative" was added after the run at paper scale."""
WAYS: tuple[Way, Way] = ("down", "back")
AT_PAPER_SCALE = "joma verify rebound-cause --scale paper"
Numbers = dict[str, dict[str, float]]


def judge_own(claim: Claim, run: Run, cases: Sequence[Case]) -> Finding:
    """On the way back, the part of a layer's own queries and keys beside that of everything else."""
    expected = (
        f"from the valley to the end, own queries and keys raise the entropy by at least {MATTERS:g} nats more than "
        "all else does, beyond chance (95 %)"
    )
    if finding := _tells_nothing(claim, expected, run, cases):
        return finding
    found = {}
    for case in cases:
        split = {kind: case.mean(values) for kind, values in parts_of_way(run, case.base, "back").items()}
        found[case.name] = compare(split["own QK"], sum(split[kind] for kind in KINDS if kind != "own QK"))
    return by_effect(
        claim,
        found,
        expected=expected,
        what="own queries and keys; control: all else",
        details=_split(
            run, [*cases, *(one for one in altered_cases(run) if (one.layers == (0,)) == _are_first(cases))]
        ),
    )


def _are_first(cases: Sequence[Case]) -> bool:
    return all(case.layers == (0,) for case in cases)


def judge_lower_mlp(run: Run) -> Finding:
    """In higher layers, the MLPs below beside the group of weights that comes nearest to them."""
    expected = (
        f"from the valley to the end, MLPs below raise the entropy of higher layers by at least {MATTERS:g} nats more "
        "than any other group of weights does, beyond chance (95 %)"
    )
    cases = higher_layers(run)
    if finding := _tells_nothing(LOWER_MLP, expected, run, cases):
        return finding
    found: dict[str, Comparison] = {}
    for case in cases:
        split = {kind: case.mean(values) for kind, values in parts_of_way(run, case.base, "back").items()}
        beside = {kind: compare(split["lower MLP"], split[kind]) for kind in KINDS if kind != "lower MLP"}
        found |= {f"{case.name}, against {kind}": one for kind, one in hardest(LOWER_MLP, beside).items()}
    return by_effect(LOWER_MLP, found, expected=expected, what="MLPs below", details=_split(run, cases))


def judge_twin(claim: Claim, run: Run, frozen: str) -> Finding:
    """The rebound from the valley to the end beside that of twins with a part frozen, seed by seed."""
    expected = (
        f"entropy rises at least {MATTERS:g} nats less with {frozen} frozen from the valley on, beyond chance (95 %), "
        "and what is left is too small to matter"
    )
    cases = [case for case in _all_cases(run, claim) if _has_twin(run, case, frozen)]
    twins = [twin_name(case.base, frozen) for case in cases]
    if finding := _tells_nothing(claim, expected, run, cases, twins):
        return finding
    whole = [case.mean(rises(run, case.base)) for case in cases]
    left = [case.mean(rises(run, twin)) for case, twin in zip(cases, twins, strict=True)]
    names = [case.name for case in cases]
    return by_effect(
        claim,
        {name: compare(one, other) for name, one, other in zip(names, whole, left, strict=True)},
        expected=expected,
        what=f"rise; control: {frozen} frozen",
        size=[
            at_most(f"{name}, rise with {frozen} frozen", compare(rise).value, MATTERS, "nats")
            for name, rise in zip(names, left, strict=True)
        ],
        details=diverged(run, [*{case.base: None for case in cases}, *twins]),
    )


def _all_cases(run: Run, claim: Claim) -> list[Case]:
    return first_layers(run) + ([] if claim is NEEDS_EMBEDDINGS else higher_layers(run))


def _has_twin(run: Run, case: Case, frozen: str) -> bool:
    return f"{twin_name(case.base, frozen)}/valid/entropy" in run


def judge_closing(run: Run) -> Finding:
    """How far the parts of a way miss its change; the same without a layer's own queries and keys is the control."""
    variants = [*bases(run), *altered(run)]
    expected = f"what the parts of a way miss of its change is at most {CLOSE:g} of the layer's drop"
    if finding := _lost(CLOSES, expected, run, variants):
        return finding
    misses = {way: {variant: _miss(run, variant, way) for variant in variants} for way in WAYS}
    most = {way: max(misses[way].values()) for way in WAYS}
    without = min(_miss(run, variant, "down", leave_out="own QK") for variant in variants)
    blind = at_most("largest part of weights that cannot matter", _blind(run, variants), 0.0, "nats")
    return by_tests(
        CLOSES,
        expected=expected,
        printed=[at_most("largest miss, as a share of the drop", max(most.values()), CLOSE, "%"), blind],
        direction=[at_most("on the way back alone", most["back"], CLOSE, "%"), blind],
        controls=[above("way down without own queries and keys, smallest miss", without, CLOSE, "%")],
        details={f"largest miss on the way {way}, as a share of the drop": misses[way] for way in WAYS},
    )


def _miss(run: Run, variant: str, way: Way, leave_out: str = "") -> float:
    drop = np.abs(change_of_way(run, variant, "down"))
    return float(np.nanmax(_gap(run, variant, way, leave_out) / drop))


def _gap(run: Run, variant: str, way: Way, leave_out: str) -> np.ndarray:
    split = parts_of_way(run, variant, way)
    together = sum(values for kind, values in split.items() if kind != leave_out)
    return np.asarray(np.abs(together - change_of_way(run, variant, way)))


def _blind(run: Run, variants: Iterable[str]) -> float:
    return max(float(np.nanmax(np.abs(parts_of_way(run, name, way)[BLIND]))) for name in variants for way in WAYS)


def _split(run: Run, cases: Iterable[Case]) -> Numbers:
    """By case, what the way back came through."""
    return {f"{case.name}, way back": told_parts(run, case) for case in cases}


def _tells_nothing(
    claim: Claim, expected: str, run: Run, cases: Sequence[Case], twins: Sequence[str] = ()
) -> Finding | None:
    """The finding "not run" where no layer comes back, or networks diverged or learned nothing."""
    if finding := _lost(claim, expected, run, [*bases(run), *twins]):
        return finding
    if cases:
        return None
    told = {f"{name}, layer {n + 1}": compare(rise) for name in bases(run) for n, rise in enumerate(rises(run, name))}
    most = max(told, key=lambda name: told[name].value)
    reason = (
        f"no layer that the claim is about comes back by {MATTERS:g} nats beyond chance; the largest rebound, from the "
        f"valley to the end, is {told[most].value:.3f} nats ({told[most].low:.3f} to {told[most].high:.3f}), {most}"
    )
    return not_run(claim, expected, reason, AT_PAPER_SCALE)


def _lost(claim: Claim, expected: str, run: Run, variants: Sequence[str]) -> Finding | None:
    for name in variants:
        if (left := int(alive(run, name).sum())) < FEWEST_SEEDS:
            reason = f"too many runs of {name} diverged: {left} are left"
            return not_run(claim, expected, reason, f"joma run rebound-cause --rate {run.config['rate'] / 3:g}")
        if reason := learned_nothing(run, name):
            return not_run(claim, expected, reason, f"joma run rebound-cause --steps {2 * run.config['steps']}")
    return None
