"""Finite groups as multiplication tables with their real representations, and the samples that teach one to a network.

Li2 (Tian 2025, arXiv 2509.21519) says that a two-layer network generalises a group operation of M elements from about
c M ln M of the M^2 pairs on, and that its hidden nodes become functions of single irreducible representations. Real
functions on a group split into one part per irreducible representation, complex ones taken together with their
conjugates (`energy_by_representation`). The paper's text was not at hand: the form is that of its abstract and
summaries, and the constant of `pairs_needed` is that of the author's code.
"""

import re
from itertools import product
from math import log, prod
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, real
from joma.host.words import brief_repr
from joma.theory._guard import guarded

PAIRS = 2.7482
"""Of M ln M: from how many pairs on a network generalises, by the author's code."""
LARGEST = 512
"""Elements of a group: its projections hold a matrix of all pairs for each representation."""


@brief_repr
class Group(NamedTuple):
    """A group of M elements, the first of which is the neutral one; see `group`."""

    name: str
    """Such as Z7, Z2xZ4 or D5."""
    table: Tensor
    """(M, M) int64: the product of two elements."""
    characters: Tensor
    """(representations, M): of each irreducible one, the trivial one first, complex ones added to their conjugates."""
    degrees: Tensor
    """(representations,): rows of a matrix of each; a complex one counts once, and its conjugate is not listed."""

    @property
    def order(self) -> int:
        """M, the number of elements."""
        return len(self.table)

    @property
    def inverse(self) -> Tensor:
        """(M,): the inverse of each element."""
        return (self.table == 0).int().argmax(1)


def group(name: str) -> Group:
    """A group by its name: Zn is cyclic, ZnxZm a product of cyclic ones, Dn all symmetries of a polygon with n corners.

    >>> klein = group("Z2xZ2")
    >>> klein.order, len(klein.degrees), group("D5").degrees.tolist()
    (4, 4, [1, 1, 2, 2])
    """
    if re.fullmatch(r"Z\d+(xZ\d+)*", name):
        orders, fewest, copies = [int(order) for order in re.findall(r"\d+", name)], 2, 1
    elif re.fullmatch(r"D\d+", name):
        orders, fewest, copies = [int(name[1:])], 3, 2
    else:
        raise ValueError(f"a group is called Z7, Z2xZ4 or D5, got {name!r}")
    if min(orders) < fewest or copies * prod(orders) > LARGEST:
        raise ValueError(f"cyclic parts need 2 elements, polygons 3 corners, groups at most {LARGEST}, got {name}")
    return Group(name, *(_abelian(*orders) if copies == 1 else _dihedral(*orders)))


def _abelian(*orders: int) -> tuple[Tensor, Tensor, Tensor]:
    """Elements and frequencies are tuples; the frequencies f and -f belong to one real representation."""
    elements = torch.tensor(list(product(*map(range, orders))))
    sizes = torch.tensor(orders)
    places = sizes.flip(0).cumprod(0).flip(0) // sizes  # of one digit among all elements
    table = ((elements[:, None] + elements) % sizes * places).sum(-1)
    mirrored = ((-elements) % sizes * places).sum(-1)
    kept = torch.arange(len(elements)) <= mirrored
    phase = (elements[kept].double() / sizes) @ elements.double().T
    twice = 1 + (torch.arange(len(elements)) != mirrored)[kept].double()
    characters = twice[:, None] * torch.cos(2 * torch.pi * phase)
    return table, characters, torch.ones(len(characters), dtype=torch.long)


def _dihedral(corners: int) -> tuple[Tensor, Tensor, Tensor]:
    """Element k is the rotation by k corners, element corners + k that rotation after a reflection."""
    place = torch.arange(2 * corners)
    turn, flipped = place % corners, place >= corners
    sign = 1 - 2 * flipped.long()
    table = (turn[:, None] + sign[:, None] * turn) % corners + corners * (flipped[:, None] ^ flipped)
    even = [torch.ones(2 * corners, dtype=torch.double), sign.double()]
    if corners % 2 == 0:
        alternating = 1.0 - 2 * (turn % 2)
        even += [alternating.double(), (alternating * sign).double()]
    angle = 2 * torch.pi * turn.double() / corners
    planes = [2 * torch.cos(h * angle) * ~flipped for h in range(1, (corners + 1) // 2)]
    degrees = torch.tensor([1] * len(even) + [2] * len(planes))
    return table, torch.stack(even + planes), degrees


def projections(of: Group) -> Tensor:
    """(representations, M, M): what takes from a function on the group its part of each representation.

    They are orthogonal projections that add up to the identity.

    >>> projections(group("Z3")).sum(0).allclose(torch.eye(3, dtype=torch.double))
    True
    """
    quotients = of.table[:, of.inverse]  # x y⁻¹; characters are real, so that those of an inverse are the same
    return of.degrees[:, None, None] * of.characters[:, quotients] / of.order


@guarded
def energy_by_representation(weights: Number, of: Group) -> Tensor:
    """(..., representations): the part of the squared norm of a function on the group in each representation.

    weights: (..., M), one number for each element.

    >>> wave = torch.cos(2 * torch.pi * 2 * torch.arange(7) / 7)
    >>> energy_by_representation(wave, group("Z7")).round(decimals=3)
    tensor([0.0000, 0.0000, 3.5000, 0.0000], dtype=torch.float64)
    """
    values = real(weights, "weights").double()
    if values.ndim == 0 or values.shape[-1] != of.order:
        raise ValueError(f"weights must have a number for each of the {of.order} elements last")
    return (torch.einsum("rxy,...y->...rx", projections(of).to(values.device), values) ** 2).sum(-1)


def pairs_needed(order: int, constant: float = PAIRS) -> float:
    """constant M ln M: from how many pairs on a network generalises the operation of a group of M elements.

    >>> round(pairs_needed(71))
    832
    """
    if order < 2:
        raise ValueError(f"a group to learn has at least 2 elements, got {order}")
    return constant * order * log(order)
