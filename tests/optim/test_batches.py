"""Matrices that are alike are worked on together, and nothing of one becomes another's: options, subspaces, seeds."""

import numpy as np
import pytest
import torch
from oracle import SlowGaLore
from torch import nn

from joma.optim import GaLore, _backward, _matrix, _update, find_projector
from joma.optim._backward import refresh_batches
from joma.optim._groups import form_packs
from joma.optim._matrix import Matrix


def drawn(count, shape=(5, 9), seed=0):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_groups_of_one_shape_have_their_own_options():
    """Two matrices in one group, two in two others; each as the slow version makes it alone."""
    options = [
        {"scale": 0.25, "lr": 0.1, "weight_decay": 0.3, "refresh": 2},
        {"scale": 1.5, "lr": 0.02, "weight_decay": 0.0, "refresh": 2},
        {"scale": 0.5, "lr": 0.1, "weight_decay": 2.0, "refresh": 3},
    ]
    of = [0, 0, 1, 2]
    starts = drawn(4)
    weights = [nn.Parameter(start.clone()) for start in starts]
    groups = [
        {"params": [(f"{number} {place}", weights[place]) for place in range(4) if of[place] == number], **one}
        for number, one in enumerate(options)
    ]
    optimizer = GaLore(groups, torch.optim.Adam, rank=3, projector="exact", lr=9.0)
    slow = [
        SlowGaLore(start.numpy(), rank=3, refresh=one["refresh"], scale=one["scale"], lr=one["lr"],
                   decay=one["weight_decay"])
        for start, one in zip(starts, (options[number] for number in of), strict=True)
    ]  # fmt: skip
    for step in range(5):
        gradients = drawn(4, seed=1 + step)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
        for weight, gradient, matrix, one in zip(weights, gradients, optimizer.matrices, slow, strict=True):
            one.step(gradient.numpy(), matrix.basis.numpy())
            np.testing.assert_allclose(weight.detach().numpy(), one.weight, rtol=1e-9, atol=1e-9)


def named(*shapes, group=0, rank=2, dtype=torch.float32, start="c"):
    given = [(f"{start}{place}", nn.Parameter(torch.zeros(shape, dtype=dtype))) for place, shape in enumerate(shapes)]
    return [Matrix(name, parameter, group, 0, rank) for name, parameter in given]


def names(batches):
    return [" ".join(matrix.name for matrix in batch) for batch in batches]


def packs_of(matrices, partner=lambda matrix: True):
    return form_packs(matrices, partner, sum(matrix.parameter.numel() for matrix in matrices))


def test_a_pack_has_one_group_shape_rank_and_precision_and_is_not_too_large(monkeypatch):
    matrices = [
        *named((5, 9), start="a"),
        *named((5, 9), start="b", dtype=torch.float64),
        *named(*[(5, 9)] * 5, (9, 5), (5, 8), group=1),
        *named((5, 9), group=2, rank=3, start="d"),
    ]
    for most, of_group in ((1 << 22, ["c0 c1 c2 c3 c4"]), (2 * 45, ["c0 c1", "c2 c3", "c4"]), (89, "c0 c1 c2 c3 c4")):
        monkeypatch.setattr(_matrix, "STACK", most)
        packs = packs_of(matrices)
        expected = ["a0", "b0", *(of_group if isinstance(of_group, list) else of_group.split()), "c5", "c6", "d0"]
        assert names(pack.matrices for pack in packs) == expected
        assert [pack.compact.ndim for pack in packs] == [3 if " " in one else 2 for one in expected]
    asked = packs_of(matrices, lambda matrix: None if matrix.name == "c0" else matrix.name in ("c1", "c3"))
    assert names(pack.matrices for pack in asked)[2] == "c0"


def test_subspaces_are_found_one_by_one_on_a_cpu_and_few_together_elsewhere(monkeypatch):
    matrices = named(*[(5, 9)] * 6, (9, 5))
    assert names(refresh_batches(matrices)) == ["c0", "c1", "c2", "c3", "c4", "c5", "c6"]
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    assert names(refresh_batches(matrices)) == ["c0 c1 c2 c3", "c4 c5", "c6"]
    monkeypatch.setattr(_backward, "SEARCHED", 3 * 45 - 1)
    assert names(refresh_batches(matrices)) == ["c0 c1", "c2 c3", "c4 c5", "c6"]
    monkeypatch.setattr(_backward, "SEARCHED", 2 * 45 - 1)
    assert names(refresh_batches(matrices)) == ["c0", "c1", "c2", "c3", "c4", "c5", "c6"]


def test_every_matrix_and_every_refresh_has_a_random_subspace_of_its_own():
    weights = [nn.Parameter(each) for each in drawn(3, (8, 12))]
    optimizer = GaLore(weights, rank=2, refresh=1, projector="random", skip=())
    bases = []
    for step in range(3):
        for weight, gradient in zip(weights, drawn(3, (8, 12), seed=1 + step), strict=True):
            weight.grad = gradient
        optimizer.step()
        bases += [matrix.basis.clone() for matrix in optimizer.matrices]
    for place, one in enumerate(bases):
        torch.testing.assert_close(one.T @ one, torch.eye(2).double())
        for other in bases[:place]:  # the largest cosine between two planes: 1 if they share a direction
            assert float(torch.linalg.matrix_norm(one.T @ other, 2)) < 0.999


@pytest.mark.parametrize("kind", ["randomized", "random"])
def test_seeds_differ_between_refreshes_and_not_by_company(monkeypatch, kind):
    """What is drawn beside the last subspace shows nowhere else. A matrix has its seeds whoever steps with it."""
    asked = []

    def watched(gradient, rank, kind, *, seed=0, **options):
        asked.append(seed)
        return find_projector(gradient, rank, kind, seed=seed, **options)

    monkeypatch.setattr(_update, "find_projector", watched)

    def seeds(present, seed):
        asked.clear()
        weights = [nn.Parameter(each) for each in drawn(3)]
        optimizer = GaLore(weights, rank=2, refresh=2, projector=kind, skip=(), seed=seed)
        for step in range(6):
            for place in present:
                weights[place].grad = drawn(3, seed=step)[place]
            optimizer.step()
        return list(asked)

    monkeypatch.setattr(GaLore, "staggered", False)
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    monkeypatch.setattr(_backward, "REFRESHED_TOGETHER", 3)
    first, other = seeds((0, 1, 2), 0), seeds((0, 1, 2), 1)
    assert len(first) == (3 if kind == "randomized" else 9)
    assert len({*first, *other}) == 2 * len(first)
    # As ever, so that a run can be made again by a later version: by seed, matrix and update, 1,000,003 apart.
    matrices, far = (range(1) if kind == "randomized" else range(3)), 1_000_003
    start = far if kind == "randomized" else far**2
    assert other == [start + matrix * far + count for count in (0, 2, 4) for matrix in matrices]
    assert seeds((1, 2), 0) == (first if kind == "randomized" else [one for n, one in enumerate(first) if n % 3])
