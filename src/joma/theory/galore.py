"""Why a gradient might become low rank, and what training in a low-rank space costs (GaLore, Zhao et al. 2024).

G is the negative gradient of a loss by a weight matrix W (m, n): gradient descent is W <- W + rate G. Its form is

    G = mean_i (A_i - B_i W C_i),    B_i and C_i symmetric and positive semidefinite.

While A, B and C stand still, G_t = (1 - rate S)^t G_0 with the operator S = mean_i B_i x C_i. So the part of G along
the eigenvalue with the largest |1 - rate lambda| outlives the others, and the stable rank |G|_F^2 / |G|_2^2 goes to
that of this part. Functions that end in `_as_printed` give what the paper prints, also where it is wrong.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import matrix_norm

from joma.host.arguments import Number, at_least_dims, common_shape, number, positive, real, times, together, within
from joma.host.words import brief_repr
from joma.theory._galore_spectrum import Spectrum, joined, operator_of, spectrum_of
from joma.theory._guard import guarded


@brief_repr
class Parts(NamedTuple):
    """A gradient in two orthogonal parts, each (..., m, n): part along one eigenvalue, rest along all others."""

    part: Tensor
    rest: Tensor


@guarded
def gradient(w: Number, a: Number, b: Number, c: Number) -> Tensor:
    """mean_i (A_i - B_i W C_i), the gradient form (eq. 8), shape (..., m, n).

    w: (..., m, n). a: (N, m, n). b: (N, m, m). c: (N, n, n). Differentiable.

    >>> gradient([[1.0, 2.0]], a=[[[5.0, 5.0]]], b=[[[2.0]]], c=[[[1.0, 0.0], [0.0, 3.0]]])
    tensor([[ 3., -7.]], dtype=torch.float64)
    """
    weight, given = at_least_dims(real(w, "w"), "w", 2, "(..., m, n)"), real(a, "a")
    left, right = _pair(b, c)
    if weight.shape[-2:] != given.shape[-2:] or given.ndim != 3:
        raise ValueError(f"a must have shape (N, m, n) with the m and n of w {tuple(weight.shape)}, got {_of(given)}")
    _must_fit(weight, "w", left, right)
    if len(given) != len(left):
        raise ValueError(f"a, b and c must hold equally many matrices, got {len(given)}, {len(left)} and {len(right)}")
    weight, given, left, right = joined(weight, given, left, right)
    return given.mean(0) - (left @ weight[..., None, :, :] @ right).mean(-3)


@guarded
def operator(b: Number, c: Number) -> Tensor:
    """S = mean_i B_i x C_i, (mn, mn), so that (S @ G.flatten()).view(m, n) = mean_i B_i G C_i.

    torch flattens row by row. The paper stacks columns and so writes C_i x B_i: the same operator.

    >>> operator(b=[[[2.0]]], c=[[[1.0, 0.0], [0.0, 3.0]]])
    tensor([[2., 0.],
            [0., 6.]], dtype=torch.float64)
    """
    return operator_of(*joined(*_pair(b, c)))


@guarded
def gradient_path(g: Number, b: Number, c: Number, t: Number, *, rate: float) -> Tensor:
    """G after t steps of gradient descent with constant A, B and C, by the eigenvectors of S, (..., steps, m, n).

    g: (..., m, n), the gradient at the start. t: whole numbers, (steps,). rate: the learning rate.

    >>> gradient_path([[1.0, 1.0]], b=[[[1.0]]], c=[[[1.0, 0.0], [0.0, 3.0]]], t=[0, 1, 2], rate=0.25)[:, 0]
    tensor([[1.0000, 1.0000],
            [0.7500, 0.2500],
            [0.5625, 0.0625]], dtype=torch.float64)
    """
    start, found, dtype, steps, eta = _problem(g, b, c, t, rate)
    factors = (1 - eta * found.values) ** steps[:, None]
    flat = (found.coordinates(start)[..., None, :] * factors) @ found.vectors.mT
    return flat.unflatten(-1, start.shape[-2:]).to(dtype)  # type: ignore[no-any-return]


@guarded
def split(g: Number, b: Number, c: Number) -> Parts:
    """The part of G in the lowest eigenspace of S, which the paper calls V_1, and the rest.

    >>> split([[2.0, 1.0]], b=[[[1.0]]], c=[[[1.0, 0.0], [0.0, 3.0]]]).rest
    tensor([[0., 1.]], dtype=torch.float64)

    Eigenvalues that differ by less than 1e-9 of the largest are one. Where B_i has full rank and C_i = f_i f_i^T does
    not span all inputs, V_1 is what no input sees. Then the part of a gradient is exactly zero:

    >>> split([[2.0, 0.0]], b=[[[1.0]]], c=[[[1.0, 0.0], [0.0, 0.0]]]).part
    tensor([[0., 0.]], dtype=torch.float64)
    """
    start, found, dtype = _given(g, b, c)
    return _parts(start, found, found.is_lowest(), dtype)


@guarded
def lasting(g: Number, b: Number, c: Number, *, rate: float) -> Parts:
    """The part of G that outlives the others under gradient descent, and the rest.

    It belongs to the eigenvalue with the largest |1 - rate lambda| of those that G has a part in. This is the lowest
    of them if rate (lowest + highest) < 2, and the highest if it is above 2.

    >>> lasting([[2.0, 1.0]], b=[[[1.0]]], c=[[[1.0, 0.0], [0.0, 3.0]]], rate=0.6).part
    tensor([[0., 1.]], dtype=torch.float64)
    """
    start, found, dtype = _given(g, b, c)
    _not_zero(start)
    return _parts(start, found, found.lasting(start, number(rate, "rate", above=0.0)), dtype)


@guarded
def stable_rank_bound(g: Number, b: Number, c: Number, t: Number, *, rate: float) -> Tensor:
    """An upper bound on the stable rank of G after t steps, (..., steps): Lemma 3.3, corrected.

    With L the lasting part of g, R the rest, and q the ratio of their largest |1 - rate lambda| to the power t,

        sr(G_t) <= (|L|_F^2 + q^2 |R|_F^2) / (|L|_2 - q |R|_F)^2   where |L|_2 > q |R|_F,

    and always sr(G_t) <= min(m, n). It holds at every rate and ends at sr(L).

    >>> stable_rank_bound([[2.0, 0.0], [0.0, 1.0]], b=[torch.eye(2)], c=[[[1.0, 0.0], [0.0, 3.0]]], t=[0, 9], rate=0.2)
    tensor([2.0000, 1.0020], dtype=torch.float64)
    """
    start, found, dtype, steps, eta = _problem(g, b, c, t, rate)
    _not_zero(start)
    lasts = found.lasting(start, eta)
    part, rest = (each.double() for each in _parts(start, found, lasts, torch.float64))
    slow, kept = found.slowest(~lasts & found.present(start), eta), found.slowest(lasts, eta)
    # (slow / kept)^steps, (..., steps); zero where nothing is left besides the kept part
    q = torch.where(kept > 0, slow / kept, torch.where(slow > 0, 1.0, 0.0))[..., None] ** steps
    top, size, left = (each[..., None] for each in (matrix_norm(part, 2), matrix_norm(part), matrix_norm(rest)))
    room = (top - q * left).clamp(min=0)
    bound = (size.square() + (q * left).square()) / room.square()
    return torch.where(room > 0, bound, torch.inf).clamp(max=min(start.shape[-2:])).to(dtype)


@guarded
def stable_rank_bound_as_printed(
    g: Number, b: Number, c: Number, t: Number, *, rate: float, start: Number | None = None
) -> Tensor:
    """Lemma 3.3 as it stands in print, (..., steps). It is no bound in general: see `stable_rank_bound`.

    With P the part of g in the lowest eigenspace of S, and lambda_1 < lambda_2 its two lowest eigenvalues,

        sr(P) + ((1 - rate lambda_2) / (1 - rate lambda_1))^(2t) |start - P|_F^2 / |P|_2^2.

    g is the gradient from which A, B and C stand still. start, (..., m, n), is that of the very first step, which the
    paper puts here; without it, g. Infinite where P is zero.

    >>> stable_rank_bound_as_printed([[2.0, 1.0]], b=[[[1.0]]], c=[[[1.0, 0.0], [0.0, 3.0]]], t=[0, 1], rate=0.2)
    tensor([1.2500, 1.0625], dtype=torch.float64)
    """
    own, found, dtype, steps, eta = _problem(g, b, c, t, rate)
    first = own if start is None else at_least_dims(real(start, "start"), "start", 2, "(..., m, n)").to(own)
    if first.shape[-2:] != own.shape[-2:]:
        raise ValueError(f"start must have the m and n of g {tuple(own.shape)}, got {_of(first)}")
    common_shape(g=own.shape, start=first.shape)
    _not_zero(own)
    low = found.is_lowest()
    part = _parts(own, found, low, torch.float64).part
    top, rest = matrix_norm(part, 2)[..., None], matrix_norm(first - part)[..., None]
    second = found.values[~low] if (~low).any() else found.values  # the lowest where there is no other
    shrink = ((1 - eta * second[0]).abs() / (1 - eta * found.values[0]).abs()) ** (2 * steps)
    there = top > found.least(own)[..., None]
    bound = (matrix_norm(part)[..., None].square() + shrink * rest.square()) / top.square()
    return torch.where(there, bound, torch.inf).to(dtype)


@guarded
def reversible_gradient(jacobian: Number, w: Number, f: Number, y: Number, *, degree: Number = 1.0) -> Tensor:
    """(J^T y - J^T J W f / degree) f^T, the gradient of |y - output|^2 / 2 by a weight (Theorem 3.2a), (..., m, n).

    jacobian: (..., K, m), of the output by W f. w: (..., m, n). f: (..., n), the input of the layer. y: (..., K).
    degree: the output is homogeneous of this degree in W f. Activations like ReLU have 1, which is what the paper
    prints; the product of the degrees of all powers above this layer otherwise, because J W f = degree * output.

    >>> reversible_gradient([[2.0]], w=[[3.0]], f=[1.0], y=[10.0])  # output = 2 W f
    tensor([[8.]], dtype=torch.float64)
    """
    j, weight, inputs, target = _layer(jacobian, w, f, y)
    power = positive(degree, "degree").to(j)
    leads = {"jacobian": j.shape[:-2], "w": weight.shape[:-2], "f": inputs.shape[:-1], "y": target.shape[:-1]}
    common_shape(degree=power.shape, **leads)
    output = (j @ weight @ inputs[..., None]) / power[..., None, None]
    return j.mT @ (target[..., None] - output) @ inputs[..., None, :]


@guarded
def softmax_gradient(jacobian: Number, w: Number, f: Number, y: Number) -> Tensor:
    """(J^T P y - gamma J^T P J W f / K) f^T, the gradient of the log-softmax loss (Theorem 3.2b), (..., m, n).

    P takes the mean away, and gamma = 1 / (1 + |P J W f|^2 / 2K). Its error is of second order in the logits: they must
    be small beside 1. The paper says small beside sqrt(K), and J where J^T must stand. Arguments as those of
    `reversible_gradient`; y sums to 1 and the logits are J W f.

    >>> softmax_gradient([[1.0], [0.0]], w=[[0.0]], f=[1.0], y=[1.0, 0.0])
    tensor([[0.5000]], dtype=torch.float64)
    """
    j, weight, inputs, target = _layer(jacobian, w, f, y)
    logits = (j @ weight @ inputs[..., None])[..., 0]
    logits, target = logits - logits.mean(-1, keepdim=True), target - target.mean(-1, keepdim=True)
    count = j.shape[-2]
    gamma = 1 / (1 + logits.square().sum(-1, keepdim=True) / (2 * count))
    return j.mT @ (target - gamma * logits / count)[..., None] @ inputs[..., None, :]


@guarded
def contraction(
    kappa: Number, top: Number, *, rate: Number, la: Number, lb: Number, lc: Number, w: Number, b: Number, c: Number
) -> Tensor:
    """By which factor |P^T G Q|_F can change in one step with fixed projections: Theorem 3.8, corrected.

        max(|1 - rate kappa|, |1 - rate top|) + rate (la + w (lb c + lc b))

    kappa and top: bounds below and above on the eigenvalues of the projected operator. la, lb and lc: Lipschitz
    constants of A, B and C in W (Frobenius norms). w, b and c: bounds on the spectral norms of W, B_i and C_i.

    >>> contraction(0.5, 2.0, rate=0.1, la=0.0, lb=0.1, lc=0.0, w=1.0, b=2.0, c=1.0)
    tensor(0.9600, dtype=torch.float64)
    """
    names = {"kappa": kappa, "top": top, "rate": rate, "la": la, "lb": lb, "lc": lc, "w": w, "b": b, "c": c}
    low, high, eta, of_a, of_b, of_c, weight, left, right = _not_negative(names)
    shrink = torch.maximum((1 - eta * low).abs(), (1 - eta * high).abs())
    return shrink + eta * (of_a + weight * (of_b * right + of_c * left))


@guarded
def contraction_as_printed(
    kappa: Number, *, rate: Number, la: Number, lb: Number, lc: Number, d: Number, factor: Number = 1.0
) -> Tensor:
    """The factor as it stands in print, 1 - rate (kappa - la - lb lc d^2), with d a bound on |W|.

    factor: what lb lc d^2 is multiplied with. The theorem has 1 and its proof 2. Both forget that B and C need not
    vanish at W = 0; `contraction` does not.

    >>> contraction_as_printed(0.5, rate=0.1, la=0.0, lb=0.1, lc=0.0, d=1.0)
    tensor(0.9500, dtype=torch.float64)
    """
    names = {"kappa": kappa, "rate": rate, "la": la, "lb": lb, "lc": lc, "d": d, "factor": factor}
    low, eta, of_a, of_b, of_c, weight, often = _not_negative(names)
    return 1 - eta * (low - of_a - often * of_b * of_c * weight.square())


@brief_repr
class Bytes(NamedTuple):
    """Memory of one weight matrix and its optimizer, in bytes, each (...); see `adam_bytes`."""

    weights: Tensor
    """The matrix itself, with adapters where there are any."""
    states: Tensor
    """Both moments of Adam."""
    projection: Tensor
    """GaLore's projector."""

    @property
    def total(self) -> Tensor:
        """All three."""
        return self.weights + self.states + self.projection


@guarded
def adam_bytes(m: Number, n: Number, *, itemsize: Number = 2.0) -> Bytes:
    """Adam on all of a matrix (m, n): m n numbers of weights and 2 m n of states, `itemsize` bytes each.

    >>> adam_bytes(512, 1376)
    Bytes(weights=1.409e+06, states=2.818e+06, projection=0)
    >>> adam_bytes(512, 1376).total
    tensor(4227072., dtype=torch.float64)
    """
    rows, columns, size = together(m=positive(m, "m"), n=positive(n, "n"), itemsize=positive(itemsize, "itemsize"))
    weights = rows * columns * size
    return Bytes(weights, 2 * weights, torch.zeros_like(weights))


@guarded
def galore_bytes(m: Number, n: Number, rank: Number, *, itemsize: Number = 2.0) -> Bytes:
    """GaLore with Adam: short * long of weights, 2 long rank of states, short rank of the projector on the short side.

    >>> galore_bytes(512, 1376, rank=128)
    Bytes(weights=1.409e+06, states=7.045e+05, projection=1.311e+05)
    """
    short, long, r, size = _ranked(m, n, rank, itemsize)
    return Bytes(short * long * size, 2 * long * r * size, short * r * size)


@guarded
def lora_bytes(m: Number, n: Number, rank: Number, *, itemsize: Number = 2.0) -> Bytes:
    """LoRA with Adam: two adapters of (m + n) rank numbers beside the weight, and two moments of each.

    >>> lora_bytes(512, 1376, rank=128)
    Bytes(weights=1.892e+06, states=9.667e+05, projection=0)
    """
    short, long, r, size = _ranked(m, n, rank, itemsize)
    adapters = (short + long) * r * size
    return Bytes(short * long * size + adapters, 2 * adapters, torch.zeros_like(adapters))


def _not_negative(given: dict[str, Number]) -> tuple[Tensor, ...]:  # and no more than any norm
    return together(**{name: within(value, name, 0.0, 1e300) for name, value in given.items()})


def _pair(b: Number, c: Number) -> tuple[Tensor, Tensor]:
    """B and C as (N, m, m) and (N, n, n)."""
    left, right = real(b, "b"), real(c, "c")
    for name, one in (("b", left), ("c", right)):
        if one.ndim != 3 or one.shape[-1] != one.shape[-2] or 0 in one.shape:
            raise ValueError(f"{name} must have shape (N, size, size), N square matrices, got {_of(one)}")
    if len(left) != len(right):
        raise ValueError(f"b and c must hold equally many matrices, got {len(left)} and {len(right)}")
    return left, right


def _given(g: Number, b: Number, c: Number) -> tuple[Tensor, Spectrum, torch.dtype]:
    """G in float64, the spectrum of S, and the type of G."""
    given = at_least_dims(real(g, "g"), "g", 2, "(..., m, n)")
    left, right = _pair(b, c)
    _must_fit(given, "g", left, right)
    start = given.double()
    return start, spectrum_of(left.to(start), right.to(start)), given.dtype


def _problem(
    g: Number, b: Number, c: Number, t: Number, rate: float
) -> tuple[Tensor, Spectrum, torch.dtype, Tensor, float]:
    start, found, dtype = _given(g, b, c)
    steps = times(t).to(start)
    if (steps != steps.round()).any():
        raise ValueError("t must hold whole numbers, counts of steps")
    return start, found, dtype, steps, number(rate, "rate", above=0.0)


def _must_fit(g: Tensor, name: str, left: Tensor, right: Tensor) -> None:
    if g.shape[-2:] != (left.shape[-1], right.shape[-1]):
        wanted = f"(..., m, n) with b (N, m, m) {_of(left)} and c (N, n, n)"
        raise ValueError(f"{name} must have shape {wanted}, got {_of(g)}")


def _layer(jacobian: Number, w: Number, f: Number, y: Number) -> tuple[Tensor, ...]:
    j = at_least_dims(real(jacobian, "jacobian"), "jacobian", 2, "(..., K, m)")
    weight = at_least_dims(real(w, "w"), "w", 2, "(..., m, n)")
    inputs, target = at_least_dims(real(f, "f"), "f", 1, "(..., n)"), at_least_dims(real(y, "y"), "y", 1, "(..., K)")
    if j.shape[-1] != weight.shape[-2] or weight.shape[-1] != inputs.shape[-1] or j.shape[-2] != target.shape[-1]:
        sizes = f"jacobian {_of(j)}, w {_of(weight)}, f {_of(inputs)} and y {_of(target)}"
        raise ValueError(f"sizes must be (K, m), (m, n), (n) and (K), got {sizes}")
    if 0 in (*j.shape[-2:], weight.shape[-1]):
        sizes = f"{_of(j)}, {_of(weight)}, {_of(inputs)}, {_of(target)}"
        raise ValueError(f"jacobian, w, f and y must not be empty, got {sizes}")
    common_shape(jacobian=j.shape[:-2], w=weight.shape[:-2], f=inputs.shape[:-1], y=target.shape[:-1])
    return joined(j, weight, inputs, target)


def _parts(g: Tensor, found: Spectrum, chosen: Tensor, dtype: torch.dtype) -> Parts:
    part = found.project(g, chosen)
    return Parts(part.to(dtype), (g - part).to(dtype))


def _not_zero(g: Tensor) -> None:
    if g.numel() and (g == 0).flatten(-2).all(-1).any():
        raise ValueError("g must not be zero: a zero matrix has no stable rank")


def _of(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _ranked(m: Number, n: Number, rank: Number, itemsize: Number) -> tuple[Tensor, ...]:
    given = {"m": m, "n": n, "rank": rank, "itemsize": itemsize}
    rows, columns, r, size = together(**{name: positive(value, name) for name, value in given.items()})
    short, long = torch.minimum(rows, columns), torch.maximum(rows, columns)
    if (r > short).any():
        raise ValueError(f"rank must be at most the shorter of m and n, got {r[r > short].flatten()[0].item():g}")
    return short, long, r, size
