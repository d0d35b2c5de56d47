"""The attention kinds of eq. 1: b = sigma(z) o x / A, with its pull-back (db/dz)^T."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from joma.host.arguments import (
    Number,
    common_shape,
    floating,
    integer,
    must_be_callable,
    not_negative,
    number,
    shown,
    together,
    within,
)
from joma.host.words import brief_repr
from joma.theory._guard import guarded, half_in_single

Kind = Literal["linear", "exp", "softmax"]
Sigma = Callable[[Tensor], Tensor]
_MOST_KEYS = 1e100
_ALL_ON_ONE = 1e3  # a gap between logits beyond which the smaller ones have weight 0 in every type


@brief_repr
@dataclass(frozen=True)
class Attention:
    """How logits z and token frequencies x become attention b, by `kind`, with T the `temperature` and A the `norm`.

    linear: b = (z/T) o x / A        exp: b = exp(z/T) o x / A        softmax: b = exp(z/T) o x / sum(exp(z/T) o x)

    `norm` is a constant of the first two; softmax makes its own. Any other pointwise sigma can be given as kind, as
    a function in place of the name (it then carries its own temperature).

    >>> Attention("softmax").weights(torch.zeros(2), torch.tensor([1.0, 3.0]))
    tensor([0.2500, 0.7500])
    """

    kind: Kind | Sigma = "exp"
    temperature: float = 1.0
    norm: float = 1.0

    def __post_init__(self) -> None:
        if not callable(self.kind) and self.kind not in ("linear", "exp", "softmax"):
            wanted = "'linear', 'exp', 'softmax' or a function"
            raise ValueError(f"kind of attention must be {wanted}, got {shown(self.kind)}")
        for name in ("temperature", "norm"):
            number(getattr(self, name), name, above=0)
        if self.kind == "softmax" and self.norm != 1.0:
            raise ValueError(f"softmax makes its own normaliser; norm must stay 1, got {self.norm!r}")
        if callable(self.kind) and self.temperature != 1.0:
            raise ValueError("a sigma given as a function carries its own temperature; leave temperature at 1")

    @half_in_single
    def weights(self, z: Number, x: Number) -> Tensor:
        """b of eq. 1. z and x broadcast, tokens last.

        Values are not checked, because this runs at every step of training: softmax makes NaN of a negative x.
        """
        z, x = floating(z, "z"), floating(x, "x")
        _check(z=z, x=x)
        return self.weights_unchecked(z, x)

    def weights_unchecked(self, z: Tensor, x: Tensor) -> Tensor:
        """`weights` for a caller that has checked types and shapes."""
        if self.kind == "softmax":
            # log x turns frequencies into logits: stable for large z, and x = 0 simply drops out
            return torch.softmax(z / self.temperature + x.log(), dim=-1)
        return self._sigma(z) * x / self.norm

    @half_in_single
    def pull_back(self, z: Number, x: Number, b: Number, upstream: Number) -> Tensor:
        """(db/dz)^T upstream, given b = weights(z, x). All four broadcast; values are not checked."""
        z, x, b, upstream = floating(z, "z"), floating(x, "x"), floating(b, "b"), floating(upstream, "upstream")
        shape = _check(z=z, x=x, b=b, upstream=upstream)
        return self.pull_back_unchecked(z, x, b.expand(shape), upstream).expand(shape)

    def pull_back_unchecked(self, z: Tensor, x: Tensor, b: Tensor, upstream: Tensor) -> Tensor:
        """`pull_back` for a caller that has checked types and shapes."""
        if self.kind == "softmax":
            return b * (upstream - (b * upstream).sum(-1, keepdim=True)) / self.temperature
        if self.kind == "exp":
            return b * upstream / self.temperature
        if self.kind == "linear":
            return (x * upstream / (self.norm * self.temperature)).expand_as(b)
        return derivative(self._sigma, z) * x * upstream / self.norm

    def _sigma(self, z: Tensor) -> Tensor:
        if callable(self.kind):
            return self.kind(z)
        return z / self.temperature if self.kind == "linear" else (z / self.temperature).exp()


def _check(**tensors: Tensor) -> torch.Size:
    """Their common shape. Cheap, because this runs at every step of a flow."""
    first, *others = tensors.values()
    if any(tensor.device != first.device for tensor in others):
        where = ", ".join(f"{name} {tensor.device}" for name, tensor in tensors.items())
        raise ValueError(f"all tensors must be on the same device, got {where}")
    if all(tensor.shape == first.shape for tensor in others):
        return first.shape
    return common_shape(**{name: tensor.shape for name, tensor in tensors.items()})


def derivative(function: Callable[[Tensor], Tensor], at: Number) -> Tensor:
    """f'(at) of a pointwise function, by autograd; differentiable again.

    >>> derivative(torch.square, torch.tensor([1.0, 3.0]))
    tensor([2., 6.])
    """
    return value_and_derivative(function, at)[1]


def value_and_derivative(function: Callable[[Tensor], Tensor], at: Number) -> tuple[Tensor, Tensor]:
    """f(at) and f'(at) of a pointwise function; both carry the graph of `at` if it has one, and else none.

    >>> value_and_derivative(torch.square, torch.tensor([1.0, 3.0]))
    (tensor([1., 9.]), tensor([2., 6.]))
    """
    must_be_callable(function, "function")
    at = floating(at, "at")
    graph = at.requires_grad and torch.is_grad_enabled()
    with torch.enable_grad():
        inner = at if graph else at.detach().requires_grad_()
        outer = function(inner)
        if outer.shape != at.shape:
            raise ValueError(f"function must be pointwise: of shape {tuple(at.shape)} it made {tuple(outer.shape)}")
        if not outer.requires_grad:  # a constant function
            return outer, torch.zeros_like(at)
        (slope,) = torch.autograd.grad(outer, inner, torch.ones_like(outer), create_graph=graph, retain_graph=graph)
    return (outer, slope) if graph else (outer.detach(), slope)


@guarded
def entropy(p: Number, *, dim: int = -1) -> Tensor:
    """-sum p ln p in nats, with 0 ln 0 = 0.

    - p: probabilities, or weights that are not negative
    - dim: over which to sum

    >>> entropy([0.5, 0.5, 0.0])
    tensor(0.6931, dtype=torch.float64)
    """
    probability = not_negative(p, "p")
    if not isinstance(dim, int) or not -max(probability.ndim, 1) <= dim < max(probability.ndim, 1):
        raise ValueError(f"dim must be a dimension of p, which has shape {tuple(probability.shape)}, got {shown(dim)}")
    return torch.sum(torch.special.entr(probability), dim)


def random_orthonormal(width: int, count: int, *, generator: torch.Generator) -> Tensor:
    """`count` orthonormal columns in `width` dimensions: the embeddings that Theorem 1 asks for. (width, count).

    >>> u = random_orthonormal(5, 3, generator=torch.Generator().manual_seed(0))
    >>> torch.allclose(u.mT @ u, torch.eye(3, dtype=torch.float64))
    True
    """
    if integer(count, "count", 1) > integer(width, "width", 1):
        raise ValueError(f"count must not exceed width: {count} orthonormal vectors do not fit into {width} dimensions")
    if not isinstance(generator, torch.Generator):
        raise ValueError(f"generator must be a torch.Generator, got {shown(generator)}")
    q, r = torch.linalg.qr(torch.randn(width, count, generator=generator, dtype=torch.float64))
    return torch.mul(q, r.diagonal().sign())


@guarded
def entropy_floor(size: Number, n: Number) -> Tensor:
    """The least entropy, in nats, of softmax over n logits whose distance from their mean is at most `size`.

    - size: |z - mean z|, the Euclidean length of a row of logits without its mean; not negative
    - n: how many keys, at least 1

    They broadcast; their common shape comes back. Zhai et al. (2023), Theorem 3.1, with sigma = size and T = n:

        ln(1 + (n - 1) b) + sigma sqrt(n (n - 1)) b / (1 + (n - 1) b),      b = exp(-sigma sqrt(n / (n - 1)))

    It holds as printed: searches find it attained, by one logit above n - 1 equal ones, and never undercut. Their sigma
    is |W_K W_Q'| |X X'| in spectral norms, which bounds the length of every row; inputs of width 2 suffice to attain
    it. Of their remark that this behaves like n sigma exp(-sigma), the condition is missing: n exp(-sigma) must be
    small. For fewer than about ln n nats of sigma the floor is near ln n, which that expression exceeds (ERRATA 51).
    With a scale before the softmax, as 1/sqrt(d), sigma has it too. It is theory: real rows lie far above it.

    >>> entropy_floor([0.0, 2.0, 8.0], 64)
    tensor([4.1589, 4.0411, 0.1765], dtype=torch.float64)
    """
    length, keys = together(size=not_negative(size, "size"), n=within(n, "n", 1, _MOST_KEYS))
    several = keys > 1
    others = torch.where(several, keys - 1, 1.0)
    gap = (length * (keys / others).sqrt()).clamp(max=_ALL_ON_ONE)
    return torch.where(several, _two_levels(gap, torch.ones_like(keys), others), 0.0 * length)


@guarded
def entropy_floor_of_range(span: Number, n: Number) -> Tensor:
    """The least entropy, in nats, of softmax over n logits of which no two differ by more than `span`.

    - span: largest logit minus smallest; not negative
    - n: how many keys, at least 1; whole, else it is a bound for the next smaller number

    They broadcast; their common shape comes back. Exact: alone, a logit between its limits never has the least entropy,
    since entropy is concave in the weight of one key. So m logits stand at the top and n - m at the bottom, with

        m / n  near  b (span - 1 + b) / (1 - b)^2,      b = exp(-span),

    which is 1/2 for a small span, and m = 1 for a large one. Differentiable in the span.

    >>> entropy_floor_of_range([0.0, 2.0, 8.0], 64)
    tensor([4.1589, 3.6844, 0.1865], dtype=torch.float64)
    """
    given, keys = together(span=not_negative(span, "span"), n=within(n, "n", 1, _MOST_KEYS))
    gap, keys = given.clamp(max=_ALL_ON_ONE), keys.floor()
    few = (keys * _share_at_the_top(gap)).floor().clamp(min=1)
    tops = (torch.minimum(each, (keys - 1).clamp(min=1)) for each in (few, few + 1))
    one, other = (_two_levels(gap, top, keys - top) for top in tops)
    return torch.minimum(one, other)


def _two_levels(gap: Tensor, top: Tensor, bottom: Tensor) -> Tensor:
    """The entropy of softmax over `top` equal logits and `bottom` ones that lie `gap` below them."""
    weight = bottom * (-gap).exp() / top
    return top.log() + torch.log1p(weight) + weight * gap / (1 + weight)


def _share_at_the_top(gap: Tensor) -> Tensor:
    """Where the entropy of two levels is least, if the share of logits at the top could be any number."""
    r = gap.detach().double()
    b = (-r).exp()
    near = r < 1e-3  # the closed form loses its digits there
    apart = torch.where(near, 0.5, -torch.expm1(-r))
    return torch.where(near, 0.5 - r / 6, b * (r + torch.expm1(-r)) / apart.square()).to(gap)
