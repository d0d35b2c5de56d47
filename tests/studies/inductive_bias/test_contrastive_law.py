"""The contrastive loss in closed form, against sampling, listing and limits."""

import math

import numpy as np
import pytest
import torch

from joma.studies.inductive_bias.inductive_bias import hypercube as law
from joma.studies.inductive_bias.inductive_bias.hypercube import all_codes, contrastive_loss

SETTINGS = {"batch": 16, "temperature": 0.5}


def test_the_law_of_a_code_is_that_of_its_listed_patterns():
    codes = all_codes(6).double().numpy() / math.sqrt(6)
    listed, counted = law.law_of_codes(codes), law.code_law(6)
    order = np.argsort(counted[0])
    np.testing.assert_allclose(listed[0], counted[0][order], atol=1e-11)
    np.testing.assert_allclose(listed[1], counted[1][order], rtol=1e-10)


@pytest.mark.parametrize(("bits", "batch", "temperature"), [(4, 16, 0.5), (10, 8, 1.0), (3, 24, 0.2)])
def test_the_expected_loss_is_the_mean_of_sampled_batches(bits, batch, temperature):
    source = torch.Generator().manual_seed(0)
    points = torch.randint(0, 2, (3000, batch, bits), generator=source).double() * 2 - 1
    losses = contrastive_loss(points, points, temperature)
    error = losses.std() / math.sqrt(len(losses))
    exact = law.expected_loss(law.code_law(bits), batch=batch, temperature=temperature)
    assert abs(losses.mean() - exact) < 4 * error


def test_the_integral_is_exact_where_nothing_is_random():
    sure = np.array([0.25]), np.array([1.0])
    wanted = -2 + math.log(math.exp(2) + 2 * 15 * math.exp(0.5))
    assert law.expected_loss(sure, **SETTINGS) == pytest.approx(wanted, abs=1e-10)


def test_a_simplex_reaches_the_least_loss_of_its_bits():
    patterns = 2**3
    simplex = np.eye(patterns) - 1 / patterns
    simplex /= np.linalg.norm(simplex, axis=1, keepdims=True)
    assert law.expected_loss(law.law_of_codes(simplex), **SETTINGS) == pytest.approx(
        law.least_loss_of_bits(3, **SETTINGS), abs=1e-9
    )


def test_no_code_is_below_the_least_loss():
    luck = np.random.default_rng(0)
    for _ in range(20):
        codes = luck.normal(size=(8, 5))
        codes /= np.linalg.norm(codes, axis=1, keepdims=True)
        assert law.expected_loss(law.law_of_codes(codes), **SETTINGS) > law.least_loss_of_bits(3, **SETTINGS)


def test_more_bits_have_a_lower_least_loss_down_to_that_of_any_code():
    losses = [law.least_loss_of_bits(bits, **SETTINGS) for bits in range(1, 16)]
    assert all(np.diff(losses) < 0)
    assert losses[-1] == pytest.approx(law.least_loss(**SETTINGS), abs=1e-3)


def test_the_printed_linear_loss_is_that_of_ten_coordinates_at_batch_512_and_temperature_one_half():
    settings = {"batch": 512, "temperature": 0.5}
    assert law.expected_loss(law.code_law(10), **settings) == pytest.approx(5.134, abs=5e-4)
    assert law.least_loss(**settings) < 4.939 < law.least_loss_of_bits(10, **settings)


def test_the_loss_is_the_cross_entropy_of_picking_the_other_view():
    source = torch.Generator().manual_seed(0)
    one, two = (torch.randn(2, 5, 3, generator=source, dtype=torch.float64) for _ in range(2))
    code = torch.nn.functional.normalize(torch.cat([one, two], 1), dim=-1)
    wanted = []
    for member in code:
        logits = member @ member.T / 0.7
        logits.fill_diagonal_(-math.inf)
        wanted.append(torch.nn.functional.cross_entropy(logits, (torch.arange(10) + 5) % 10))
    torch.testing.assert_close(contrastive_loss(one, two, 0.7), torch.stack(wanted))
