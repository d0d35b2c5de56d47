"""Ablations of networks that diverged or did not learn: nothing is said of them, for or against a claim."""

from functools import partial

import numpy as np
import pytest
from records import HOLDS
from small_ablations import NONE, STUDIES, changed, patterns

from joma.studies import _ablation as ablation
from joma.studies.execute import draw, judge


@pytest.mark.parametrize("name", STUDIES)
def test_networks_that_learned_only_frequencies_hold_nothing(ablations, name):
    def no_context(entry, step, value):
        value = patterns()(entry, step, value)
        return value + 10 if entry.endswith("valid/loss") else value

    found = {finding.verdict for finding in judge(STUDIES[name], changed(ablations(name), no_context))}
    assert not HOLDS & found


def test_a_twin_that_does_not_learn_proves_nothing(ablations):
    def fails_to_learn(entry, step, value):
        value = patterns(no_residual=None)(entry, step, value)
        return value + 10 if entry == "no residual/valid/loss" else value

    run = changed(ablations("residual"), fails_to_learn)
    finding = judge(STUDIES["residual"], run)[0]
    assert finding.verdict == "only qualitative"
    assert "not below the" in finding.control


def test_a_variant_that_diverges_is_said_to(ablations):
    def diverges(count):
        def change(name, step, value):
            value = patterns()(name, step, value)
            if not name.startswith("none/") or step == 0:
                return value
            value = value.copy()
            if name == "none/diverged_at":
                value[:count] = 3
            elif value.dtype.kind == "f" and value.ndim:
                value[:count] = np.nan
            return value

        return change

    for count in (1, 3):
        run = changed(ablations("norm"), diverges(count))
        first, *others = judge(STUDIES["norm"], run)
        assert first.verdict == "not run"  # of three seeds none can be spared
        assert f"{count} of 3 runs of none diverged; run it with: a lower --rate than" in first.measured
        assert all(finding.verdict != "not run" for finding in others)
        assert len(draw(STUDIES["norm"], run)) == 2


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_of_networks_that_all_diverged_nothing_is_judged(ablations, name):
    def lost(series, step, value):
        return np.full_like(value, 3) if series.endswith("/diverged_at") else value

    assert {finding.verdict for finding in judge(STUDIES[name], changed(ablations(name), lost))} == {"not run"}


def test_a_linear_network_that_did_not_learn_refutes_nothing(ablations):
    def idle(series, step, value):
        value = patterns()(series, step, value)
        return value + 50.0 if series in ("identity/valid/loss", "ReLU/valid/loss") else value

    run = changed(ablations("nonlinearity"), idle)
    verdicts = {finding.claim.name: finding.verdict for finding in judge(STUDIES["nonlinearity"], run)}
    assert verdicts["linear-mlp-stays-sparse"] == NONE


def test_a_network_is_no_control_if_it_did_not_learn(ablations):
    def sparse(series, step, value, *, idle):
        return patterns(identity=0.0)(series, step, value) + (50.0 if series == idle else 0.0)

    for idle, allowed in (("", HOLDS), ("ReLU/valid/loss", {NONE})):
        run = changed(ablations("nonlinearity"), partial(sparse, idle=idle))
        finding = next(
            one for one in judge(STUDIES["nonlinearity"], run) if one.claim.name == "linear-mlp-stays-sparse"
        )
        assert finding.verdict in allowed, finding


def test_networks_are_compared_in_the_seeds_that_both_have(ablations):
    """One seed of each is lost, another one: of three pairs one is left."""

    def one_each(series, step, value):
        if series in ("dropout/diverged_at", "no dropout/diverged_at"):
            value = value.copy()
            value[int(series.startswith("no"))] = 3
        return value

    run = changed(ablations("dropout"), one_each)
    assert ablation.lost(run, "dropout", "no dropout") == "1 of 3 runs of dropout, 1 of 3 runs of no dropout diverged"


def test_sgd_has_rates_of_its_own(ablations):
    def lost(series, step, value):
        return np.full_like(value, 3) if series == "SGD/diverged_at" else value

    finding = judge(STUDIES["optimizer"], changed(ablations("optimizer"), lost))[0]
    assert "3 of 3 runs of SGD diverged; run it with: --sgd-rates without" in finding.measured
