"""The subspace of a gradient: as good as the SVD's, orthonormal, the same for the same seed, and never a crash."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.optim import find_projector, projector
from joma.optim.projector import _block, orthonormalize, side_of

KINDS = ("randomized", "exact", "random")


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gradients(rows, columns, rank):
    """Spectra: flat, falling slowly, low rank with noise, low rank alone, one direction, none."""
    noise = draw(rows, columns)
    low = (draw(rows, rank, seed=1) * torch.logspace(0, -2, rank)) @ draw(rank, columns, seed=2)
    return {
        "Gaussian": noise,
        "falling": noise * torch.arange(1, rows + 1)[:, None] ** -0.7,
        "low rank and noise": low + 0.01 * noise,
        "low rank": low[:, : columns // 2].repeat(1, 2) if columns % 2 == 0 else low,
        "three directions": draw(rows, 3, seed=3) @ draw(3, columns, seed=4),
        "steep": noise * 10.0 ** -torch.arange(rows)[:, None].clamp(max=30),
        "tiny": noise * 1e-36,
        "huge": noise * 1e30,
        "zero": noise * 0,
    }


def energy(basis, gradient):
    wide = gradient.double().mT if side_of(*gradient.shape) == "right" else gradient.double()
    return float((basis.double().mT @ wide).square().sum() / wide.square().sum().clamp_min(1e-300))


def is_orthonormal(basis):
    return bool((basis.mT @ basis - torch.eye(basis.shape[-1])).abs().max() < 1e-5)


@pytest.mark.parametrize("shape", [(96, 200), (200, 96)], ids=["wide", "tall"])
@pytest.mark.parametrize("name", gradients(4, 4, 2))
def test_as_much_energy_as_the_svd(name, shape):
    gradient = gradients(96, 200, 12)[name]
    gradient = gradient if shape[0] < shape[1] else gradient.mT
    found, exact = find_projector(gradient, 12), find_projector(gradient, 12, "exact")
    assert not found.exact
    assert exact.exact
    assert found.basis.shape == (96, 12)
    assert is_orthonormal(found.basis)
    assert energy(found.basis, gradient) >= 0.99 * energy(exact.basis, gradient)
    assert float(found.captured) == pytest.approx(energy(found.basis, gradient), abs=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_any_shape(rows, columns, data):
    rank = data.draw(st.integers(1, min(rows, columns)))
    gradient = draw(rows, columns, seed=rows * columns)
    for kind in KINDS:
        found = find_projector(gradient, rank, kind)
        assert found.basis.shape == (min(rows, columns), rank)
        assert is_orthonormal(found.basis)
        assert float(found.captured) == pytest.approx(energy(found.basis, gradient), abs=1e-4)
        assert not found.captured > 1


def test_the_directions_are_singular_vectors_in_order():
    gradient = (
        draw(64, 20, dtype=torch.float64) @ torch.diag(0.5 ** torch.arange(20.0)).double() @ draw(20, 80).double()
    )
    left, values, _ = torch.linalg.svd(gradient)
    found = find_projector(gradient, 6)
    assert not found.exact
    assert torch.allclose((found.basis * left[:, :6]).sum(0).abs(), torch.ones(6).double(), atol=1e-4)
    assert torch.allclose(found.energies, values[:6] ** 2 / (values**2).sum(), rtol=1e-4)
    torch.testing.assert_close(found.basis.mT @ found.basis, torch.eye(6).double(), rtol=0, atol=1e-12)


def test_matrices_of_a_stack_do_not_disturb_each_other():
    """One that is zero, some with few directions and steep ones beside flat ones, which need many products."""
    kinds = gradients(96, 200, 12)
    stack = torch.stack(list(kinds.values()))
    found = find_projector(stack, 12)
    assert not found.exact
    for number, gradient in enumerate(stack):
        exact = find_projector(gradient, 12, "exact")
        assert is_orthonormal(found.basis[number])
        assert energy(found.basis[number], gradient) >= 0.99 * energy(exact.basis, gradient)
    twice = find_projector(stack.reshape(3, 3, 96, 200), 12)
    assert torch.equal(twice.basis, found.basis.reshape(3, 3, 96, 12))


def test_the_seed_decides():
    gradient = draw(60, 90)
    for kind in KINDS[::2]:
        first, second, other = (find_projector(gradient, 5, kind, seed=seed).basis for seed in (1, 1, 2))
        assert torch.equal(first, second)
        assert not torch.equal(first, other)
    assert torch.equal(find_projector(gradient, 5, "exact", seed=1).basis, find_projector(gradient, 5, "exact").basis)


def test_random_does_not_look_at_the_gradient():
    first, second = (find_projector(draw(60, 90, seed=seed), 5, "random").basis for seed in (0, 1))
    assert torch.equal(first, second)


def test_a_start_saves_products_and_keeps_signs(monkeypatch):
    gradient = gradients(96, 200, 12)["falling"]
    products = []

    class Counted(projector.Gram):
        def __call__(self, vectors):
            products.append(1)
            return super().__call__(vectors)

    monkeypatch.setattr(projector, "Gram", Counted)
    cold = find_projector(gradient, 12, tolerance=1e-4)
    first = len(products)
    warm = find_projector(gradient, 12, start=-cold.basis, tolerance=1e-4)
    assert len(products) - first < first
    assert bool(((warm.basis * -cold.basis).sum(0) > 0).all())
    assert energy(warm.basis, gradient) >= energy(cold.basis, gradient) - 1e-5


@pytest.mark.parametrize("name", ["Gaussian", "falling", "low rank and noise"])
def test_a_start_that_is_of_no_use_does_no_harm(name):
    gradient = gradients(96, 200, 12)[name]
    worst = torch.linalg.svd(gradient)[0][:, -12:]
    exact = find_projector(gradient, 12, "exact")
    found = find_projector(gradient, 12, start=worst)
    assert energy(found.basis, gradient) >= 0.99 * energy(exact.basis, gradient)


@pytest.mark.parametrize("width", [5, 20])
def test_a_start_of_another_rank_keeps_the_signs_of_what_both_have(width):
    gradient = gradients(96, 200, 12)["falling"]
    start = -torch.linalg.svd(gradient)[0][:, :width]
    found = find_projector(gradient, 12, start=start)
    assert not found.exact
    assert found.basis.shape == (96, 12)
    both = min(width, 12)
    assert bool(((found.basis[:, :both] * start[:, :both]).sum(0) > 0).all())


def test_a_search_that_does_not_settle_ends_in_the_svd():
    gradient = draw(96, 200)
    found = find_projector(gradient, 12, tolerance=-1.0)
    assert found.exact
    assert torch.equal(found.basis, find_projector(gradient, 12, "exact").basis)


@pytest.mark.parametrize("shape", [(6, 9), (9, 6)])
@pytest.mark.parametrize("fails", [{torch.float32}, {torch.float32, torch.float64}], ids=["float64", "Gram"])
def test_an_svd_that_fails_is_done_in_another_way(monkeypatch, fails, shape):
    gradient, svd = draw(*shape), torch.linalg.svd
    exact = find_projector(gradient, 3, "exact")

    def failing(matrix, **options):
        if matrix.dtype in fails:
            raise torch.linalg.LinAlgError("did not converge")
        return svd(matrix, **options)

    monkeypatch.setattr(torch.linalg, "svd", failing)
    found = find_projector(gradient, 3, "exact")
    assert found.basis.dtype == torch.float32
    assert torch.allclose(found.energies, exact.energies, rtol=1e-4)
    assert torch.allclose((found.basis * exact.basis).sum(0).abs(), torch.ones(3), atol=1e-4)


def test_an_svd_that_gives_nan_is_not_believed(monkeypatch):
    gradient, svd = draw(6, 9), torch.linalg.svd

    def wrong(matrix, **options):
        left, values, right = svd(matrix, **options)
        return (left * float("nan") if matrix.dtype == torch.float32 else left), values, right

    monkeypatch.setattr(torch.linalg, "svd", wrong)
    assert find_projector(gradient, 3, "exact").basis.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_precision(dtype):
    gradient = draw(60, 90).to(dtype)
    found = find_projector(gradient, 5)
    assert found.basis.dtype == torch.promote_types(dtype, torch.float32)
    exact = find_projector(gradient, 5, "exact").basis
    assert energy(found.basis, gradient) == pytest.approx(energy(exact, gradient), rel=0.01)


def test_orthonormal_keeps_the_span_of_what_comes_first():
    block = draw(30, 6)
    block[:, 4] = block[:, 0]  # depends on another column
    block[:, 5] = 0
    block[:, 1] *= 1e-12
    basis = orthonormalize(block)
    assert is_orthonormal(basis)
    block = block / block.norm(dim=0).clamp_min(1e-30)
    for count in (1, 2, 4):
        seen = basis[:, :count] @ (basis[:, :count].mT @ block[:, :count])
        assert torch.allclose(seen, block[:, :count], atol=1e-4)


def test_a_factor_that_does_not_exist_is_replaced_by_a_qr(monkeypatch):
    monkeypatch.setattr("joma.optim.projector.NOISE", 0.0)
    basis = orthonormalize(torch.zeros(9, 3))
    assert is_orthonormal(basis)


def test_repr_is_one_line():
    assert "\n" not in repr(find_projector(draw(6, 9), 2))


def test_of_a_start_with_more_directions_than_the_rank_the_first_are_used():
    """More than the block holds: those beyond the rank must not take the place of random ones."""
    gradient = torch.diag(torch.arange(60.0, 0.0, -1.0))
    start = torch.eye(60)[:, :40]
    found = find_projector(gradient, 4, start=start)
    assert found.basis.shape == (60, 4)
    wanted = torch.arange(60.0, 56.0, -1.0).square() / torch.arange(61.0).square().sum()
    torch.testing.assert_close(found.energies, wanted, rtol=1e-3, atol=0)
    block = _block(gradient, 4, start, seed=0)
    assert torch.equal(block[:, :4], start[:, :4])
    assert (block[:, 4:] != 0).all()
