"""The study of Theorem 1 in real training: its verdicts, and that each follows the numbers of claim and controls."""

import numpy as np
import pytest
from every_study import put, test_a_spoiled_series_changes_its_verdict  # noqa: F401
from records import altered, changed, found, verdicts

from joma.runs import Run
from joma.studies.invariant.thm1_sgd import KINDS, STUDY

HOLDS, FIXED, FAILS, BLIND, OPEN = "holds", "holds as corrected", "fails", "not above its control", "undecided"
NAN = put((-1, 0), np.nan)  # one network at the smallest rate


def same_at_all_rates(drift):
    return np.broadcast_to(drift[:1], drift.shape)


def as_the_rate(run, name):
    """A drift that vanishes with the rate."""
    return run.value("rates")[:, None, None] * run.value(f"{name}/moved")


def with_adam(run, shares, *, order=1.0):
    """A copy in which the drift of Adam is a share of the movement, one per network at the smallest rate."""
    powers = (run.value("rates") / run.value("rates")[-1]) ** order

    def change(name, step, value):
        if name.endswith("Adam/drift"):
            moved = run.value(name.replace("drift", "moved"))
            return (powers[:, None] * np.asarray(shares))[..., None] * moved
        return value

    return changed(run, change)


def test_verdicts(run):
    seen = dict(verdicts(STUDY, run))
    assert seen.pop("adam") in (FAILS, BLIND)
    assert seen == {
        "sgd-identity-exp": FIXED,
        "sgd-identity-linear": FIXED,
        "sgd-limit": HOLDS,
        "sgd-minibatch": HOLDS,
        "sgd-momentum": FIXED,
        "weight-decay-exp": FIXED,
        "weight-decay-linear": FIXED,
    }


SPOILED = [
    ("exp/full batch/predicted", lambda x: x + 1e-11, "sgd-identity-exp", FAILS),
    ("exp/minibatch/predicted", NAN, "sgd-identity-exp", "undecided"),
    ("linear/minibatch/drift", lambda x: x * 1.001, "sgd-identity-linear", FAILS),
    ("linear/full batch/drift", NAN, "sgd-identity-linear", "undecided"),
    ("exp/full batch/drift", same_at_all_rates, "sgd-limit", FAILS),
    ("linear/full batch/drift", same_at_all_rates, "sgd-limit", FAILS),
    ("linear/full batch/drift", NAN, "sgd-limit", "undecided"),
    ("linear/minibatch/drift", same_at_all_rates, "sgd-minibatch", FAILS),
    ("exp/minibatch/drift", NAN, "sgd-minibatch", "undecided"),
    ("exp/momentum/drift", lambda x: 1.2 * x, "sgd-momentum", FAILS),
    ("linear/momentum/drift", lambda x: 0.8 * x, "sgd-momentum", FAILS),
    ("linear/momentum/drift", NAN, "sgd-momentum", "undecided"),
    ("exp/weight decay/predicted", lambda x: x + 1e-11, "weight-decay-exp", FAILS),
    ("linear/weight decay/predicted", lambda x: x + 1e-11, "weight-decay-linear", FAILS),
    ("linear/weight decay/drift", lambda x: 1e-14 * x, "weight-decay-linear", HOLDS),
]


@pytest.mark.parametrize(
    "claim", ["sgd-identity-exp", "sgd-identity-linear", "weight-decay-exp", "weight-decay-linear"]
)
def test_residuals_are_those_of_the_record(run, claim):
    kind = claim.rpartition("-")[2]
    recipe = "weight decay" if "decay" in claim else "minibatch"
    copy = altered(run, f"{kind}/{recipe}/predicted", lambda x: x + 0.25)
    assert found(STUDY, copy, claim).residuals["corrected"] == pytest.approx(0.25, rel=1e-9)
    seen = found(STUDY, altered(run, f"{kind}/{recipe}/drift", lambda x: x + 7), claim).residuals["printed"]
    assert seen == pytest.approx(np.abs(run.value(f"{kind}/{recipe}/drift") + 7).max(), rel=1e-12)


def test_a_printed_law_that_were_true_would_be_recognised(run):
    seen = verdicts(STUDY, changed(run, lambda n, step, x: 1e-16 * x if n.endswith("drift") else x))
    assert {seen[name] for name in seen if name.startswith(("sgd-identity", "weight-decay", "sgd-momentum"))} == {HOLDS}


@pytest.mark.parametrize(("claim", "recipe"), [("sgd-limit", "full batch"), ("sgd-minibatch", "minibatch")])
@pytest.mark.parametrize("kind", KINDS)
def test_an_order_that_weight_decay_has_too_shows_nothing(run, claim, recipe, kind):
    name = f"{kind}/weight decay"
    assert found(STUDY, altered(run, f"{name}/drift", lambda _: as_the_rate(run, name)), claim).verdict == BLIND


@pytest.mark.parametrize("kind", KINDS)
def test_sums_that_fit_other_steps_as_well_show_nothing(run, kind):
    def alike(name, step, value):
        return run.value(name.replace("minibatch", "full batch").replace("weight decay", "full batch"))

    seen = verdicts(STUDY, changed(run, alike))
    assert seen[f"sgd-identity-{kind}"] == BLIND
    assert seen[f"weight-decay-{kind}"] == BLIND


def test_momentum_that_plain_sgd_passes_for_shows_nothing(run, tmp_path):
    copy = Run.create(tmp_path / "run", study=run.study, config={**run.config, "momentum": 0.0}, version=run.version)
    with copy:
        copy.record(0, {name: run.value(name.replace("momentum", "full batch")) for name in run.names()})
        assert found(STUDY, copy, "sgd-momentum").verdict == BLIND


EVEN = np.tile([-1.0, 1.0], 6)


@pytest.mark.parametrize(
    ("shares", "order", "verdict"),
    [
        (0.05 + 0.01 * EVEN, 1.0, HOLDS),
        (0.30 + 0.01 * EVEN, 0.0, "only qualitative"),  # explains most, at no better rate
        (0.80 + 0.01 * EVEN, 1.0, "only qualitative"),  # explains less than half
        (1.00 + 0.10 * EVEN, 1.0, BLIND),
        (1.00 + 0.90 * EVEN, 1.0, OPEN),
        (1.70 + 0.10 * EVEN, 1.0, FAILS),
        (np.full(12, np.nan), 1.0, "not run"),
        (np.where(np.arange(12) == 3, np.nan, 0.05 + 0.01 * EVEN), 1.0, OPEN),  # a network that diverged
    ],
)
def test_adam_is_judged_by_what_the_relation_explains(run, shares, order, verdict):
    assert found(STUDY, with_adam(run, shares, order=order), "adam").verdict == verdict


@pytest.mark.parametrize("kind", KINDS)
def test_adam_must_pass_under_both_kinds_of_attention(run, kind):
    both = with_adam(run, 0.05 + 0.01 * EVEN)
    name = f"{kind}/Adam"
    copy = altered(both, f"{name}/drift", lambda _: 2 * run.value(f"{name}/moved"))
    assert found(STUDY, copy, "adam").verdict == "mixed"


def test_adam_is_shown_over_networks(run):
    shares = 1.7 + 0.1 * EVEN
    main = found(STUDY, with_adam(run, shares), "adam").main
    assert (main.seeds, main.control_effect) == (12, 0.0)
    assert main.effect == pytest.approx(-0.7)
    assert main.high - main.low == pytest.approx(2 * 2.200985 * shares.std(ddof=1) / 12**0.5)
