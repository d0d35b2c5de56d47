"""The study of the block: its verdicts, and that each verdict follows the numbers of its claim and of its control."""

from every_study import add
from records import changed, verdicts
from small_runs import small

from joma.studies.invariant.block import STUDY

SMALL = small("block")
HOLDS, FIXED, FAILS, BLIND = "holds", "holds as corrected", "fails", "not above its control"


def spoiled(run, changes):
    return verdicts(STUDY, changed(run, lambda name, step, value: changes.get(name, value)))


def along_tokens(run, name):
    """w as it would be if it only grew along the embeddings of tokens."""
    w, v = run.value(f"{name}/w"), run.value(f"{name}/v")
    return w[0] + run.value(f"{name}/embeddings")[:, : SMALL.tokens] @ (v - v[0])


def test_a_weight_that_grows_along_tokens_alone_says_nothing_of_queries(run):
    nothing = {f"{name}/w": along_tokens(run, name) for name in ("one query", "two queries")}
    nothing |= {f"{name}/xi": 0 * run.value(f"{name}/xi") for name in ("one query", "two queries")}
    found = spoiled(run, nothing)
    assert found["weight-expansion"] == BLIND
    assert found["superposition-sign"] == BLIND


def test_a_bias_that_stays_where_it_starts_says_nothing_of_the_integral(run):
    felt, xi = run.value("one query/v b"), run.value("one query/xi")
    constant = {"one query/before": felt + 1.0, "one query/xi": 0 * xi}
    assert spoiled(run, constant)["implicit-bias"] == BLIND


def test_printed_forms_would_be_recognised(run):
    felt, xi = run.value("one query/v b"), run.value("one query/xi")
    true = {"one query/before": felt + xi, "two queries/xi": -run.value("two queries/xi")}
    found = spoiled(run, true)
    assert found["implicit-bias"] == HOLDS
    assert found["superposition-sign"] == HOLDS


def test_a_printed_form_that_is_wrong_at_one_sample_is_wrong(run):
    true = run.value("one query/v b") + run.value("one query/xi")
    nearly = {"one query/before": add((-1, 0, 0, 0), 0.01)(true)}
    assert spoiled(run, nearly)["implicit-bias"] == FAILS
