"""Theorem 5 against trees whose every latent is summed over, and those sums against brute force."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from joma.theory import hierarchy

TOL = 1e-12
seeds = st.integers(0, 2**31 - 1)
correlations = st.floats(-0.99, 0.99)


def uniform(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_root(seed, classes, *children):
    prior = uniform(seed, classes) + 0.05
    return prior / prior.sum(), 0.02 + 0.96 * uniform(seed + 1, *children, classes)


def brute_force(branching, rho, p0, p_zero):
    """Every value of every variable of the tree, one at a time: no recursion, no matrix."""
    parents, level = [], [-1]  # parents[i] is the parent of node i, -1 the root
    for count in branching:
        first = len(parents)
        parents += [parent for parent in level for _ in range(count)]
        level = list(range(first, len(parents)))
    children, tokens = branching[0], len(level)
    joint = torch.zeros([2] * tokens, dtype=torch.float64)
    for k, y in product(range(len(p0)), product((0, 1), repeat=len(parents))):
        p = float(p0[k])
        for node, parent in enumerate(parents):
            if parent == -1:
                zero = float(p_zero[node, k])
                p *= zero if y[node] == 0 else 1 - zero
            else:
                edge = float(rho[node - children])
                p *= (1 + edge) / 2 if y[node] == y[parent] else (1 - edge) / 2
        joint[y[-tokens:]] += p
    return joint


@settings(max_examples=12, deadline=None)
@given(seeds, st.sampled_from([(1,), (3,), (2, 2), (1, 3), (3, 1, 1), (2, 1, 2), (1, 2, 2)]))
def test_enumeration_is_brute_force(seed, branching):
    p0, p_zero = random_root(seed, 3, branching[0])
    nodes = [1]
    for count in branching:
        nodes.append(nodes[-1] * count)
    rho = 2 * uniform(seed + 2, sum(nodes[2:])) - 1
    tree = hierarchy.enumerate_tree(len(branching), branching, rho, p0, p_zero)
    torch.testing.assert_close(tree.joint, brute_force(branching, rho, p0, p_zero), rtol=0, atol=1e-14)


def test_enumeration_knows_pairs_and_ancestors():
    p0, p_zero = random_root(3, 2, 2)
    tree = hierarchy.enumerate_tree(3, 2, 0.6, p0, p_zero)
    assert tree.joint.shape == (2,) * 8
    assert tree.joint.sum().item() == pytest.approx(1, abs=1e-14)
    pair = tree.joint.sum((0, 1, 3, 4, 6, 7))  # tokens 2 and 5
    assert tree.both[2, 5].item() == pytest.approx(pair[1, 1].item(), abs=1e-15)
    assert tree.both[5, 2].item() == pytest.approx(pair[1, 1].item(), abs=1e-15)
    assert tree.both[2, 2].item() == pytest.approx(pair[1].sum().item(), abs=1e-15)
    assert tree.conditional[2, 5].item() == pytest.approx((pair[1, 1] / pair[:, 1].sum()).item(), abs=1e-15)
    assert tree.ancestor[0].tolist() == [0, 1, 2, 2, 3, 3, 3, 3]
    uneven = hierarchy.enumerate_tree(3, (2, 1, 2), 0.6, p0, p_zero)
    assert uneven.ancestor[1].tolist() == [1, 0, 3, 3]


def test_enumeration_of_a_batch_of_trees():
    p0, p_zero = random_root(4, 3, 2)
    rho = 2 * uniform(5, 4, 4) - 1
    batch = hierarchy.enumerate_tree(2, 2, rho, p0, p_zero)
    assert batch.joint.shape == (4, 2, 2, 2, 2)
    assert batch.both.shape == (4, 4, 4)
    for i in range(4):
        one = hierarchy.enumerate_tree(2, 2, rho[i], p0, p_zero)
        torch.testing.assert_close(batch.joint[i], one.joint)
        torch.testing.assert_close(batch.conditional[i], one.conditional)


@settings(max_examples=20, deadline=None)
@given(seeds, correlations, st.sampled_from([(1, 2, 2), (2, 2, 2), (1, 2, 1, 2), (1, 2, 2, 2), (1, 1, 2, 1, 2, 2)]))
def test_theorem_5_with_the_corrected_root(seed, rho, branching):
    p0, p_zero = random_root(seed, 4)
    depth = len(branching)
    tree = hierarchy.enumerate_tree(depth, branching, rho, p0, p_zero)
    below = tree.ancestor < depth
    closed = hierarchy.cooccurrence(rho, hierarchy.root_rho(p0, p_zero), depth, tree.ancestor[below])
    torch.testing.assert_close(closed, tree.conditional[below], rtol=TOL, atol=TOL)


@settings(max_examples=20, deadline=None)
@given(seeds, correlations, st.sampled_from([(2,), (2, 1), (2, 2), (2, 1, 2), (2, 1, 1, 1)]))
def test_pairs_that_meet_in_the_root(seed, rho, branching):
    p0, p_zero = random_root(seed, 3, 2)
    depth = len(branching)
    tree = hierarchy.enumerate_tree(depth, branching, rho, p0, p_zero)
    tau_a, tau_b = 2 * p_zero - 1
    left, right = tree.conditional[0, -1], tree.conditional[-1, 0]
    torch.testing.assert_close(hierarchy.root_cooccurrence(rho, depth, p0, tau_a, tau_b), left, rtol=TOL, atol=TOL)
    torch.testing.assert_close(hierarchy.root_cooccurrence(rho, depth, p0, tau_b, tau_a), right, rtol=TOL, atol=TOL)


def test_printed_root_is_another_number():
    p0, p_zero = random_root(0, 4)
    tree = hierarchy.enumerate_tree(3, (1, 2, 2), 0.8, p0, p_zero)
    printed = hierarchy.cooccurrence(0.8, hierarchy.printed_root_rho(p0, p_zero), 3, tree.ancestor)
    assert (printed - tree.conditional).abs().max() > 0.05


@settings(max_examples=30, deadline=None)
@given(correlations, correlations)
def test_lemma_8(a, b):
    m, n = hierarchy.transition(a), hierarchy.transition(b)
    assert torch.equal(m, m.mT)
    torch.testing.assert_close(m.sum(-1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(m @ n, hierarchy.transition(a * b), rtol=0, atol=1e-15)
    torch.testing.assert_close(m @ hierarchy.marginal(b), hierarchy.marginal(a * b), rtol=0, atol=1e-15)


@pytest.mark.parametrize(("depth", "ancestor"), [(5, 1), (8, 3), (6, 0), (12, 11)])
def test_expansion_leaves_a_second_order_remainder(depth, ancestor):
    eps = torch.tensor([2.0**-11, 2.0**-12], dtype=torch.float64)
    exact = hierarchy.cooccurrence(1 - eps, 1 - eps, depth, ancestor)
    remainder = (exact - hierarchy.expansion(eps, depth, ancestor)).abs()
    assert (remainder <= depth**2 * eps**2).all()
    if ancestor:
        assert torch.log2(remainder[0] / remainder[1]).item() == pytest.approx(2, abs=0.05)
        printed = (exact - hierarchy.expansion(eps, depth, ancestor, order=0)).abs()
        assert torch.log2(printed[0] / printed[1]).item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("slope", [0.0, 0.25, 1.0, 4.0])
def test_shallow_limit(slope):
    eps, heights = 1e-8, torch.arange(5)
    exact = hierarchy.cooccurrence(1 - eps, 1 - slope * eps, 6, heights)
    torch.testing.assert_close(exact, hierarchy.shallow_limit(6, heights, root_slope=slope), rtol=0, atol=1e-6)


def test_a_root_that_does_not_saturate_lets_everything_co_occur():
    assert (hierarchy.cooccurrence(1 - 1e-9, 0.5, 6, [1, 3, 5]) > 1 - 1e-7).all()
    assert (hierarchy.shallow_limit(6, [1, 3, 5], root_slope=torch.inf) == 1).all()


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 0.98), st.sampled_from([-1.0, 1.0]), st.floats(-1, 1), st.integers(2, 12))
def test_co_occurrence_falls_with_height_for_either_sign(size, sign, rho0, depth):
    p = hierarchy.cooccurrence(sign * size, rho0, depth, torch.arange(depth))
    assert p[0] == 1
    assert ((p >= 0) & (p <= 1)).all()
    assert (p.diff() <= 0).all()
    assert p[1] < 1
    certain = hierarchy.cooccurrence(sign, 0.3, depth, torch.arange(depth))
    assert (certain == 1).all()


def test_gradients():
    rho = (2 * uniform(1, 3, 1) - 1).requires_grad_()
    rho0 = (2 * uniform(2, 4) - 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: hierarchy.cooccurrence(a, b, [3, 4, 5, 1], [0, 1, 4, 0]), (rho, rho0))
    tau = (2 * uniform(3, 2, 3) - 1).requires_grad_()
    prior = [0.2, 0.3, 0.5]
    assert torch.autograd.gradcheck(lambda r, t: hierarchy.root_cooccurrence(r, 4, prior, t[0], t[1]), (rho, tau))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_a_distribution_that_was_normalised_in_half_precision_is_one(half):
    generator = torch.Generator().manual_seed(0)
    p0 = torch.randn(20, 7, generator=generator).to(half).softmax(-1)
    zero = torch.rand(20, 7, generator=generator).to(half)
    found = hierarchy.root_rho(p0, zero)
    assert found.dtype == half
    exact = (p0.double() * (2 * zero.double() - 1)).sum(-1)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=torch.finfo(half).eps)
    with pytest.raises(ValueError, match="p0 must sum to 1"):
        hierarchy.root_rho(p0.double(), zero.double())


test_bad_input_gets_one_sentence = refusals(
    (lambda: hierarchy.cooccurrence(1.1, 0.1, 3, 1), r"rho must lie in \[-1, 1\]"),
    (lambda: hierarchy.cooccurrence(0.5, -2.0, 3, 1), r"rho0 must lie in \[-1, 1\]"),
    (lambda: hierarchy.cooccurrence(1.0, 1.0, 3, 1), "the token never appears"),
    (lambda: hierarchy.cooccurrence([0.5, -1.0], -1.0, 4, 1), "the token never appears"),
    (lambda: hierarchy.cooccurrence(0.5, 0.1, 3, [1, 3]), "ancestor must be at most depth - 1 = 2, got 3"),
    (lambda: hierarchy.cooccurrence(0.5, 0.1, 3, -1), "ancestor must be at least 0"),
    (lambda: hierarchy.cooccurrence(0.5, 0.1, 0, 0), "depth must be at least 1"),
    (lambda: hierarchy.cooccurrence(0.5, 0.1, 3, 1.5), "ancestor must be a whole number"),
    (lambda: hierarchy.root_rho([0.5, 0.6], [0.5, 0.5]), "p0 must sum to 1"),
    (lambda: hierarchy.root_rho([0.5, 0.5], [0.5, 1.5]), r"p_zero must lie in \[0, 1\]"),
    (lambda: hierarchy.root_cooccurrence(1.0, 3, [1.0], [0.5], [1.0]), "the token never appears"),
    (lambda: hierarchy.shallow_limit(3, 3), "ancestor must be at most"),
    (lambda: hierarchy.shallow_limit(3, 1, root_slope=-1.0), "root_slope must not be negative"),
    (lambda: hierarchy.expansion(0.1, 3, 1, order=2), "order must be 0"),
    (lambda: hierarchy.expansion(-0.1, 3, 1), r"eps must lie in \[0, 1\]"),
    (lambda: hierarchy.enumerate_tree(5, 2, 0.5, [1.0], [0.5]), "at most 2.22 are enumerated"),
    (lambda: hierarchy.enumerate_tree(3, (2, 2), 0.5, [1.0], [0.5]), "one for each of the 3 levels"),
    (lambda: hierarchy.enumerate_tree(2, 2, [0.5, 0.5], [1.0], [0.5]), "one per edge"),
    (lambda: hierarchy.enumerate_tree(2, 0, 0.5, [1.0], [0.5]), "branching must be a whole number"),
)
