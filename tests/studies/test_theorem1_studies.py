"""The studies of the block and of Theorem 1: their verdicts, and that the verdicts follow the numbers."""

from dataclasses import replace

import numpy as np
import pytest
from records import carried_out

from joma.runs import Run
from joma.studies import block_equations, first_integral, learning_rates, several_queries
from joma.studies.contract import silent
from joma.studies.drawing import house_style
from joma.studies.execute import judge, plain_config

SMALL = {"tokens": 3, "samples": 6, "steps": 5, "horizon": 0.3}
FIRST = replace(first_integral.STUDY.quick, **SMALL, nodes=(1, 2), kink_steps=(10, 40))
STUDIES = {
    "block": (block_equations.STUDY, replace(block_equations.STUDY.quick, **SMALL, nodes=2)),
    "thm1": (first_integral.STUDY, FIRST),
    "thm1-rates": (
        learning_rates.STUDY,
        replace(learning_rates.STUDY.quick, **SMALL, nodes=2, rates=((1.0, 1.0), (1.0, 0.5), (0.5, 1.0))),
    ),
    "thm1-queries": (several_queries.STUDY, replace(several_queries.STUDY.quick, **SMALL, nodes=2, queries=2)),
}
FIXED = "holds as corrected"
VERDICTS = {
    "block": {
        "sequence-as-frequencies": "holds",
        "gradient-ascent": "holds",
        "back-propagation": "holds",
        "projected-velocity": "holds",
        "weight-expansion": "holds",
        "implicit-bias": FIXED,
        "superposition-sign": FIXED,
        "saliency": "holds",
    },
    "thm1": {
        "exp-invariant": "holds",
        "linear-invariant": "holds",
        "pull-on-logits": "holds",
        "any-sigma": "holds",
        "relu": "holds",
        "stationary-gradient": FIXED,
        "any-data": "holds",
        "residual": "holds",
        "zero-start-exp": "holds",
        "zero-start-linear": FIXED,
    },
    "thm1-rates": {
        "any-rates-exp": FIXED,
        "any-rates-linear": FIXED,
        "equal-rates": "holds",
        "temperature": FIXED,
        "rate-schedules": FIXED,
    },
    "thm1-queries": {
        "every-query-exp": FIXED,
        "every-query-linear": FIXED,
        "average-by-query": FIXED,
        "pull-by-query": FIXED,
    },
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {name: carried_out(*study, folder / name) for name, study in STUDIES.items()}


def verdicts(run):
    return {finding.claim.name: finding.verdict for finding in judge(STUDIES[run.study][0], run)}


def altered(run, path, changes):
    """A copy of the run with some of its series changed."""
    copy = Run.create(path, study=run.study, config=run.config, version=run.version)
    for name in run.names():
        copy.append(name, 0, changes.get(name, lambda value: value)(run.value(name).copy()))
    return copy


def nudged(value):
    """The last moment, or the last row, is off by a hundredth."""
    value[-1] += 0.01
    return value


def nudged_logits(path):
    """Of a path that holds z in its first column, the last z is off by a hundredth."""
    path[-1, ..., 0] += 0.01
    return path


def still(value):
    return np.broadcast_to(value[:1], value.shape).copy()


@pytest.mark.parametrize("name", STUDIES)
def test_verdicts(runs, name):
    assert verdicts(runs[name]) == VERDICTS[name]


@pytest.mark.parametrize(
    ("study", "series", "change", "claims"),
    [
        ("block", "sequences", nudged, {"sequence-as-frequencies": "fails"}),
        ("block", "ascent", nudged, {"gradient-ascent": "fails"}),
        ("block", "loss", nudged, {"back-propagation": "fails"}),
        ("block", "projected", nudged, {"projected-velocity": "fails"}),
        ("block", "one query/w", nudged, {"weight-expansion": "fails"}),
        ("block", "one query/v b", nudged, {"implicit-bias": "fails"}),
        ("block", "two queries/v", nudged, {"superposition-sign": "fails"}),
        ("block", "two queries/xi", np.negative, {"superposition-sign": "holds"}),
        ("block", "saliency", nudged, {"saliency": "fails"}),
        (
            "thm1",
            "exp/1 nodes",
            nudged_logits,
            {"exp-invariant": "fails", "stationary-gradient": "fails", "residual": "fails"},
        ),
        ("thm1", "linear/1 nodes", nudged_logits, {"linear-invariant": "fails", "zero-start-linear": FIXED}),
        ("thm1", "linear/2 nodes", nudged_logits, {"zero-start-linear": "holds"}),
        ("thm1", "exp/2 nodes", nudged_logits, {"zero-start-exp": "fails"}),
        ("thm1", "exp/2 nodes", still, {"zero-start-exp": "fails", "exp-invariant": "holds"}),
        ("thm1", "pull", nudged, {"pull-on-logits": "fails"}),
        ("thm1", "sigma", nudged_logits, {"any-sigma": "fails"}),
        ("thm1", "ReLU/40 steps", nudged_logits, {"relu": "fails"}),
        ("thm1", "saliency", still, {"stationary-gradient": "holds"}),
        ("thm1", "exp/other data", nudged_logits, {"any-data": "fails"}),
        ("thm1", "linear/no residual", nudged_logits, {"residual": "fails", "linear-invariant": "holds"}),
        ("thm1-rates", "exp/rates 1, 0.5/temperature 1", nudged_logits, {"any-rates-exp": "fails"}),
        ("thm1-rates", "linear/rates 0.5, 1/temperature 1", nudged_logits, {"any-rates-linear": "fails"}),
        ("thm1-rates", "exp/rates 1, 1/temperature 1", nudged_logits, {"equal-rates": "fails"}),
        ("thm1-rates", "exp/rates 1, 1/temperature 0.5", nudged_logits, {"temperature": "fails"}),
        ("thm1-rates", "schedule", nudged_logits, {"rate-schedules": "fails"}),
        ("thm1-queries", "exp/mixed loss/2 queries/z", nudged, {"every-query-exp": "fails", "pull-by-query": "fails"}),
        ("thm1-queries", "linear/mixed loss/2 queries/z", nudged, {"every-query-linear": "fails"}),
        ("thm1-queries", "exp/average by query/2 queries/v", nudged, {"average-by-query": "fails"}),
        ("thm1-queries", "linear/average by query/2 queries/path", nudged, {"pull-by-query": "fails"}),
    ],
)
def test_a_wrong_number_changes_the_verdict(runs, tmp_path, study, series, change, claims):
    with altered(runs[study], tmp_path / "altered", {series: change}) as copy:
        found = verdicts(copy)
    assert {name: found[name] for name in claims} == claims


def test_every_finding_shows_its_residuals_and_every_printed_form_that_is_wrong_is_measured(runs):
    for run in runs.values():
        for finding in judge(STUDIES[run.study][0], run):
            if "printed" in finding.residuals and finding.verdict == FIXED:
                assert finding.residuals["printed"] > 1e3 * finding.tolerance
                assert finding.residuals["corrected"] <= finding.tolerance
    (still,) = (f for f in judge(first_integral.STUDY, runs["thm1"]) if f.claim.name == "zero-start-linear")
    assert still.residuals == {"printed": 1, "corrected": 0}


@pytest.mark.parametrize("name", STUDIES)
def test_an_interrupted_run_ends_with_the_same_numbers(runs, name, tmp_path):
    study, config = STUDIES[name]
    first = runs[name].names()[:-2]
    half = Run.create(tmp_path / "half", study=study.name, config=plain_config(config), version=study.version)
    for series in first:
        half.append(series, 0, runs[name].value(series))
    study.run(config, half, silent)
    assert half.names() == runs[name].names()
    for series in half.names():
        np.testing.assert_array_equal(half.value(series), runs[name].value(series))


@pytest.mark.parametrize("name", STUDIES)
def test_figures(runs, name):
    with house_style():
        drawings = STUDIES[name][0].draw(runs[name])
    assert drawings
    for drawing in drawings:
        assert drawing.caption
        assert all(axis.get_xlabel() and axis.get_ylabel() for axis in drawing.figure.axes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kink_steps": (1,)}, "kink_steps must be two counts"),
        ({"kink_steps": (80, 20)}, "a coarse and a finer one"),
        ({"steps": 1}, "steps must be at least 2"),
    ],
)
def test_refusals(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        first_integral.Config(**changes)
