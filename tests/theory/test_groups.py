"""Groups and their representations against what defines them: axioms, Fourier transforms, matrices of polygons."""

from math import cos, log, pi, sin

import numpy as np
import pytest
import torch

from joma.theory.groups import PAIRS, energy_by_representation, group, pairs_needed, projections

NAMES = ("Z2", "Z7", "Z12", "Z2xZ4", "Z3xZ5", "Z2xZ2xZ3", "D3", "D4", "D5", "D6", "D9")


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_groups(name):
    one = group(name)
    table, elements = one.table.numpy(), np.arange(one.order)
    assert (table[0] == elements).all()
    assert (table[:, 0] == elements).all()
    for line in (*table, *table.T):
        assert sorted(line) == list(elements)
    assert (table[table] == table[:, table]).all()  # (x y) z = x (y z)
    assert (table[elements, one.inverse] == 0).all()


def test_products_are_those_of_numbers_and_of_symmetries():
    assert (group("Z5").table.numpy() == np.add.outer(np.arange(5), np.arange(5)) % 5).all()
    pairs = [(a, b) for a in range(2) for b in range(3)]
    expected = [[pairs.index(((a + c) % 2, (b + d) % 3)) for c, d in pairs] for a, b in pairs]
    assert group("Z2xZ3").table.tolist() == expected
    matrices = _symmetries(5)
    for x, one in enumerate(matrices):
        for y, other in enumerate(matrices):
            assert np.allclose(one @ other, matrices[group("D5").table[x, y]])
    assert not (group("D5").table == group("D5").table.T).all()


def _symmetries(corners, turns=1):
    angles = [2 * pi * turns * k / corners for k in range(corners)]
    rotations = [np.array([[cos(a), -sin(a)], [sin(a), cos(a)]]) for a in angles]
    return rotations + [rotation @ np.diag([1.0, -1.0]) for rotation in rotations]


@pytest.mark.parametrize("name", NAMES)
def test_projections_are_orthogonal_and_add_up_to_the_identity(name):
    parts = projections(group(name))
    size, count = parts.shape[-1], len(parts)
    assert torch.allclose(parts.sum(0), torch.eye(size, dtype=torch.double))
    products = torch.einsum("rxy,syz->rsxz", parts, parts)
    expected = torch.einsum("rs,rxz->rsxz", torch.eye(count, dtype=torch.double), parts)
    assert torch.allclose(products, expected, atol=1e-12)
    assert torch.allclose(parts, parts.mT)


@pytest.mark.parametrize("order", [7, 12])
def test_energy_of_a_cyclic_group_is_that_of_its_frequencies(order):
    values = np.random.default_rng(0).normal(size=(3, order))
    spectrum = np.abs(np.fft.fft(values)) ** 2 / order
    expected = [spectrum[:, f] + (spectrum[:, -f] if 2 * f % order else 0) for f in range(order // 2 + 1)]
    found = energy_by_representation(values, group(f"Z{order}"))
    np.testing.assert_allclose(found.numpy(), np.stack(expected, -1), atol=1e-12)


def test_energy_of_a_product_is_that_of_pairs_of_frequencies():
    values = np.random.default_rng(1).normal(size=(3, 4))
    spectrum = np.abs(np.fft.fft2(values)) ** 2 / 12
    expected = {}
    for one in range(3):
        for other in range(4):
            key = min((one, other), (-one % 3, -other % 4))
            expected[key] = expected.get(key, 0.0) + spectrum[one, other]
    found = energy_by_representation(values.ravel(), group("Z3xZ4"))
    np.testing.assert_allclose(found.numpy(), [expected[key] for key in sorted(expected)], atol=1e-12)


@pytest.mark.parametrize("corners", [5, 6])
def test_energy_of_a_polygon_is_that_of_the_entries_of_its_matrices(corners):
    values = np.random.default_rng(2).normal(size=2 * corners)
    sign, turn = np.repeat([1.0, -1.0], corners), np.tile(np.arange(corners), 2)
    lines = [np.ones(2 * corners), sign]
    if corners % 2 == 0:
        lines += [(-1.0) ** turn, (-1.0) ** turn * sign]
    expected = [(values @ line) ** 2 / (2 * corners) for line in lines]
    for turns in range(1, (corners + 1) // 2):
        entries = np.stack(_symmetries(corners, turns))  # orthogonal functions of squared norm 2 corners / 2
        expected.append((np.einsum("g,gij->ij", values, entries) ** 2).sum() / corners)
    found = energy_by_representation(values, group(f"D{corners}"))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    assert found.sum().item() == pytest.approx((values**2).sum())


def test_degrees_and_names():
    assert group("D6").degrees.tolist() == [1, 1, 1, 1, 2, 2]
    assert group("D6").order == 12
    assert pairs_needed(10) == pytest.approx(PAIRS * 10 * log(10))
    assert pairs_needed(10, 1.0) == pytest.approx(10 * log(10))


@pytest.mark.parametrize("name", ["", "S4", "Z", "Z1", "Z2x", "D2", "Z600", "Z30xZ30", "D300", "z5", "Z5 "])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match=r"a group is called|cyclic parts need"):
        group(name)


@pytest.mark.parametrize("weights", [1.0, [1.0, 2.0]])
def test_weights_that_do_not_fit_are_refused(weights):
    with pytest.raises(ValueError, match="a number for each of the 5 elements"):
        energy_by_representation(weights, group("Z5"))


def test_a_group_of_one_needs_no_pairs():
    with pytest.raises(ValueError, match="at least 2"):
        pairs_needed(1)
