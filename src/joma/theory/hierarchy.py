"""HBLT, the hierarchical binary latent tree (Theorem 5, eq. 8, Lemmas 8 and 9): which tokens appear together.

The root y_0 is a class label with D values and stands at height L, the depth of the tree. Its children, the binary
latents y_1, stand at height L - 1, the tokens at height 0; y = 1 means that a token appears. A child copies its
parent with probability (1 + rho)/2, so along a path the uncertainties multiply: M(rho_1) M(rho_2) = M(rho_1 rho_2).

`cooccurrence` is Theorem 5. The rho_0 that the paper states is not what its proof needs: `root_rho` is.
Pairs that only meet in the root obey another formula (`root_cooccurrence`), and eq. 8 has a first-order term.
"""

from collections.abc import Sequence
from functools import partial, reduce
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.host.arguments import Number, alongside, as_tensor, at_least_dims, integer, real, shown, together, within
from joma.host.words import brief_repr
from joma.theory._guard import guarded

Count = int | Sequence[int] | np.ndarray | Tensor
"""A whole number, or several of them: depths and heights."""

MOST_STATES = 2**22
"""What `enumerate_tree` is willing to write down: 32 MiB of float64."""


@guarded
def transition(rho: Number) -> Tensor:
    """M(rho) of Definition 1: P[child | parent], rows the child's value, columns the parent's. Shape (..., 2, 2).

        M = (1 1^T + rho e e^T) / 2,  e = (1, -1)

    Symmetric and stochastic; M(a) M(b) = M(a b), so these matrices commute (Lemma 8).

    >>> transition(0.5)
    tensor([[0.7500, 0.2500],
            [0.2500, 0.7500]], dtype=torch.float64)
    """
    correlation = within(rho, "rho", -1, 1)
    sign = torch.tensor([[1, -1], [-1, 1]], dtype=correlation.dtype, device=correlation.device)
    return (1 + correlation[..., None, None] * sign) / 2


@guarded
def marginal(rho: Number) -> Tensor:
    """p(rho) of Definition 1: (P[y = 0], P[y = 1]) = (1 + rho, 1 - rho)/2. Shape (..., 2).

    M(a) p(b) = p(a b). Eq. 103 writes M where this vector is meant.

    >>> marginal(0.5)
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    return transition(rho)[..., 0]


@partial(guarded, keep="p0")
def root_rho(p0: Number, p_zero: Number) -> Tensor:
    """rho_0 = sum_k p0(k) (2 P[y_1 = 0 | k] - 1), the uncertainty of the root as Theorem 5 needs it.

    p0: (..., classes) class probabilities; p_zero: (..., classes) P[y_1 = 0 | y_0 = k]. Returns (...).

    >>> root_rho([0.5, 0.5], [1.0, 0.5])
    tensor(0.5000, dtype=torch.float64)
    """
    prior, zero = _by_class(p0, p_zero=within(p_zero, "p_zero", 0, 1))
    return (prior * (2 * zero - 1)).sum(-1)


@partial(guarded, keep="p0")
def printed_root_rho(p0: Number, p_zero: Number) -> Tensor:
    """rho_0 as Theorem 5 states it, sum_k p0(k) P[y_1 = 0 | k]: not what the formula needs, that is `root_rho`.

    >>> printed_root_rho([0.5, 0.5], [1.0, 0.5])
    tensor(0.7500, dtype=torch.float64)
    """
    prior, zero = _by_class(p0, p_zero=within(p_zero, "p_zero", 0, 1))
    return (prior * zero).sum(-1)


@guarded
def cooccurrence(rho: Number, rho0: Number, depth: Count, ancestor: Count) -> Tensor:
    """P[y_l = 1 | y_m = 1] of Theorem 5, for two tokens with a common latent ancestor at height H = `ancestor`.

        (1 + rho^2H - 2 R) / (2 (1 - R)) = 1 - (1 - rho^2H) / (2 (1 - R)),    R = rho^(L-1) rho_0,  L = `depth`

    Only even powers of rho meet H, so co-occurrence falls with H whatever the sign of rho; not at all for rho = +-1.
    rho, rho0 in [-1, 1]; `root_rho` gives rho0. 0 <= H <= L - 1: for tokens that only meet in the root see
    `root_cooccurrence`. All four broadcast; differentiable in rho and rho0. R = 1 is refused: y_m is then never 1.

    >>> cooccurrence(0.9, 0.8, depth=4, ancestor=[0, 1, 2, 3])
    tensor([1.0000, 0.7721, 0.5875, 0.4379], dtype=torch.float64)
    """
    r, r0 = together(rho=within(rho, "rho", -1, 1), rho0=within(rho0, "rho0", -1, 1))
    levels, height = _levels(depth, ancestor, like=r)
    r, r0, levels, height = together(rho=r, rho0=r0, depth=levels, ancestor=height)
    appears = 1 - r ** (levels - 1) * r0  # 2 P[y_m = 1]
    if (appears <= 0).any():
        raise ValueError("rho^(depth-1) rho0 must be below 1: at 1 the token never appears")
    return 1 - (1 - r ** (2 * height)) / (2 * appears)


@partial(guarded, keep="p0")
def root_cooccurrence(rho: Number, depth: Count, p0: Number, tau_a: Number, tau_b: Number) -> Tensor:
    """P[y_l = 1 | y_m = 1] for tokens whose only common ancestor is the root: l is below its child a, m below b.

        E[(1 - R tau_a) (1 - R tau_b)] / (2 (1 - R E[tau_b])),    R = rho^(L-1), E over the classes with p0

    Theorem 5 does not cover these pairs: given the class, a and b are independent, and no edge joins them.
    rho: (...); depth: a whole number or (...); p0, tau_a, tau_b: (..., classes), tau = 2 P[. = 0 | y_0 = k] - 1.
    Returns (...). A token m that never appears is refused.

    >>> root_cooccurrence(0.9, 3, [0.5, 0.5], [0.8, -0.4], [0.6, -0.6])
    tensor(0.5371, dtype=torch.float64)
    """
    prior, a, b = _by_class(p0, tau_a=within(tau_a, "tau_a", -1, 1), tau_b=within(tau_b, "tau_b", -1, 1))
    r = within(rho, "rho", -1, 1)
    r, levels, prior, a, b = alongside(
        {"p0": 1, "tau_a": 1, "tau_b": 1}, rho=r, depth=_counts(depth, "depth", 1).to(r), p0=prior, tau_a=a, tau_b=b
    )
    path = (r ** (levels - 1))[..., None]
    l_appears, m_appears = 1 - path * a, 1 - path * b  # 2 P[. = 1 | y_0 = k]
    appears = (prior * m_appears).sum(-1)
    if (appears <= 0).any():
        raise ValueError("rho^(depth-1) E[tau_b] must be below 1: at 1 the token never appears")
    return (prior * l_appears * m_appears).sum(-1) / (2 * appears)


@guarded
def shallow_limit(depth: Count, ancestor: Count, *, root_slope: Number = 1.0) -> Tensor:
    """Where co-occurrence goes as eps -> 0 with rho = 1 - eps and rho_0 = 1 - k eps: 1 - H / (L - 1 + k).

    `root_slope` is k >= 0. The paper's eq. 8 is k = 1: 1 - H/L. If rho_0 stays below 1 (k = inf), every pair
    co-occurs with certainty in the limit, however high its ancestor: the fall with H needs the root to saturate too.

    >>> shallow_limit(5, [1, 2, 4])
    tensor([0.8000, 0.6000, 0.2000], dtype=torch.float64)
    """
    slope = real(root_slope, "root_slope", finite=False)
    levels, height = _levels(depth, ancestor, like=slope)
    levels, height, slope = together(depth=levels, ancestor=height, root_slope=slope)
    if (slope < 0).any() or ((levels == 1) & (slope == 0)).any():
        raise ValueError("root_slope must not be negative, nor 0 at depth 1: the token would never appear")
    return 1 - height / (levels - 1 + slope)


@guarded
def expansion(eps: Number, depth: Count, ancestor: Count, order: int = 1) -> Tensor:
    """Eq. 8 for rho = rho_0 = 1 - eps: 1 - H/L + eps H (2H - L) / (2L) + O(eps^2).

    The paper prints `order` 0 and calls its remainder O(eps^2); it is O(eps) unless L = 2H. All arguments broadcast.

    >>> expansion(0.01, depth=5, ancestor=1)
    tensor(0.7970, dtype=torch.float64)
    """
    if not isinstance(order, int) or order not in (0, 1):
        raise ValueError(f"order must be 0 (as printed) or 1, got {shown(order)}")
    small = within(eps, "eps", 0, 1)
    levels, height = _levels(depth, ancestor, like=small)
    small, levels, height = together(eps=small, depth=levels, ancestor=height)
    return 1 - height / levels + order * small * (height * (2 * height - levels) / (2 * levels))


@brief_repr
class Enumeration(NamedTuple):
    """The exact distribution of the tokens of a small tree, every latent summed over; see `enumerate_tree`."""

    joint: Tensor
    """(..., 2, ..., 2): the probability of each pattern of tokens, one axis a token, left to right."""
    both: Tensor
    """(..., tokens, tokens): P[y_l = 1, y_m = 1]; on the diagonal P[y_l = 1]."""
    ancestor: Tensor
    """(tokens, tokens): the height of the lowest common ancestor; the depth of the tree where that is the root."""

    @property
    def conditional(self) -> Tensor:
        """(..., tokens, tokens): P[y_l = 1 | y_m = 1], l the row; NaN where m never appears."""
        return self.both / self.both.diagonal(dim1=-2, dim2=-1)[..., None, :]


@partial(guarded, keep="p0")
def enumerate_tree(depth: int, branching: int | Sequence[int], rho: Number, p0: Number, p_zero: Number) -> Enumeration:
    """The joint distribution of all tokens of a small HBLT, by summing over all latents: the oracle of this module.

    depth: L. branching: children of each node, one number or one for each level from the root down.
    rho: a number, (..., 1), or (..., edges) with one for each edge below the root's children, from the top down and
    from left to right. p0: (..., classes). p_zero: (classes,) P[y_1 = 0 | y_0 = k] for all of the root's children, or
    (..., children, classes) with one row for each. Refuses what needs more than 2^22 states.

    >>> tree = enumerate_tree(2, 2, 0.9, [0.5, 0.5], [0.9, 0.3])
    >>> tree.ancestor[0], tree.both.diagonal()  # how often each token appears
    (tensor([0, 1, 2, 2]), tensor([0.4100, 0.4100, 0.4100, 0.4100], dtype=torch.float64))
    >>> tree.conditional[0]
    tensor([1.0000, 0.8841, 0.5878, 0.5878], dtype=torch.float64)
    """
    widths = _widths(depth, branching)
    children, count = widths[0], sum(widths[1:])
    zero = within(p_zero, "p_zero", 0, 1)
    zero = zero.expand(children, -1) if zero.ndim == 1 else zero  # (..., children, classes)
    (prior,) = _by_class(p0)
    if zero.ndim < 2 or zero.shape[-2:] != (children, prior.shape[-1]):
        wanted = f"({prior.shape[-1]},) or (..., {children}, {prior.shape[-1]}), with the classes of p0"
        raise ValueError(f"p_zero must have shape {wanted}, got {tuple(zero.shape)}")
    edges = within(rho, "rho", -1, 1)
    edges = edges.to(prior)[None] if edges.ndim == 0 else edges
    edges = edges.expand(*edges.shape[:-1], count) if edges.shape[-1] == 1 else edges
    if edges.shape[-1] != count:
        raise ValueError(f"rho must be a number, (..., 1) or (..., {count}), one per edge, got {tuple(edges.shape)}")
    like = together(p0=prior[..., 0], p_zero=zero[..., 0, 0], rho=edges.sum(-1))[0]  # the batch of trees
    prior, zero, edges = prior.to(like), zero.to(like), edges.to(like)
    states = like.numel() * prior.shape[-1] * 2 ** widths[-1]
    if states > MOST_STATES:
        raise ValueError(f"the tree has {widths[-1]} tokens, {states:.3g} states in all; at most 2^22 are enumerated")
    # tables[i] is P[tokens below node i | y_i], (..., 2, patterns); a token's own table is certain of itself.
    tables = [torch.eye(2, dtype=like.dtype, device=like.device)] * widths[-1]
    steps = list(transition(edges).unbind(-3))
    for parents in reversed(widths[:-1]):
        steps, last = steps[: -len(tables)], steps[-len(tables) :]
        seen = [step.mT @ table for step, table in zip(last, tables, strict=True)]
        size = len(seen) // parents  # children of each parent, left to right
        tables = [_product(seen[i * size : (i + 1) * size]) for i in range(parents)]
    given_class = torch.stack([zero, 1 - zero], dim=-1).unbind(-3)  # children x (..., classes, 2)
    patterns = _product([given @ table for given, table in zip(given_class, tables, strict=True)])
    joint = (prior[..., None, :] @ patterns)[..., 0, :].expand(*like.shape, -1)
    joint = joint.reshape(*like.shape, *[2] * widths[-1])
    return Enumeration(joint, _both_present(joint, widths[-1]), _meeting_heights(widths).to(like.device))


def _counts(value: object, name: str, low: int) -> Tensor:
    try:
        tensor = as_tensor(value, name)  # type: ignore[arg-type]
        good = tensor.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
        good = good and tensor.layout == torch.strided and not tensor.is_meta
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"{name} must be a whole number or several of them, got {shown(value)}")
    if (tensor < low).any():
        raise ValueError(f"{name} must be at least {low}, got {tensor.min().item()}")
    return tensor


def _levels(depth: Count, ancestor: Count, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """L and H, checked and broadcast, in the dtype and on the device of `like`: they are powers of it."""
    levels, height = together(depth=_counts(depth, "depth", 1), ancestor=_counts(ancestor, "ancestor", 0))
    if (height >= levels).any():
        deep, high = (x[height >= levels][0].item() for x in (levels, height))
        hint = "tokens that only meet in the root follow root_cooccurrence"
        raise ValueError(f"ancestor must be at most depth - 1 = {deep - 1:g}, got {high}: {hint}")
    return levels.to(like), height.to(like)


def _by_class(p0: Number, **tables: Tensor) -> tuple[Tensor, ...]:
    """p0 and what is known of each class, all (..., classes); p0 must be a distribution."""
    prior = at_least_dims(within(p0, "p0", 0, 1), "p0", 1, "(..., classes)")
    tolerance = torch.finfo(prior.dtype).eps ** 0.5  # what is left after a user's own normalisation
    prior = prior.to(torch.promote_types(prior.dtype, torch.float32))
    if ((prior.sum(-1) - 1).abs() > tolerance).any():
        raise ValueError(f"p0 must sum to 1 over classes, got {prior.sum(-1).flatten()[0].item():g}")
    for name, table in tables.items():
        if table.shape[-1:] != prior.shape[-1:]:
            raise ValueError(f"{name} must have shape (..., {prior.shape[-1]}) like p0, got {tuple(table.shape)}")
    return together(p0=prior, **tables)


def _widths(depth: int, branching: int | Sequence[int]) -> list[int]:
    """Nodes on each level, from the root's children to the tokens."""
    levels = integer(depth, "depth", 1)
    children = list(branching) if isinstance(branching, Sequence) else [branching] * levels
    if len(children) != levels:
        raise ValueError(f"branching must be a number or one for each of the {levels} levels, got {len(children)}")
    factors = [integer(count, "branching", 1) for count in children]
    return [prod(factors[: i + 1]) for i in range(levels)]


def _product(tables: list[Tensor]) -> Tensor:
    """P[tokens of all subtrees | parent] from each subtree's: independent given the parent."""
    return reduce(lambda joint, table: (joint[..., :, None] * table[..., None, :]).flatten(-2), tables)


def _both_present(joint: Tensor, tokens: int) -> Tensor:
    """P[y_l = 1, y_m = 1] for all pairs of tokens."""

    def both(l: int, m: int) -> Tensor:
        chosen = joint[(..., *(1 if i in (l, m) else slice(None) for i in range(tokens)))]
        return chosen.reshape(*joint.shape[:-tokens], -1).sum(-1)

    return torch.stack([torch.stack([both(l, m) for m in range(tokens)], -1) for l in range(tokens)], -2)


def _meeting_heights(widths: list[int]) -> Tensor:
    """The height of the lowest common ancestor of every pair of tokens."""
    node = torch.arange(widths[-1])
    height = torch.zeros(widths[-1], widths[-1], dtype=torch.int64)
    for lower, upper in pairwise([*reversed(widths), 1]):
        height += node[:, None] != node  # they had not met below this level
        node = node // (lower // upper)
    return height
