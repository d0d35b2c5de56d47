"""The flow of Scan and Snap's decoder and attention logits. `joma.theory.scan_snap` is the public face."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from joma.host.arguments import Number, as_tensor, at_least_dims, common_shape, floating, integer, not_negative, shown
from joma.host.words import brief_repr
from joma.theory.flow import integrate_together

Norm = Literal["unit", "softmax", "none"]
"""What c is divided by: its 2-norm, as on the slides; its sum, as in softmax attention; nothing."""


def attended_unchecked(p: Tensor, z: Tensor, norm: str) -> Tensor:
    """`attended` of tensors that were checked. The largest term is divided out first, so that nothing overflows."""
    if norm == "none":
        return p * z.exp()
    there = p > 0
    logits = torch.where(there, torch.where(there, p, 1.0).log() + z, -torch.inf)  # no gradient is NaN where p = 0
    return _normalised(logits, norm)


def _normalised(logits: Tensor, norm: str) -> Tensor:
    if norm == "softmax":
        return logits.softmax(-1)
    c = (logits - logits.detach().amax(-1, keepdim=True)).exp()
    return c.div(torch.linalg.vector_norm(c, dim=-1, keepdim=True))


def pulled_back(f: Tensor, upstream: Tensor, norm: str) -> Tensor:
    """(df/dz)^T upstream."""
    if norm == "none":
        return f * upstream
    along = (f * upstream).sum(-1, keepdim=True)
    return f * (upstream - (along if norm == "softmax" else f * along))


@brief_repr
class Weights(NamedTuple):
    """Both halves of the model, or their velocity: y (..., tokens, columns) and z (..., queries, tokens).

    >>> Weights(y=torch.zeros(3, 2), z=torch.zeros(1, 3))
    Weights(y=float32[3, 2], z=float32[1, 3])
    """

    y: Tensor
    z: Tensor


@brief_repr
class Path(NamedTuple):
    """A flow over time.

    y (steps, ..., tokens, columns) and z (steps, ..., queries, tokens) are the weights. growth (steps, ..., classes,
    tokens) is B as each token of each class has it, int z_l' / f_nl^2 dt; 0 where the class lacks the token. Under the
    premise of Theorem 3 the distinct tokens of a class agree.

    >>> Path(torch.zeros(5, 3, 2), torch.zeros(5, 1, 3), torch.zeros(5, 2, 3)).z.shape
    torch.Size([5, 1, 3])
    """

    y: Tensor
    z: Tensor
    growth: Tensor


@brief_repr
@dataclass(frozen=True)
class ScanSnap:
    """The classes of sequences, and the expected-gradient flow of Y and Z on them.

    - p: (..., classes, tokens), P(l|n), each class summing to 1. Class n is followed by output n.
    - query: (classes,) which query each class ends in; all in one unless given
    - vocabulary: M, outputs that compete; at least the classes, and as many unless given. Those that follow no class
      move as one, so they share one column of Y, the last.
    - prior: (classes,) how frequent the classes are; equally unless given
    - norm: what c is divided by, see `attended`
    - rate_y, rate_z: eta_Y and eta_Z, numbers or (...), one per system of a batch

    >>> model = ScanSnap([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]], vocabulary=10)
    >>> path = model.solve([0.0, 20.0])
    >>> path.z[-1, 0]  # the common token loses, the distinct ones gain
    tensor([-0.3854,  0.1927,  0.1927], dtype=torch.float64)
    """

    p: Tensor
    query: Tensor | None = None
    vocabulary: int | None = None
    prior: Tensor | None = None
    norm: Norm = "unit"
    rate_y: Number = 1.0
    rate_z: Number = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", _probabilities(self.p, "p", "class", 2, "(..., classes, tokens)"))
        must_be_a_norm(self.norm)
        count = self.p.shape[-2]
        prior = [1 / count] * count if self.prior is None else self.prior
        prior = _probabilities(prior, "prior", "prior", 1, "(classes,)").to(self.p)
        if prior.shape != (count,):
            raise ValueError(f"prior must have shape ({count},), one number per class, got {tuple(prior.shape)}")
        words = count if self.vocabulary is None else integer(self.vocabulary, "vocabulary", count)
        query = torch.zeros(count, dtype=torch.int64) if self.query is None else as_tensor(self.query, "query")
        if query.shape != (count,) or query.dtype != torch.int64 or (query < 0).any():
            wanted = f"({count},), a whole number from 0 on for each class"
            raise ValueError(f"query must have shape {wanted}, got {query.dtype} {tuple(query.shape)}")
        for name, value in {"query": query.to(self.p.device), "prior": prior, "vocabulary": words}.items():
            object.__setattr__(self, name, value)
        assert self._lead is not None  # rates and p fit together

    @cached_property
    def _rates(self) -> tuple[Tensor, ...]:
        """eta_Y and eta_Z, each (..., 1, 1)."""
        given = {"rate_y": self.rate_y, "rate_z": self.rate_z}
        return tuple(not_negative(rate, name).to(self.p)[..., None, None] for name, rate in given.items())

    @cached_property
    def _lead(self) -> torch.Size:
        """The leading dimensions of the batch."""
        rate_y, rate_z = (rate.shape[:-2] for rate in self._rates)
        return common_shape(p=self.p.shape[:-2], rate_y=rate_y, rate_z=rate_z)

    @property
    def columns(self) -> int:
        """Columns of Y: one per class, and one more for all outputs that follow none."""
        return self.p.shape[-2] + (self._spare > 0)

    @property
    def queries(self) -> int:
        """Rows of z."""
        return int(self._query.max()) + 1

    @property
    def _query(self) -> Tensor:
        return cast(Tensor, self.query)

    @property
    def _prior(self) -> Tensor:
        return cast(Tensor, self.prior)

    @property
    def _spare(self) -> int:
        return cast(int, self.vocabulary) - self.p.shape[-2]

    @cached_property
    def _copies(self) -> Tensor:
        """How many outputs a column stands for."""
        return self.p.new_tensor([1.0] * self.p.shape[-2] + [float(self._spare)] * (self._spare > 0))

    @cached_property
    def _constants(self) -> tuple[Tensor, Tensor, Tensor]:
        """Targets and weights of the errors, (classes, columns); how frequent a class is, in the row of its query."""
        targets = torch.eye(self.p.shape[-2], self.columns, dtype=self.p.dtype, device=self.p.device)
        member = torch.nn.functional.one_hot(self._query, self.queries).mT.to(self.p)
        return targets, self._prior[:, None] / self._copies, member * self._prior

    def start(self) -> Weights:
        """Y = 0 and z = 0, from where the slides begin, one for every system of the batch."""
        tokens = self.p.shape[-1]
        shapes = (tokens, self.columns), (self.queries, tokens)
        return Weights(*(self.p.new_zeros(*self._lead, *shape) for shape in shapes))

    def attended(self, z: Number) -> Tensor:
        """f of every class, (..., classes, tokens), under z (..., queries, tokens)."""
        return self._attended(self._checked(z=z)[0])

    def _attended(self, z: Tensor) -> Tensor:
        own = z[..., self._query, :]
        return self.p * own.exp() if self.norm == "none" else _normalised(self.p.log() + own, self.norm)

    def predicted(self, y: Number, z: Number) -> Tensor:
        """alpha: the share of each column in the prediction of every class, (..., classes, columns)."""
        y, z = self._checked(y=y, z=z)
        return self._share(self._attended(z), y)

    def _share(self, f: Tensor, y: Tensor) -> Tensor:
        return (f @ y + self._copies.log()).softmax(-1)

    def velocity(self, y: Number, z: Number) -> Weights:
        """Y' and z', the right-hand side of the flow, for y (..., tokens, columns) and z (..., queries, tokens)."""
        return self._velocity(*self._checked(y=y, z=z))[0]

    def _velocity(self, y: Tensor, z: Tensor) -> tuple[Weights, Tensor]:
        f = self._attended(z)
        targets, weights, by_query = self._constants
        error = targets - self._share(f, y)
        pulled = pulled_back(f, error @ y.mT, self.norm)  # (..., classes, tokens)
        fast, slow = self._rates
        return Weights(fast * (f.mT @ (weights * error)), slow * (by_query @ pulled)), f

    def solve(
        self, t: Number, *, y0: Number | None = None, z0: Number | None = None, rtol: float = 1e-11, atol: float = 1e-12
    ) -> Path:
        """Y, z and the growth B along the flow at times t (steps,), from y0 and z0 at t = 0 (zeros unless given)."""
        if self.p.dtype != torch.float64:
            raise ValueError(f"a flow is followed in float64: p must be float64, got {self.p.dtype}")
        start = self.start()
        y, z = (
            begin if given is None else self._checked(**{name: given})[0].expand_as(begin)
            for name, given, begin in (("y", y0, start.y), ("z", z0, start.z))
        )
        there = (self.p > 0).expand(*y.shape[:-2], *self.p.shape[-2:])

        def field(time: float, y: Tensor, z: Tensor, growth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            moving, f = self._velocity(y, z)
            speed = moving.z[..., self._query, :] / torch.where(there, f, 1.0).square()
            return moving.y, moving.z, torch.where(there, speed, 0.0)

        begin = (y, z, torch.zeros(there.shape, dtype=torch.float64, device=self.p.device))
        return Path(*integrate_together(field, begin, t, rtol=rtol, atol=atol))

    def _checked(self, **state: Number) -> list[Tensor]:
        """y and z of this model's shapes and type, cheap because a flow asks at every step."""
        tokens = self.p.shape[-1]
        wanted = {"y": (tokens, self.columns), "z": (self.queries, tokens)}
        found = []
        for name, value in state.items():
            tensor = floating(value, name)
            if tensor.shape[-2:] != wanted[name]:
                shape = f"(..., {wanted[name][0]}, {wanted[name][1]})"
                raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
            common_shape(p=self.p.shape[:-2], **{name: tensor.shape[:-2]})
            found.append(tensor.to(self.p))
        return found


def must_be_a_norm(norm: object) -> None:
    if not isinstance(norm, str) or norm not in get_args(Norm):
        raise ValueError(f"norm must be 'unit', 'softmax' or 'none', got {shown(norm)}")


def _probabilities(value: Number, name: str, each: str, dims: int, shape: str) -> Tensor:
    """Numbers whose rows sum to 1; a wrong one is told by the first class that is wrong."""
    p = at_least_dims(not_negative(value, name), name, dims, shape)
    if 0 in p.shape:
        raise ValueError(f"{name} must hold at least one {each} and one token, got shape {tuple(p.shape)}")
    total = p.sum(-1)
    if (total == 0).any():
        raise ValueError(f"{name} must give every {each} at least one token, {each} {_first(total == 0)} has none")
    tolerance = 8 * math.sqrt(p.shape[-1]) * torch.finfo(p.dtype).eps
    if (wrong := (total - 1).abs() > max(tolerance, 1e-9)).any():
        sums = f"{each} {_first(wrong)} sums to {total[wrong].flatten()[0].item():.6g}"
        raise ValueError(f"{name} must sum to 1 in every {each}, {sums}")
    return p


def _first(where: Tensor) -> int:
    """The last index of the first entry that is true; 0 of a single number."""
    return int(where.nonzero()[0][-1]) if where.ndim else 0
