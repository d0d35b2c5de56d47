"""ReLU, GELU, the identity, and no MLP."""

import numpy as np
import pytest
from records import found
from small_ablations import NONE, changed, curves, idle, must_need, must_show, patterns, record, verdict

from joma.studies.ablations import nonlinearity
from joma.studies.ablations._twins import shape_of


def test_what_nonlinearity_and_mlp_are_needed_for(small_run):
    run = small_run("nonlinearity")
    must_need(run, nonlinearity.REBOUND, "ReLU", "identity")
    must_need(run, nonlinearity.REBOUND_OF_MLP, "ReLU", "no_MLP")
    must_need(run, nonlinearity.DROP_OF_MLP, "ReLU", "no_MLP", part="drop")


def test_gelu_shows_the_pattern_or_not(small_run):
    must_show(small_run("nonlinearity"), nonlinearity.GELU, "GELU")


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
def test_a_linear_mlp_stays_sparse_or_not(small_run, case):
    back, expected = LINEAR[case]
    run = changed(small_run("nonlinearity"), patterns(**back))
    assert verdict(run, nonlinearity.LINEAR) == expected


def test_a_linear_mlp_stays_sparse_at_99_percent(tmp_path):
    """Over six seeds: the interval of 99 % is 1.6 times as wide as that of 95 %."""
    made = {name: curves(0.5, seeds=6, draw=draw) for draw, name in enumerate(("ReLU", "GELU", "no MLP"))}
    run = record(tmp_path / "run", made | {"identity": curves(0.0, seeds=6, draw=3)}, study=nonlinearity.STUDY)
    finding = found(nonlinearity.STUDY, run, nonlinearity.LINEAR)
    layer = next(iter(finding.printed.effects.values()))
    rebounds = shape_of(run, "identity").rebound[0]
    assert layer.half_width == pytest.approx(4.032143 * rebounds.std(ddof=1) / 6**0.5, rel=1e-6)
    assert (layer.effect, layer.control_effect) == (pytest.approx(-rebounds.mean()), -0.05)
    needed = [*shape_of(run, "identity").drop, *shape_of(run, "ReLU").rebound]
    assert [test.value for test in finding.printed.controls] == pytest.approx([each.mean() for each in needed])
    assert {test.bound for test in finding.printed.controls} == {0.05}


@pytest.mark.parametrize("part", ["drop", "back"])
def test_what_seeds_leave_open_at_99_percent_leaves_the_linear_mlp_open(tmp_path, part):
    """Three seeds of six at 0.086, three at 0.486: 0 is 3.2 errors away, 95 % reach 2.6 of them and 99 % reach 4.0."""
    apart = {part: np.repeat([[0.086], [0.486]], 3, axis=0)}
    made = {name: curves(seeds=6, draw=draw) for draw, name in enumerate(("ReLU", "GELU", "no MLP"))}
    made["identity"] = curves(**{"back": 0.0, "seeds": 6, "draw": 3} | (apart if part == "drop" else {}))
    made |= {"ReLU": curves(**apart, seeds=6)} if part == "back" else {}
    finding = found(nonlinearity.STUDY, record(tmp_path / "run", made, study=nonlinearity.STUDY), nonlinearity.LINEAR)
    assert finding.verdict == "undecided"
    open_ones = {test.what.split(": ")[1] for test in finding.printed.controls if np.isnan(test.value)}
    assert open_ones == {"drop with identity" if part == "drop" else "rebound with ReLU"}


@pytest.mark.parametrize("network", ["identity", "ReLU"])
def test_a_network_that_did_not_learn_neither_proves_nor_refutes(small_run, network):
    run = changed(small_run("nonlinearity"), idle(network))
    assert verdict(run, nonlinearity.LINEAR) == "not run"
