"""The largest singular values of matrices on a CPU, against a full SVD, and against errors that are planted in it."""

import numpy as np
import pytest
import torch
from matrices import rng, with_values

from joma.measure import _leading, registry
from joma.measure._leading import fits, leading


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=rng(seed))


def one(w, seed=0, tolerance=1e-3):
    return leading(w[None], tolerance, 1e-6, rng(seed))[0]


MATRICES = {
    "wide": lambda: gaussian(200, 700),
    "tall": lambda: gaussian(700, 200),
    "square": lambda: gaussian(300, 300),
    "the most rows without strips": lambda: gaussian(512, 192),
    "the fewest rows with strips": lambda: gaussian(513, 192),
    "strips of two widths": lambda: gaussian(600, 521),
    "transposed": lambda: gaussian(250, 400).mT,
    "common mean": lambda: gaussian(200, 300) + 3,
    "two alike": lambda: with_values(torch.tensor([3.0, 3.0 - 1e-4, *[1.0] * 198]), 260),
    "power law": lambda: with_values(torch.arange(1, 201) ** -0.7, 260),
    "three of a size, and a gap": lambda: with_values(torch.tensor([3.0, 2.999, 2.99, *[1.0] * 197]), 260),
    "twenty of a size": lambda: with_values(torch.cat([torch.linspace(2, 1.9, 20), torch.linspace(1, 0.1, 180)]), 260),
    "falling evenly": lambda: with_values(torch.linspace(1, 0.01, 200), 260),
    "rank one": lambda: gaussian(200, 1) @ gaussian(1, 240, seed=1),
    "identity": lambda: torch.eye(200),
    "small numbers": lambda: gaussian(200, 240) * 1e-9,
    "large numbers": lambda: gaussian(200, 240) * 1e5,
    "half": lambda: gaussian(200, 240).bfloat16(),
}


@pytest.mark.parametrize("name", MATRICES)
def test_both_norms_are_those_of_a_full_svd(name):
    w = MATRICES[name]()
    squares = torch.linalg.svdvals(w.double()).square()
    assert fits(w)
    found = one(w, seed=3)
    assert found.frobenius == pytest.approx(float(squares.sum()), rel=1e-6)
    assert found.spectral == pytest.approx(float(squares[0]), rel=1e-6)
    assert found.spectral <= float(squares[0]) * (1 + 1e-6)
    assert float(squares[0]) <= found.spectral * (1 + found.excess)
    assert 5e-4 < found.excess <= 1e-3
    rank, norm = registry.leading_spectrum(w, rng(3))
    assert (rank, norm**2) == (pytest.approx(found.frobenius / found.spectral), pytest.approx(found.spectral))


def test_the_matrices_of_a_stack_are_each_their_own():
    """Among them what is settled at once, what takes longest, and what float32 does not settle."""
    hard = with_values(1 - torch.linspace(0, 0.4, 200) ** 2, 260)
    matrices = [gaussian(200, 260), torch.zeros(200, 260), gaussian(200, 1) @ gaussian(1, 260), hard]
    matrices += [gaussian(200, 260, seed=1) * 1e-6, torch.full((200, 260), 1e-30), MATRICES["two alike"]()]
    stack = torch.stack(matrices)
    certified = leading(stack, 1e-3, 1e-6, rng())
    assert [found is not None for found in certified] == [True, False, True, False, True, False, True]
    found = registry.MEASURES["stable_rank"].stacked(stack)
    for (rank, norm), w in zip(found, stack, strict=True):
        squares = torch.linalg.svdvals(w.double()).square()
        wanted = float(squares.sum() / squares[0].clamp_min(1e-200)), float(squares[0].sqrt())
        assert (rank, norm) == (pytest.approx(wanted[0], rel=1e-5), pytest.approx(wanted[1], rel=1e-5))


@pytest.mark.parametrize("name", ["square", "two alike", "slow", "falling evenly"])
def test_a_bound_is_never_below_the_largest_however_early_it_is_asked_for(monkeypatch, name):
    """A stop after few products, a coarse tolerance: whatever is said to be excluded, is."""
    slow = with_values(1 - torch.linspace(0, 0.4, 200) ** 2, 260)
    w = slow if name == "slow" else MATRICES[name]()
    gram, settled = w.double() @ w.double().mT, 0
    if w.shape[0] > w.shape[1]:
        gram = w.double().mT @ w.double()
    largest, mean = float(torch.linalg.eigvalsh(gram)[-1]), np.array([float(gram.diagonal().mean())])
    for first in (2, 3, 6):
        monkeypatch.setattr(_leading, "FIRST", first)
        for tolerance in (1e-3, 0.01, 0.05, 0.2):
            drawn = gaussian(16, len(gram), seed=first)
            g = gram.float()[None]
            value, bound = _leading._search(g, drawn, drawn @ g, mean, tolerance, 1.0)
            assert bound[0] >= largest
            assert value[0] <= largest * (1 + 1e-6)
            settled += np.isfinite(bound[0])
    assert settled >= 6


def test_a_value_that_the_search_has_hardly_met_keeps_it_going():
    """All columns nearly orthogonal to the largest: what they show looks settled, the sizes to be expected do not."""
    w = with_values(torch.tensor([1.05, 1.0, *torch.linspace(0.5, 0.1, 198)]), 260)
    gram = (w @ w.mT)[None]
    top = torch.linalg.svd(w)[0][:, :1]
    drawn = gaussian(16, 200)
    for left in (1.0, 1e-2, 1e-4):
        start = drawn - (1 - left) * (drawn @ top) @ top.mT
        g = gram.clone()
        # What is seen of the largest is in proportion, and so is what would have to be seen: nothing is missed.
        overlap = 0.3 * float(torch.linalg.vector_norm(start @ top))
        value, bound = _leading._search(g, start, start @ g, np.array([float((w**2).sum()) / 200]), 1e-3, overlap)
        assert np.isinf(bound[0]) or (value[0], bound[0] >= 1.05**2) == (pytest.approx(1.05**2, rel=1e-4), True)


def test_a_spectrum_with_a_gap_takes_the_fewest_products(monkeypatch):
    less, products = _leading._less, []
    monkeypatch.setattr(_leading, "_less", lambda *given: products.append(1) or less(*given))
    for values, most in (
        (torch.tensor([3.0, *[1.0] * 199]), 3),
        (torch.tensor([2.0, *torch.linspace(1.6, 0.1, 199)]), 10),
    ):
        assert one(with_values(values, 260)).spectral == pytest.approx(float(values[0]) ** 2)
        assert len(products) <= most
        products.clear()


@pytest.mark.parametrize("change", [-0.5, 0.001])
def test_a_gram_matrix_that_is_not_that_of_the_matrix_is_noticed(monkeypatch, change):
    """By the probes alone: the search sees the wrong one."""
    w, made = gaussian(200, 260), _leading._gram

    def spoiled(tall):
        if not torch.equal(tall.mT, w):
            return made(tall)
        values, vectors = torch.linalg.eigh(made(tall))
        return made(tall) + change * values[-1] * torch.outer(vectors[:, -1], vectors[:, -1])

    monkeypatch.setattr(_leading, "_gram", spoiled)
    assert one(w) is None
    found = leading(torch.stack([w, gaussian(200, 260, seed=1)]), 1e-3, 1e-6, rng())
    assert [each is not None for each in found] == [False, True]


def test_an_error_that_the_probes_hardly_meet_counts_in_full(monkeypatch):
    """0.4 of its size is what they show of it, where nothing below 0.37 is to be expected."""
    w, made = gaussian(200, 260), _leading._gram
    probes = torch.randn(16, 200, generator=rng())[:8]
    _, sizes, right = torch.linalg.svd(probes)
    v = right[7] * (0.4 / sizes[7]) + right[8] * (1 - (0.4 / sizes[7]) ** 2) ** 0.5
    assert (float((probes @ v).norm()), float(v.norm())) == (pytest.approx(0.4), pytest.approx(1))

    for error, settled in ((1e-4, True), (4.9e-4, False)):
        size = error * float(torch.linalg.matrix_norm(w, 2)) ** 2
        monkeypatch.setattr(_leading, "_gram", lambda tall, size=size: made(tall) + size * torch.outer(v, v))
        assert (one(w) is not None) == settled


def test_directions_that_are_rounding_are_left_out_and_their_size_is_kept():
    x = gaussian(16, 3, seed=1) @ gaussian(3, 200, seed=2) + 1e-6 * gaussian(16, 200)
    sizes = torch.linalg.svdvals(x.double())
    found = _leading._ritz(x[None], 2 * x[None])
    assert found.rest[0] == pytest.approx(float(sizes[3:].norm()), rel=1e-3)
    assert (found.weights[0] > 1e-9).sum() == 3
    assert np.sort(found.values[0])[-3:] == pytest.approx(np.full(3, 2.0))
    assert found.residuals[0][found.weights[0] > 1e-9] == pytest.approx(np.zeros(3), abs=1e-5)
    assert np.linalg.norm(found.weights[0]) == pytest.approx(float(sizes[:3].norm()), rel=1e-6)
    assert found.scale[0] == pytest.approx(1 / float(sizes[0]), rel=1e-6)


@pytest.mark.parametrize(
    ("tolerance", "overlap", "excluded"), [(2e-6, 1.0, False), (0.5, 3e-4, False), (0.5, 0.03, True)]
)
def test_nothing_is_excluded_that_rounding_could_hide(tolerance, overlap, excluded):
    """Rounding of the residuals, and of X: about eps |Gamma| = 8e-6 in each of a dozen terms or more."""
    w = gaussian(300, 300)
    gram, drawn = (w.mT @ w)[None], gaussian(16, 300, seed=1)
    mean = np.array([float(gram[0].diagonal().mean())])
    assert np.isfinite(_leading._search(gram, drawn, drawn @ gram, mean, tolerance, overlap)[1][0]) == excluded


def test_the_first_polynomial_is_that_of_chebyshev(monkeypatch):
    """Of the right sign and size: the certificate takes its value for granted."""
    w, seen, ritz = gaussian(200, 260), [], _leading._ritz
    monkeypatch.setattr(_leading, "_ritz", lambda x, image: seen.append(x[0].double().numpy()) or ritz(x, image))
    gram, drawn = (w @ w.mT)[None], gaussian(16, 200, seed=1)
    values, vectors = np.linalg.eigh(gram[0].double().numpy())
    _leading._search(gram, drawn, drawn @ gram, np.array([values.mean()]), 1e-3, 1.0)
    polynomial = np.polynomial.Chebyshev.basis(_leading.FIRST)(2 * values / values.mean() - 1)
    wanted = (drawn.double().numpy() @ vectors * polynomial) @ vectors.T
    assert seen[0] == pytest.approx(wanted, abs=1e-4 * np.abs(wanted).max())


def test_a_matrix_that_is_nearly_settled_does_not_grow_out_of_range_with_one_that_is_slow():
    slow = with_values(1 - torch.linspace(0, 0.4, 600) ** 2, 600)
    fast = with_values(torch.tensor([2.0, 1.94, *torch.linspace(1, 0.1, 598)]), 600)
    found = leading(torch.stack([slow, fast]), 1e-3, 1e-6, rng())
    assert [one.spectral for one in found if one] == pytest.approx([1.0, 4.0][2 - sum(map(bool, found)) :], rel=1e-4)
    assert found[1]


def test_rounding_of_the_products_is_less_than_what_is_allowed_for(monkeypatch):
    """X against the same polynomials in float64, in units of what the largest value has become."""
    w, runs, ritz = gaussian(400, 300), [], _leading._ritz
    gram, drawn = (w.mT @ w)[None], gaussian(16, 300)
    mean = np.array([float(gram[0].diagonal().mean())])
    for dtype in (torch.float32, torch.float64):
        steps = []
        known = iter(runs[0]) if runs else None

        def noted(x, image, steps=steps, known=known):
            steps.append((x.double(), next(known)[1] if known else ritz(x, image)))
            return steps[-1][1]

        monkeypatch.setattr(_leading, "_ritz", noted)
        g, start = gram.to(dtype).clone(), drawn.to(dtype)
        _leading._search(g, start, start @ g, mean, 1e-3, 1e-3)
        runs.append(steps)
    top = torch.linalg.eigh(gram[0].double())[1][:, -1:]
    before = float((drawn.double() @ top).norm())
    allowed = _leading._EPS * 16 * float(drawn.norm())  # at least four steps, each at least three, and more
    assert len(runs[0]) == len(runs[1]) > 2
    for (rough, _), (fine, _) in zip(*runs, strict=True):
        assert 0 < float(((rough - fine) @ top).norm()) / (float((fine @ top).norm()) / before) < allowed


def test_products_are_exact_whatever_is_set(monkeypatch):
    seen = []

    def noted(call):
        return lambda *given: seen.append(torch.get_float32_matmul_precision()) or call(*given)

    for name in ("_gram", "_less", "_ritz"):
        monkeypatch.setattr(_leading, name, noted(getattr(_leading, name)))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert one(gaussian(200, 260)) is not None
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) == {"highest"}


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e-20, 1e14, 1e30, float("nan"), float("inf")])
def test_what_leaves_the_range_goes_the_other_way(value):
    w = torch.full((200, 260), value)
    assert one(w) is None
    if np.isfinite(value):
        rank, norm = registry.leading_spectrum(w, rng())
        assert (rank, norm) == (pytest.approx(float(value > 0)), pytest.approx(value * (200 * 260) ** 0.5))
    else:
        with pytest.raises(ValueError, match="w must be finite"):
            registry.leading_spectrum(w, rng())


def test_which_matrices_it_is_for(monkeypatch):
    few, many = _leading.SIDES
    for threads, most in ((1, many), (2, 2 * many), (16, _leading.LARGEST)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        for shape in ((few, most + 9), (9 * most, most), (3, most, most)):
            assert fits(torch.empty(1).expand(shape))
            assert not fits(torch.empty(1, dtype=torch.float64).expand(shape))
            assert not fits(torch.empty(shape, device="meta"))
        for shape in ((few - 1, most), (most + 1, most + 1)):
            assert not fits(torch.empty(1).expand(shape))


def test_a_scan_takes_it_one_by_one_and_in_stacks(monkeypatch):
    monkeypatch.setattr(registry, "spectrum", None)
    stack = torch.stack([gaussian(200, 210, seed=seed) for seed in range(3)])
    alone = [registry.leading_spectrum(w, torch.Generator().manual_seed(0)) for w in stack]
    together = registry.MEASURES["stable_rank"].stacked(stack)
    assert np.array(together) == pytest.approx(np.array(alone), rel=1e-6)
    assert len({rank for rank, _ in alone}) == 3
    assert registry.MEASURES["stable_rank"].stacked(stack[:0]) == []


@pytest.mark.parametrize("w", [gaussian(100, 120), gaussian(200, 210).double()])
def test_a_scan_takes_what_it_is_not_for_the_other_way(monkeypatch, w):
    monkeypatch.setattr(registry, "leading", None)
    norm = np.linalg.norm(w.double().numpy(), 2)
    assert registry.leading_spectrum(w, rng()) == pytest.approx(((float(w.norm()) / norm) ** 2, norm), rel=1e-5)


def test_the_same_seed_gives_the_same_numbers():
    w = gaussian(300, 300)
    assert one(w, seed=4) == one(w, seed=4)
    assert one(w, seed=4).spectral == pytest.approx(one(w, seed=5).spectral, rel=1e-6)


def test_a_stack_gives_the_same_numbers_and_leaves_the_random_numbers_of_others_alone():
    stack, found = torch.stack([gaussian(200, 210), gaussian(200, 210, seed=1)]), []
    for seed in (1, 2):
        state = torch.manual_seed(seed).get_state()
        found.append(registry.MEASURES["stable_rank"].stacked(stack))
        assert torch.equal(torch.get_rng_state(), state)
    assert found[0] == found[1]
