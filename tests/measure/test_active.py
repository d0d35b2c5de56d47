"""Which units a token needs: against slow sums over single units, and a predictor against lstsq."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from joma.measure import active as measure
from joma.measure.active import (
    active,
    agreement,
    carried,
    carrying,
    fit_predictor,
    head_contributions,
    neuron_contributions,
    typical,
    units_of,
)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_contributions_are_the_lengths_of_what_units_add():
    hidden, down = draw(2, 5, 7), draw(2, 7, 4, seed=1)
    mixed, out = draw(2, 3, 5, 6, seed=2), draw(2, 18, 4, seed=3)
    for member in range(2):
        for token in range(5):
            for unit in range(7):
                wanted = (hidden[member, token, unit] * down[member, unit]).norm()
                assert neuron_contributions(hidden, down)[member, token, unit] == pytest.approx(wanted.item())
            for head in range(3):
                wanted = (mixed[member, head, token] @ out[member, 6 * head : 6 * head + 6]).norm()
                assert head_contributions(mixed, out)[member, token, head] == pytest.approx(wanted.item())


def test_leaving_units_out_changes_the_output_by_no_more_than_they_contribute():
    hidden, down = draw(6, 9), draw(9, 4, seed=1)
    each = neuron_contributions(hidden, down)
    sets = active(each, 0.5)
    change = (hidden * ~sets @ down).norm(dim=-1)
    assert (change <= (1 - carried(each, sets)) * each.sum(-1) + 1e-12).all()


def slow_carrying(row, share):
    row, found = sorted(row, reverse=True), 0.0
    if not sum(row):
        return 0.0
    for count, value in enumerate(row, 1):
        found += value
        if found >= share * math.fsum(row) * (1 - 1e-12):
            return count / len(row)
    raise AssertionError


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0, 7.0]), min_size=4, max_size=4), min_size=1, max_size=5),
    st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9, 1.0]),
)
def test_the_fewest_units_carry_the_share_and_one_less_does_not(rows, share):
    found = carrying(rows, share)
    assert found.tolist() == [slow_carrying(row, share) for row in rows]
    for row, needed in zip(rows, found.tolist(), strict=True):
        if needed:
            assert carried([row], active([row], needed))[0] >= share - 1e-9
        if needed > 0.25:
            assert carried([row], active([row], needed - 0.25))[0] < share


def test_sets_have_their_size_and_take_the_earlier_of_equals():
    assert active(torch.zeros(1, 10), 0.3).tolist() == [[True] * 3 + [False] * 7]
    assert active(draw(4, 10), 0.26).sum(-1).tolist() == [3] * 4
    assert units_of(0.001, 10) == 1


def test_what_nobody_contributes_is_carried_by_all():
    assert carried(torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.bool)).item() == 1.0
    assert not typical(torch.zeros(2, 3)).any()


def test_the_predictor_is_least_squares_and_a_ridge_shrinks_it():
    x, each = draw(50, 3), draw(50, 4, seed=1).abs()
    shares = each / each.sum(-1, keepdim=True)
    with_one = torch.cat((x, torch.ones(50, 1, dtype=x.dtype)), 1)
    wanted = torch.linalg.lstsq(with_one, shares).solution
    found = fit_predictor(x, each, ridge=0.0)
    torch.testing.assert_close(found.weight, wanted[:3], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found(x), with_one @ wanted, rtol=1e-8, atol=1e-9)
    assert fit_predictor(x, each, ridge=10.0).weight.norm() < 0.2 * found.weight.norm()


def test_leading_dimensions_are_fitted_each_for_itself():
    x, each = draw(3, 40, 4), draw(3, 40, 5, seed=1).abs()
    together = fit_predictor(x, each)
    for one in range(3):
        alone = fit_predictor(x[one], each[one])
        torch.testing.assert_close(together.weight[one], alone.weight)
        torch.testing.assert_close(together(x)[one], alone(x[one]))


def test_agreement_orders_sets_where_features_tell_and_does_not_where_they_do_not():
    x = draw(600, 5)
    each = (x @ draw(5, 20, seed=1)).relu()  # what is predicted is not linear in what is known
    fitted, asked = slice(0, 300), slice(300, 600)
    usual = typical(each[fitted])
    told = agreement(each[asked], fit_predictor(x[fitted], each[fitted])(x[asked]), usual, 0.2)
    assert told.best > told.predicted > told.static + 0.1
    assert told.static > told.random == pytest.approx(0.2)
    assert told.permuted < told.static + 0.05
    blind = agreement(each[asked], fit_predictor(draw(300, 5, seed=9), each[fitted])(draw(300, 5, seed=8)), usual, 0.2)
    assert blind.predicted < blind.static + 0.03


def test_half_precision_is_added_up_in_float32():
    assert carrying(draw(2, 4).abs().bfloat16(), 0.5).dtype == torch.float32


ONES = torch.ones(3, 4)


test_bad_input_gets_one_sentence = refusals(
    (lambda: carrying(ONES, 0.0), "^share must be a share above 0 and at most 1, got 0"),
    (lambda: active(ONES, 1.5), "^budget must be a share above 0 and at most 1, got 1.5"),
    (lambda: carrying(-ONES, 0.5), "^contributions must not be negative, got -1"),
    (lambda: carrying(ONES[0], 0.5), r"^contributions must be \(..., tokens, units\), none of them 0, got \(4,\)"),
    (lambda: carried(ONES, ONES), "^sets must be bool, got torch.float32"),
    (lambda: carried(ONES, ONES[:2] > 0), r"^sets must broadcast to \(3, 4\), got \(2, 4\)"),
    (lambda: neuron_contributions(ONES, ONES), "^hidden and output must be"),
    (lambda: head_contributions(ONES, ONES), "^mixed and output must be"),
    (lambda: fit_predictor(ONES[:2], ONES), "^features and contributions must agree in all dimensions but the last"),
    (lambda: fit_predictor(ONES, ONES, ridge=-1.0), "^ridge must be a finite number of at least 0, got -1"),
    (lambda: fit_predictor(ONES * float("nan"), ONES), "^features contains NaN"),
    (lambda: fit_predictor(ONES, ONES)(ONES[:, :2]), "^features must be 4 per token, got 2"),
    (lambda: carrying(ONES / 0, 0.5), "^contributions must be finite, got infinity"),
    (lambda: active(1.0, 0.5), r"^scores must have shape \(..., units\), got \(\)"),
    (lambda: neuron_contributions(torch.ones(2, 3, 4), torch.ones(5, 4, 2)), "^shapes do not fit together: hidden"),
    (lambda: head_contributions(torch.ones(2, 3, 4, 2), torch.ones(5, 6, 2)), "^shapes do not fit together: mixed"),
    (lambda: head_contributions(torch.ones(0, 4, 2), torch.ones(0, 2)), "mixed and output must be .*none of the"),
    (lambda: agreement(ONES, ONES, ONES[:1, :1], 0.5), r"^usual must be \(..., 1, 4\), one score per unit, got"),
    (lambda: agreement(ONES, ONES[:2], ONES[:1], 0.5), r"^scores must have the shape of contributions, \(3, 4\)"),
)


def test_every_public_name_is_tested_here():
    public = {name for name, value in vars(measure).items() if getattr(value, "__module__", "") == measure.__name__}
    assert {name for name in public if not name.startswith("_")} <= set(globals()) | {"Agreement", "Predictor"}


def test_a_head_whose_parts_cancel_is_measured_in_single_precision():
    mixed = torch.tensor([[[1.0, -1.0]]])
    output = torch.tensor([[1.0, 2.0], [1.0, 2.0 + 2**-12]])
    assert measure.head_contributions(mixed, output).item() == pytest.approx(2**-12, rel=1e-3)
    wide = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    by_hand = torch.stack([(wide[h] @ rows[3 * h : 3 * h + 3]).norm(dim=-1) for h in range(2)], -1)
    torch.testing.assert_close(measure.head_contributions(wide, rows), by_hand)
    mixed_types = measure.head_contributions(wide.float(), rows)
    assert mixed_types.dtype == torch.float64
    torch.testing.assert_close(mixed_types, by_hand, rtol=1e-5, atol=1e-6)


def test_the_smallest_numbers_are_carried_too():
    assert measure.carried([[3e-310, 1e-310]], [[True, False]]).item() == pytest.approx(0.75, rel=1e-6)
