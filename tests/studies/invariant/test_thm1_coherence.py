"""The study of coherent embeddings: its verdicts, and that each follows the numbers of its claim and its controls."""

import numpy as np
import pytest
import torch
from every_study import add, put, test_a_spoiled_series_changes_its_verdict  # noqa: F401
from records import altered, changed, found
from small_runs import small

from joma.studies.invariant import thm1_coherence as study
from joma.studies.invariant.thm1_coherence import STUDY, Thm1CoherenceConfig
from joma.theory.flow import Block, cross_entropy_gradient

TINY = small("thm1-coherence")
HOLDS, FAILS, BLIND = "holds", "fails", "not above its control"
QUALITATIVE, OPEN = "only qualitative", "undecided"
JITTER = np.tile([-1.0, 1.0], 4)


SPOILED = [("residual/drift", lambda x: 0 * x + 1e-12, "coherence-dual", HOLDS)]


@pytest.mark.parametrize(
    ("claim", "series", "truth", "form"),
    [
        ("coherence-dual", "residual/path integral", "residual/z", "corrected"),
        ("coherence-total", "no residual/half |V|^2", "no residual/total z", "printed"),
        ("coherence-total", "no residual/half |W|^2", "no residual/total z", "corrected"),
    ],
)
def test_residuals_are_those_of_the_record(run, claim, series, truth, form):
    copy = altered(run, series, lambda _: run.value(truth) + 0.25)
    assert found(STUDY, copy, claim).residuals[form] == pytest.approx(0.25)


def test_the_drift_is_the_residual_of_the_printed_relation(run):
    copy = altered(run, "residual/drift", lambda x: 0 * x - 0.25)
    assert found(STUDY, copy, "coherence-dual").residuals["printed"] == 0.25


def test_a_printed_relation_that_were_true_would_be_recognised(run):
    copy = altered(run, "no residual/half |V|^2", lambda _: run.value("no residual/total z"))
    assert found(STUDY, copy, "coherence-total").verdict == HOLDS
    assert found(STUDY, altered(run, "residual/drift", lambda x: 1e-13 * x), "coherence-terms").verdict == HOLDS


def test_identities_that_other_widths_fulfil_as_well_show_nothing(run):
    def same_at_all_widths(name, step, value):
        alike = name.startswith(("residual/z", "residual/path", "no residual/total", "no residual/half |W|"))
        return np.broadcast_to(value[:1], value.shape) if alike else value

    copy = changed(run, same_at_all_widths)
    assert found(STUDY, copy, "coherence-dual").verdict == BLIND
    assert found(STUDY, copy, "coherence-total").verdict == BLIND


def test_terms_that_other_widths_have_as_well_show_nothing(run):
    """The two smallest coherences get the same drift and terms that explain it."""

    def alike(name, step, value):
        if name in ("residual/drift", "residual/first order"):
            value = np.array(value)
            value[-2:] = run.value("residual/drift")[-1]
        return value

    assert found(STUDY, changed(run, alike), "coherence-terms").verdict == BLIND


def test_terms_must_explain_more_where_the_coherence_is_small(run):
    copy = altered(run, "residual/first order", lambda _: 1.05 * run.value("residual/drift"))
    assert found(STUDY, copy, "coherence-terms").verdict == FAILS


def with_orders(run, orders, factor=1.0):
    power = run.value("residual/coherence") ** np.asarray(orders)
    return altered(run, "residual/drift", lambda _: factor * power[..., None] * run.value("residual/z"))


@pytest.mark.parametrize(
    ("orders", "verdict"),
    [
        (1.00 + 0.05 * JITTER, HOLDS),
        (2.00 + 0.05 * JITTER, QUALITATIVE),  # it shrinks, but not in the first order
        (0.20 + 0.05 * JITTER, QUALITATIVE),  # it shrinks by less than matters
        (0.00 + 0.10 * JITTER, BLIND),
        (0.30 + 0.90 * JITTER, OPEN),
        (-1.00 + 0.05 * JITTER, FAILS),
    ],
)
def test_the_order_is_judged_over_seeds(run, orders, verdict):
    finding = found(STUDY, with_orders(run, orders), "coherence-order")
    assert finding.verdict == verdict
    assert finding.main.seeds == TINY.seeds
    assert finding.main.effect == pytest.approx(orders.mean())


@pytest.mark.parametrize(
    ("lean", "wide", "verdict"),
    [
        ([0.36, 0.37, 0.38], [0.20, 0.21, 0.20], HOLDS),
        ([0.36, 0.37, 0.29], [0.20, 0.21, 0.20], BLIND),  # a quarter of the width may be enough
        ([0.36, 0.37, 0.38], [0.2990, 0.2988, 0.2991], QUALITATIVE),
        ([0.36, 0.37, 0.38], [0.301, 0.299, 0.300], BLIND),
        ([0.36, 0.37, 0.38], [0.10, 0.28, 0.32], OPEN),
        ([0.36, 0.37, 0.38], [0.40, 0.41, 0.42], FAILS),
        ([0.36, 0.37, np.nan], [0.20, 0.21, 0.20], OPEN),
    ],
)
def test_the_width_is_judged_over_draws(run, lean, wide, verdict):
    copy = altered(run, "vocabulary/coherence", lambda _: np.array([lean, wide]))
    assert found(STUDY, copy, "coherence-width").verdict == verdict


def test_every_draw_must_keep_to_the_bound(run):
    lean, wide = np.full(40, 0.4), np.where(np.arange(40) == 7, 0.301, 0.20)
    copy = altered(run, "vocabulary/coherence", lambda _: np.stack([lean, wide]))
    assert found(STUDY, copy, "coherence-width").verdict == QUALITATIVE


def test_ensembles_of_coherent_embeddings_obey_equation_2():
    config = Thm1CoherenceConfig(tokens=4, nodes=3, samples=6)
    x, target = study._data(0, config)
    embeddings = study._embeddings(16, 0, config)
    ensemble = study.Ensemble(x[None], target[None], embeddings[None, :, :-1], embeddings[None, :, -1:])
    block = Block(
        x,
        torch.zeros(6, dtype=torch.long),
        embeddings[:, :-1],
        embeddings[:, -1:],
        cross_entropy_gradient(target.argmax(-1)),
        activation=torch.tanh,
    )
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    z = torch.randn(1, 4, generator=generator, dtype=torch.float64)
    dw, dz = ensemble.velocity(w[None], z[None])
    torch.testing.assert_close(dw[0], block.velocity(w, z).w, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(dz[0], block.velocity(w, z).z, rtol=1e-13, atol=1e-14)


def test_turning_embeddings_keeps_their_inner_products():
    config = Thm1CoherenceConfig(tokens=4)
    turned = study._embeddings(64, 3, config)
    drawn = study._unit_columns(64, 5, torch.Generator().manual_seed(30_064))
    assert turned.shape == (5, 5)
    torch.testing.assert_close(turned.mT @ turned, drawn.mT @ drawn, rtol=0, atol=1e-14)
