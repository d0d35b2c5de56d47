"""Stable ranks of matrices that change between two looks, against singular values in float64."""

import pytest
import torch

from joma.measure._following import BLOCK, Stacks, _by_grams, first_block, random_vectors
from joma.measure._following import follow as follow_with


def exact(w):
    squares = torch.linalg.svdvals(w.double()).square()
    return squares.sum(-1) / squares[:, 0]


def follow(w, block, generator):
    return follow_with(list(w), block, random_vectors(block, 1, generator))


def begun(w, seed=0):
    generator = torch.Generator().manual_seed(seed)
    nothing = torch.zeros(len(w), min(w.shape[1:]), 0, dtype=torch.promote_types(w.dtype, torch.float32))
    return first_block(nothing, generator), generator


def looks(w, count):
    block, generator = begun(w)
    for _ in range(count):
        found = follow(w, block, generator)
        block = found.vectors
    return found


def gaussian(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("shape", [(300, 300), (300, 700), (700, 300), (40, 40), (33, 500)])
def test_the_number_comes_near_from_above_within_some_looks(shape):
    w = gaussian(3, *shape)
    found = looks(w, 6)
    error = found.stable_rank.double() / exact(w) - 1
    assert float(error.min()) > -1e-5
    assert float(error.max()) < 1e-3


@pytest.mark.parametrize("scale", [1e-36, 1.0, 1e35])
def test_any_scale(scale):
    w = gaussian(2, 200, 300)
    assert torch.allclose(looks(scale * w, 4).stable_rank, looks(w, 4).stable_rank, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_float_type(dtype):
    w = gaussian(2, 200, 300, dtype=torch.float64).to(dtype)
    found = looks(w, 6).stable_rank
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.allclose(found.double(), exact(w), rtol=1e-3)


def test_a_steep_spectrum_and_one_of_rank_one():
    q = torch.linalg.qr(gaussian(200, 200))[0]
    steep = (q * torch.logspace(0, -7, 200))[None]
    assert torch.allclose(looks(steep, 2).stable_rank.double(), exact(steep), rtol=1e-4)
    one = gaussian(1, 200, 1) @ gaussian(1, 1, 300, seed=1)
    assert looks(one, 2).stable_rank.item() == pytest.approx(1.0, rel=1e-5)


def test_the_residual_is_what_it_says():
    """W W' u = s u + rest, with u and s found here again from the block."""
    w = gaussian(1, 120, 200, dtype=torch.float64)
    found = looks(w, 1)
    block = found.vectors[0]
    assert torch.allclose(block.mT @ block, torch.eye(BLOCK, dtype=w.dtype), atol=2e-3)
    gram = w[0] @ w[0].mT
    values, mixes = torch.linalg.eigh(block.mT @ gram @ block)
    vector = block @ mixes[:, -1]
    rest = (gram @ vector - values[-1] * vector).norm() / values[-1]
    assert float(found.residual) == pytest.approx(float(rest), rel=0.05)
    assert float(found.stable_rank) == pytest.approx(float(gram.trace() / values[-1]), rel=1e-4)


def test_some_singular_value_is_as_near_as_the_residual_says():
    w = gaussian(4, 150, 220)
    for count in (1, 2, 4):
        found = looks(w, count)
        sizes = w.double().square().sum((1, 2)) / found.stable_rank.double()
        squares = torch.linalg.svdvals(w.double()).square()
        nearest = ((squares - sizes[:, None]).abs() / sizes[:, None]).amin(-1)
        assert (nearest <= found.residual + 1e-5).all()


def test_weights_that_drift_are_followed():
    w, (block, generator) = gaussian(2, 300, 400), begun(gaussian(2, 300, 400))
    errors = []
    for step in range(12):
        w = w + 0.03 * gaussian(2, 300, 400, seed=100 + step)
        found = follow(w, block, generator)
        block = found.vectors
        errors.append(float((found.stable_rank.double() / exact(w) - 1).abs().max()))
    assert max(errors[4:]) < 1e-3


def test_a_direction_that_comes_up_elsewhere_is_found():
    """What was followed had nothing of it; one new random vector per look does."""
    w = torch.diag(torch.cat([torch.tensor([2.0]), torch.linspace(1.0, 0.5, 299)]))[None]
    block, generator = begun(w)
    for _ in range(3):
        block = follow(w, block, generator).vectors
    block = torch.cat([torch.eye(300)[:, :BLOCK]], -1)[None]  # exactly those that led, and none of what comes
    w[0, 299, 299] = 4.0
    for _ in range(2):
        found = follow(w, block, generator)
        block = found.vectors
    assert torch.allclose(found.stable_rank.double(), exact(w), rtol=1e-3)


def test_zeros_and_what_is_not_finite_stay_alone():
    w = gaussian(4, 50, 60)
    w[1], w[2, 3, 4], w[3, 0, 0] = 0.0, torch.nan, torch.inf
    block, generator = begun(w)
    found = follow(w, block, generator)
    assert found.stable_rank[1] == 0
    assert found.residual[1] == 0
    assert found.stable_rank[2:].isnan().all()
    assert found.residual[2:].isnan().all()
    assert found.vectors.isfinite().all()
    mended = gaussian(4, 50, 60)
    block = found.vectors
    for _ in range(8):
        found = follow(mended, block, generator)
        block = found.vectors
    assert torch.allclose(found.stable_rank.double(), exact(mended), rtol=2e-3)


def test_an_accelerator_multiplies_each_block_with_its_own_gram_matrix():
    """No CPU takes these products in `follow`. Three stacks of different widths, scales and lengths."""
    some = [*gaussian(2, 40, 60), *(100 * gaussian(1, 90, 40, seed=1)), *(0.01 * gaussian(3, 40, 40, seed=2))]
    block = gaussian(6, 40, BLOCK, seed=3)
    for together in (1, 2 * 40 * 60, 1 << 20):
        found = _by_grams(Stacks(some, together))(block).double()
        for at, w in enumerate(each.double() if each.shape[0] == 40 else each.double().T for each in some):
            wanted = w @ (w.T @ block[at].double()) / w.abs().max().square()
            assert float((found[at] - wanted).norm() / wanted.norm()) < 0.01


@pytest.mark.parametrize("together", [1, 3 * 50 * 80, 1 << 20])
def test_it_does_not_matter_how_many_are_copied_at_a_time(together):
    """Several shapes, one of them lying on its side."""
    some = [*gaussian(4, 50, 80), *gaussian(3, 90, 50, seed=1), *gaussian(2, 50, 50, seed=2)]
    block = first_block(torch.zeros(9, 50, 0), torch.Generator().manual_seed(0))
    new = random_vectors(block, 1, torch.Generator().manual_seed(1))
    for _ in range(6):
        found = follow_with(some, block, new, together=together)
        block = found.vectors
    whole = torch.stack([exact(each[None])[0] for each in some])
    assert torch.allclose(found.stable_rank.double(), whole, rtol=2e-3)


def test_numbers_of_others_are_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    looks(gaussian(1, 40, 40), 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_first_block_begins_with_what_is_known():
    known = gaussian(2, 40, 3)
    block = first_block(known, torch.Generator().manual_seed(0))
    assert torch.equal(block[..., :3], known)
    assert block.shape == (2, 40, BLOCK)
    assert float(block[..., 3:].norm(dim=-2).mean()) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("together", [1, 1 << 20])
def test_the_matrices_themselves_stay_as_they_are(together):
    """Copies are scaled, also of one that is alone and of the right type already."""
    some = [*(100 * gaussian(1, 50, 80)), *gaussian(2, 90, 50, seed=1)]
    before = [each.clone() for each in some]
    block = first_block(torch.zeros(3, 50, 0), torch.Generator().manual_seed(0))
    follow_with(some, block, random_vectors(block, 1, torch.Generator().manual_seed(1)), together=together)
    assert all(torch.equal(one, other) for one, other in zip(some, before, strict=True))


def test_a_stack_has_no_more_entries_than_are_copied_together():
    """Two and a half matrices fit: two are copied. One that does not fit is copied alone. All keep their places."""
    some = [*gaussian(5, 4, 10), *gaussian(2, 200, 4, seed=1), *gaussian(1, 4, 10, seed=2)]
    found = list(Stacks(some, together=100))
    assert [at for at, _ in found] == [0, 2, 4, 5, 6, 7]
    assert [tuple(stack.shape) for _, stack in found] == [(2, 4, 10), (2, 4, 10), (1, 4, 10)] + 2 * [(1, 4, 200)] + [
        (1, 4, 10)
    ]
    for at, stack in found:
        for own, copied in zip(some[at:], stack, strict=False):
            wide = own if own.shape[0] == 4 else own.T
            torch.testing.assert_close(copied, wide / wide.abs().max())
