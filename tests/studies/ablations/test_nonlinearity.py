"""ReLU, GELU, the identity, and no MLP."""

import pytest
from small_ablations import NONE, changed, idle, must_need, must_show, patterns, verdict

from joma.claims.execute import judge
from joma.studies.ablations import nonlinearity
from joma.studies.ablations._twins import shape_of


def test_what_nonlinearity_and_mlp_are_needed_for(ablations):
    run = ablations("nonlinearity")
    must_need(run, nonlinearity.REBOUND, "ReLU", "identity")
    must_need(run, nonlinearity.REBOUND_OF_MLP, "ReLU", "no_MLP")
    must_need(run, nonlinearity.DROP_OF_MLP, "ReLU", "no_MLP", part="drop")


def test_gelu_shows_the_pattern_or_not(ablations):
    must_show(ablations("nonlinearity"), nonlinearity.GELU, "GELU")


LINEAR = {
    "it drops and stays": ({"identity": 0.0}, "holds"),
    "its rebound is small, but nearer to one that matters": ({"identity": 0.035, "noise": 0.0005}, "only qualitative"),
    "it comes back in one layer": ({"identity": (0.0, 0.5)}, "mixed"),
    "it comes back": ({"identity": 0.5}, "fails"),
    "it never drops": ({"identity": None}, NONE),
    "ReLU stays down too": ({"identity": 0.0, "ReLU": 0.0}, NONE),
    "ReLU comes back in one layer": ({"identity": 0.0, "ReLU": (0.0, 0.5)}, NONE),
    "ReLU never drops": ({"identity": 0.0, "ReLU": None}, NONE),
    "seeds that differ too much": ({"identity": 0.0, "noise": 0.5}, "undecided"),
}


@pytest.mark.parametrize("case", LINEAR)
def test_a_linear_mlp_stays_sparse_or_not(ablations, case):
    back, expected = LINEAR[case]
    run = changed(ablations("nonlinearity"), patterns(**back))
    assert verdict(run, nonlinearity.LINEAR) == expected


def test_a_linear_mlp_stays_sparse_at_99_percent(ablations):
    """Between the two levels nothing is decided: 3 seeds, so that the interval of 99 % is 2.3 times as wide."""
    run = changed(ablations("nonlinearity"), patterns(identity=0.0))
    finding = next(one for one in judge(nonlinearity.STUDY, run) if one.claim is nonlinearity.LINEAR)
    layer = next(iter(finding.printed.effects.values()))
    rebounds = shape_of(run, "identity").rebound[0]
    assert layer.half_width == pytest.approx(9.924843 * rebounds.std(ddof=1) / 3**0.5, rel=1e-6)
    assert (layer.effect, layer.control_effect) == (pytest.approx(-rebounds.mean()), -0.05)


@pytest.mark.parametrize("network", ["identity", "ReLU"])
def test_a_network_that_did_not_learn_neither_proves_nor_refutes(ablations, network):
    run = changed(ablations("nonlinearity"), idle(network))
    assert verdict(run, nonlinearity.LINEAR) == "not run"
