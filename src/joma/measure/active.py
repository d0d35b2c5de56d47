"""Which heads and neurons a token needs: contextual sparsity (Deja Vu), and how well the set can be predicted.

A layer adds up what its units give: y = sum_i y_i over heads, or over neurons. The contribution of a unit is |y_i|:

    head     |v_i O_i|       v_i what the head mixed, O_i its rows of the output matrix
    neuron   |a_i| |w_i|     a_i its activation, w_i its row of the output matrix

Leaving units out changes y by at most the sum of their contributions. So a set of units carries a share of the output:
the sum of its contributions over the sum of all. `carrying` asks how many units carry a given share, `carried` what a
given set carries, and `fit_predictor` tells contributions from something that is known earlier, for `agreement`.

Contributions are (..., tokens, units). Matrices are written as x @ output, so that rows belong to units: that is the
transpose of torch.nn.Linear's weight. Numbers are float32, float64 for float64 inputs.
"""

from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, as_tensor, at_least_dims, common_shape, integer, not_negative, number, real
from joma.host.words import brief, brief_repr
from joma.measure._gram import compute_dtype


def neuron_contributions(hidden: Number, output: Number) -> Tensor:
    """|activation| times the length of the neuron's row of the output matrix, (..., tokens, neurons).

    hidden (..., tokens, neurons), output (..., neurons, width).

    >>> neuron_contributions([[1.0, -2.0]], [[3.0, 4.0], [0.0, 1.0]])
    tensor([[5., 2.]], dtype=torch.float64)
    """
    hidden, output = _exact(hidden, "hidden"), _exact(output, "output")
    if hidden.ndim < 2 or output.ndim < 2 or hidden.shape[-1] != output.shape[-2] or not output.shape[-1]:
        wanted = "(..., tokens, neurons) and (..., neurons, width)"
        raise ValueError(f"hidden and output must be {wanted}, got {tuple(hidden.shape)} and {tuple(output.shape)}")
    common_shape(hidden=hidden.shape[:-2], output=output.shape[:-2])
    return hidden.abs() * _lengths(output)[..., None, :]


def head_contributions(mixed: Number, output: Number) -> Tensor:
    """The length of what each head adds to the stream, (..., tokens, heads).

    mixed (..., heads, tokens, head width): the values that each head mixed. output (..., heads * head width, width).

    >>> head_contributions([[[3.0, 4.0]], [[0.0, 1.0]]], [[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 2.0]])
    tensor([[5., 2.]], dtype=torch.float64)
    """
    mixed, output = _exact(mixed, "mixed"), _exact(output, "output")
    size = mixed.shape[-3] * mixed.shape[-1] if mixed.ndim > 2 else 0
    if output.ndim < 2 or 0 in output.shape[-2:] or size != output.shape[-2]:
        wanted = "(..., heads, tokens, head width) and (..., heads * head width, width), none of the widths 0"
        raise ValueError(f"mixed and output must be {wanted}, got {tuple(mixed.shape)} and {tuple(output.shape)}")
    common_shape(mixed=mixed.shape[:-3], output=output.shape[:-2])
    dtype = torch.promote_types(mixed.dtype, output.dtype)
    slices = output.to(dtype).unflatten(-2, (mixed.shape[-3], -1))
    # |v O| = |v R^T| with O^T = Q R: no tensor of tokens x width, and no squares whose differences would be lost
    return _lengths(mixed.to(dtype) @ torch.linalg.qr(slices.mT, mode="r").R.mT).mT


def carrying(contributions: Number, share: float) -> Tensor:
    """The least share of the units that carries a given share of the output, (..., tokens).

    A token without any contribution needs no unit.

    >>> carrying([[8.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]], 0.8)
    tensor([0.2500, 1.0000], dtype=torch.float64)
    """
    each, level = _contributions(contributions), _share(share, "share")
    sums = each.sort(-1, descending=True).values.cumsum(-1)
    total = sums[..., -1:]
    slack = 1 - 8 * torch.finfo(each.dtype).eps  # sums of equal parts are not quite equal
    lacking = (sums < level * total * slack).sum(-1)
    return torch.where(total[..., 0] > 0, (lacking + 1).to(each) / each.shape[-1], 0.0)


def active(scores: Number, budget: float) -> Tensor:
    """The set of the units with the largest scores, (..., tokens, units) in bool; of equal ones the earlier.

    budget: the share of the units that may be kept, rounded to a number of units and at least one.

    >>> active([[0.1, 0.7, 0.2, 0.0]], 0.5)
    tensor([[False,  True,  True, False]])
    """
    scores = at_least_dims(_exact(scores, "scores", finite=False), "scores", 1, "(..., units)")
    if not scores.shape[-1]:
        raise ValueError(f"scores must hold at least one unit, got {tuple(scores.shape)}")
    count = units_of(budget, scores.shape[-1])
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True)


def units_of(budget: float, units: int) -> int:
    """How many units a share of them is: rounded, at least one.

    >>> units_of(0.2, 8), units_of(0.01, 8)
    (2, 1)
    """
    return max(1, round(_share(budget, "budget") * number(integer(units, "units", 1), "units")))


def carried(contributions: Number, sets: Number) -> Tensor:
    """The share of the output that a set of units carries, (..., tokens); 1 where there is nothing to carry.

    sets: bool, (..., tokens, units), or (..., 1, units) for one set of all tokens.

    >>> carried([[8.0, 1.0, 1.0, 0.0]], [[True, True, False, False]])
    tensor([0.9000], dtype=torch.float64)
    """
    each = _contributions(contributions)
    chosen = as_tensor(sets, "sets").to(each.device)
    if chosen.dtype != torch.bool:
        raise ValueError(f"sets must be bool, got {chosen.dtype}")
    try:
        chosen = chosen.expand(each.shape)
    except RuntimeError:
        raise ValueError(f"sets must broadcast to {tuple(each.shape)}, got {tuple(chosen.shape)}") from None
    total = each.sum(-1)
    return torch.where(total > 0, (each * chosen).sum(-1) / torch.where(total > 0, total, 1.0), 1.0)


def typical(contributions: Number) -> Tensor:
    """Mean over tokens of each unit's share of the output, (..., 1, units): its largest make the static set.

    >>> typical([[3.0, 1.0], [1.0, 1.0]])
    tensor([[0.6250, 0.3750]], dtype=torch.float64)
    """
    return _shares(_contributions(contributions)).mean(-2, keepdim=True)


@brief_repr
class Predictor(NamedTuple):
    """A linear map from what is known earlier to each unit's share of the output.

    weight (..., features, units), bias (..., 1, units). Call it with features (..., tokens, features).

    >>> predictor = fit_predictor([[0.0], [1.0], [2.0]], [[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]], ridge=0.0)
    >>> predictor([[2.0]]).round(decimals=3)
    tensor([[0.7500, 0.2500]], dtype=torch.float64)
    >>> predictor
    Predictor(weight=float64[1, 2], bias=float64[1, 2])
    """

    weight: Tensor
    bias: Tensor

    def __call__(self, features: Number) -> Tensor:
        """Scores (..., tokens, units)."""
        known = at_least_dims(real(features, "features"), "features", 2, "(..., tokens, features)")
        if known.shape[-1] != self.weight.shape[-2]:
            raise ValueError(f"features must be {self.weight.shape[-2]} per token, got {known.shape[-1]}")
        return known.to(self.weight) @ self.weight + self.bias


def fit_predictor(features: Number, contributions: Number, *, ridge: float = 0.01) -> Predictor:
    """Ridge regression of each unit's share of the output on features (..., tokens, features), leading dimensions each.

    ridge: in units of the mean variance of a feature, per token. Fit it on other tokens than it is asked about.

    >>> import torch
    >>> x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    >>> units = torch.stack([x[:, 0] + 5, x[:, 1] + 5, 10 - x[:, 0] - x[:, 1]], -1)
    >>> predictor = fit_predictor(x[:100], units[:100])
    >>> bool((active(predictor(x[100:]), 0.34) == active(units[100:], 0.34)).double().mean() > 0.98)
    True
    """
    x, each = _exact(features, "features"), _contributions(contributions)
    if x.ndim < 2 or x.shape[:-1] != each.shape[:-1]:
        shapes = f"{tuple(x.shape)} and {tuple(each.shape)}"
        raise ValueError(f"features and contributions must agree in all dimensions but the last, got {shapes}")
    if not x.shape[-1]:
        raise ValueError(f"features must be at least one per token, got {tuple(x.shape)}")
    least = number(ridge, "ridge", least=0.0)
    x, y = x.double(), _shares(each).double()
    size = x.abs().amax((-2, -1), keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    x = x / size  # no square leaves the range
    means = x.mean(-2, keepdim=True), y.mean(-2, keepdim=True)
    x, y = x - means[0], y - means[1]
    gram = x.mT @ x
    level = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    # A feature that never varies leaves the matrix singular without a ridge: rounding's own is added.
    lifted = gram + (least + 1e-12) * level.clamp(min=1e-300) * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    weight = torch.linalg.solve(lifted, x.mT @ y)
    return Predictor((weight / size).to(each), (means[1] - means[0] @ weight).to(each))


class Agreement(NamedTuple):
    """What sets of one size carry of the output, mean over tokens, each (...).

    best: the largest units of each token, the most that a set of this size can carry. predicted: those with the
    largest predicted scores. static: one set for all tokens. permuted: predicted for another token. random: any set, on
    average.

    >>> agreement([[3.0, 1.0], [1.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]], [[2.0, 1.0]], 0.5)
    Agreement(best=0.75, predicted=0.75, static=0.5, permuted=0.25, random=0.5)
    """

    best: Tensor
    predicted: Tensor
    static: Tensor
    permuted: Tensor
    random: Tensor

    def __repr__(self) -> str:
        if self.best.ndim:
            return brief(self)
        return f"Agreement({', '.join(f'{name}={value:g}' for name, value in self._asdict().items())})"


def agreement(contributions: Number, scores: Number, usual: Number, budget: float) -> Agreement:
    """What the predicted set carries, beside the best set and three controls.

    contributions, scores (..., tokens, units): what happened, and what a predictor said. usual (..., 1, units): scores
    that are the same for all tokens, as `typical` of other tokens gives them.
    """
    each = _contributions(contributions)
    said, same = _exact(scores, "scores", finite=False), _exact(usual, "usual", finite=False)
    if said.shape != each.shape:
        raise ValueError(f"scores must have the shape of contributions, {tuple(each.shape)}, got {tuple(said.shape)}")
    if same.shape[-1:] != each.shape[-1:] or common_shape(contributions=each.shape, usual=same.shape) != each.shape:
        raise ValueError(f"usual must be (..., 1, {each.shape[-1]}), one score per unit, got {tuple(same.shape)}")
    sets = {
        "best": active(each, budget),
        "predicted": active(said, budget),
        "static": active(same, budget).to(each.device),
        "permuted": active(said, budget).roll(ceil(each.shape[-2] / 2), -2),
    }
    found = {name: carried(each, chosen).mean(-1) for name, chosen in sets.items()}
    share = units_of(budget, each.shape[-1]) / each.shape[-1]
    return Agreement(**found, random=torch.full_like(found["best"], share))


def _shares(each: Tensor) -> Tensor:
    """Of every token's output; 0 where there is none."""
    return each / each.sum(-1, keepdim=True).clamp(min=torch.finfo(each.dtype).tiny)


def _lengths(x: Tensor) -> Tensor:
    """Over the last dimension, of numbers whose squares may leave the range."""
    size = x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    length: Tensor = torch.linalg.vector_norm(x / size, dim=-1) * size[..., 0]
    return length


def _exact(given: Number, name: str, *, finite: bool = True) -> Tensor:
    found = real(given, name, finite=finite).detach()
    return found.to(compute_dtype(found))


def _contributions(given: Number) -> Tensor:
    each = not_negative(given, "contributions").detach()
    if each.ndim < 2 or not each.shape[-1] or not each.shape[-2]:
        raise ValueError(f"contributions must be (..., tokens, units), none of them 0, got {tuple(each.shape)}")
    return each.to(compute_dtype(each))


def _share(given: float, name: str) -> float:
    share = number(given, name)
    if not 0 < share <= 1:
        raise ValueError(f"{name} must be a share above 0 and at most 1, got {share:g}")
    return share
