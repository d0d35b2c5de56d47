"""How well hidden neurons stand for latent variables: the best neuron, the same on fresh samples, a linear probe.

The best of many neurons is good by chance too: of n neurons that know nothing, the best correlates with a latent by
nearly sqrt(2 ln n / samples). `best_neuron_correlation` is that score, as in Table 1 of the paper.
`held_out_correlation` chooses the neuron on some samples and scores it on others, which leaves no room for such luck.
Neither says what training did: for that, compare with the untrained network, and with permuted latents (which cost
least as further columns of `latents`).

A latent that does not vary over the samples has no correlation: it is left out and counted. Which ones are left out
depends on the latents alone, so that the scores of two networks on the same samples are means over the same latents.
A neuron that does not vary cannot be chosen. Where that leaves nothing to score with, the latent scores 0.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, as_numbers, as_tensor, common_shape, real, shown
from joma.host.words import brief_repr
from joma.measure._gram import compute_dtype
from joma.measure._standardised import paired, standardise

TOGETHER = 1 << 24  #: Entries of activity that are held in float64 at once.
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""From which a linear probe chooses, in units of the total variance of its neurons, each scaled to variance 1."""
LEAST_RIDGE = 1e-10  #: Below this, rounding regularises more than the ridge.


@brief_repr
class Alignment(NamedTuple):
    """How well single neurons stand for latents. Leading dimensions are those of activity and latents together.

    >>> activity, latent = torch.tensor([[7.0, 0.1], [7.0, 0.9], [7.0, 0.1]]), torch.tensor([[0], [1], [0]])
    >>> found = best_neuron_correlation(activity, latent)
    >>> found.neuron, found.score
    (tensor([1]), tensor(1.))
    """

    score: Tensor
    """(...) mean of `per_latent` over the latents that count; NaN where there is none."""
    per_latent: Tensor
    """(..., latents) correlation of the latent with its neuron; NaN for latents that do not vary."""
    neuron: Tensor
    """(..., latents) the neuron that was chosen; -1 for latents left out, and where no neuron varies."""
    excluded: Tensor
    """(...) how many latents were left out because they do not vary."""
    silent: Tensor
    """(...) how many of the others were scored 0, for their neuron does not vary (any more), or no neuron does."""


@brief_repr
class Probe(NamedTuple):
    """How well all neurons together tell the latents. Leading dimensions as in `Alignment`.

    >>> x = torch.arange(8.0)[:, None]
    >>> linear_probe(x[::2], 3 * x[::2], fresh_activity=x[1::2], fresh_latents=3 * x[1::2]).r2
    tensor([1.])
    """

    score: Tensor
    """(...) mean of `per_latent` over the latents that count; NaN where there is none."""
    per_latent: Tensor
    """(..., latents) correlation of latent and prediction on the fresh samples; NaN for latents that do not vary."""
    r2: Tensor
    """(..., latents) 1 - squared error / squared deviation from the mean, on the fresh samples; may be negative."""
    ridge: Tensor
    """(..., latents) the ridge that was used."""
    excluded: Tensor
    """(...) how many latents were left out because they do not vary."""
    silent: Tensor
    """(...) how many of the others were scored 0, for the prediction does not vary."""


def best_neuron_correlation(activity: Number, latents: Number, *, absolute: bool = False) -> Alignment:
    """For every latent its largest Pearson correlation with a neuron, and their mean: NCorr of Table 1.

    activity: (..., samples, neurons), one number per sample; the paper takes the maximum over positions. latents:
    (..., samples, latents), bool or real. Leading dimensions (ensemble members, blocks) broadcast. The paper does not
    speak of absolute values, so a neuron that falls when the latent rises does not count unless `absolute` says so.
    The neuron is chosen and scored on the same samples: see `held_out_correlation`.

    Constant columns are recognised exactly, the others are centred in float64, at any scale; a few neurons at a time,
    so that the activity may nearly fill the memory. Not differentiable.

    >>> latents = torch.tensor([[0, 1], [1, 1], [0, 1], [1, 1]])
    >>> activity = torch.tensor([[3.0, 0.1, 7.0], [1.0, 0.9, 7.0], [3.0, 0.0, 7.0], [1.0, 1.0, 7.0]])
    >>> found = best_neuron_correlation(activity, latents)
    >>> found.per_latent, found.neuron, found.excluded
    (tensor([0.9939,    nan]), tensor([ 1, -1]), tensor(1))
    >>> best_neuron_correlation(activity, latents, absolute=True).neuron
    tensor([ 0, -1])
    """
    return _of_single_neurons(absolute, activity=activity, latents=latents)


def held_out_correlation(
    activity: Number, latents: Number, *, fresh_activity: Number, fresh_latents: Number, absolute: bool = False
) -> Alignment:
    """The neuron chosen as in `best_neuron_correlation`, and scored on samples that had no part in the choice.

    fresh_activity: (..., fresh samples, neurons), fresh_latents: (..., fresh samples, latents). With `absolute` a
    neuron is chosen by |correlation| and keeps its sign: it scores below 0 where that turns out wrong. Neurons without
    any relation to the latents score 0 on average, however many there are. A latent counts if it varies in both sets
    of samples. A neuron that varied when it was chosen and does not vary on the fresh samples tells nothing there: it
    scores 0.

    >>> latent = torch.tensor([[0.0], [1.0], [0.0], [1.0]])
    >>> lucky = torch.tensor([[0.2, 0.0], [0.8, 1.0], [0.4, 0.0], [0.6, 1.0]])
    >>> fresh = torch.tensor([[0.2, 1.0], [0.8, 1.0], [0.3, 0.0], [0.7, 0.0]])
    >>> best_neuron_correlation(lucky, latent).score
    tensor(1.)
    >>> held_out_correlation(lucky, latent, fresh_activity=fresh, fresh_latents=latent).score
    tensor(0.)
    """
    fresh_samples = {"fresh_activity": fresh_activity, "fresh_latents": fresh_latents}
    return _of_single_neurons(absolute, activity=activity, latents=latents, **fresh_samples)


def _of_single_neurons(absolute: bool, **given: Number) -> Alignment:
    """The neuron chosen for each latent, scored where it was chosen or, if there are any, on the fresh samples."""
    tensors, lead = _checked(**given)
    parts = []
    with torch.no_grad():
        for some, known, *fresh in _groups(tensors, lead):
            value, neuron, varies = _best(some, known, absolute)
            score, silent = value.abs() if absolute else value, neuron < 0
            if fresh:
                index = neuron.clamp_min(0)[:, None].expand(-1, fresh[0].shape[-2], -1)
                again, moves, still_varies = paired(fresh[0].gather(-1, index), fresh[1])
                score = torch.where(silent, 0.0, again * value.sign() if absolute else again)
                varies, silent = varies & still_varies, silent | ~moves
            parts.append((score, neuron, varies, silent))
    value, neuron, varies, silent = _joined(parts, lead)
    score, per_latent, excluded, silent = _summary(value, varies, silent, compute_dtype(tensors["activity"]))
    return Alignment(score, per_latent, torch.where(varies, neuron, -1), excluded, silent)


def linear_probe(
    activity: Number, latents: Number, *, fresh_activity: Number, fresh_latents: Number, ridge: Number = RIDGES
) -> Probe:
    """Ridge regression of every latent on all neurons, scored on samples that had no part in the fit.

    With the neurons centred and scaled to length 1 over the samples (constant ones left out), m of them, and one
    centred latent y, the weights w minimise

        |y - X w|^2 + ridge m |w|^2

    in closed form: Cholesky's factorisation, on the side of the samples where they are fewer than the neurons. Since
    m = |X|_F^2, a ridge of 1 shrinks even a direction that holds all variance by half. Of several ridges each latent
    gets the one with the least squared error in two-fold cross-validation within the samples of the fit (halves of a
    fixed random order); the fresh samples have no say. Each ridge costs three factorisations of a side of
    min(samples, neurons) at most.

    Shapes as in `held_out_correlation`. r2 compares with the mean of the fresh samples themselves.

    >>> x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> y = x[:, :1] + x[:, 1:2]  # no single neuron
    >>> fresh = {"fresh_activity": x[100:], "fresh_latents": y[100:]}
    >>> round(held_out_correlation(x[:100], y[:100], **fresh).score.item(), 2)
    0.78
    >>> round(linear_probe(x[:100], y[:100], **fresh).score.item(), 6)
    1.0
    """
    fresh_samples = {"fresh_activity": fresh_activity, "fresh_latents": fresh_latents}
    given, lead = _checked(activity=activity, latents=latents, **fresh_samples)
    asked = real(ridge, "ridge").detach().double()
    if asked.ndim > 1 or not asked.numel() or bool((asked < LEAST_RIDGE).any()):
        raise ValueError(f"ridge must be a number or numbers of at least {LEAST_RIDGE:g}, got {shown(ridge)}")
    ridges = asked.reshape(-1).tolist()
    if len(ridges) > 1 and (samples := given["activity"].shape[-2]) < 4:
        raise ValueError(f"activity must have at least 4 samples to choose a ridge by halves, got {samples}")
    parts = []
    with torch.no_grad():
        for some, known, fresh, wanted in _groups(given, lead):
            target = standardise(known)
            choice = _choose(some, target.unit, ridges)
            prediction = _predict(some, target.unit, fresh, ridges, choice)
            value, moves, still_varies = paired(prediction, wanted)
            truth = target.place(wanted)
            deviation = (truth - truth.mean(-2, keepdim=True)).square().sum(-2)
            r2 = 1 - (truth - prediction).square().sum(-2) / deviation
            used = torch.tensor(ridges, dtype=torch.float64, device=choice.device)[choice]
            parts.append((value, r2, used, target.moves & still_varies, ~moves))
    value, r2, used, varies, silent = _joined(parts, lead)
    dtype = compute_dtype(given["activity"])
    score, per_latent, excluded, silent = _summary(value, varies, silent, dtype)
    return Probe(score, per_latent, torch.where(varies, r2, torch.nan).to(dtype), used.to(dtype), excluded, silent)


def _best(activity: Tensor, latents: Tensor, absolute: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Signed correlation of each latent with its best neuron, that neuron (-1: none), and which latents vary."""
    known = standardise(latents)
    step = max(1, TOGETHER // (activity.shape[0] * activity.shape[1]))
    pieces, moves = [], []
    for some in activity.split(step, dim=-1):
        columns = standardise(some)
        pieces.append((known.unit.mT @ columns.unit).clamp(-1.0, 1.0))
        moves.append(columns.moves)
    correlation, alive = torch.cat(pieces, dim=-1), torch.cat(moves, dim=-1)[:, None]  # (group, latents | 1, neurons)
    rank = correlation.abs() if absolute else correlation
    neuron = torch.where(alive, rank, -torch.inf).argmax(-1, keepdim=True)
    value = correlation.gather(-1, neuron)[..., 0]
    return value, torch.where(alive.any(-1), neuron[..., 0], -1), known.moves


def _choose(activity: Tensor, target: Tensor, ridges: Sequence[float]) -> Tensor:
    """The index of the ridge with the least squared error in two-fold cross-validation. (group, latents)."""
    group, samples, count = target.shape
    if len(ridges) == 1:
        return torch.zeros(group, count, dtype=torch.int64, device=target.device)
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(0)).to(target.device)
    one, other = order[: samples // 2], order[samples // 2 :]
    error = torch.zeros(len(ridges), group, count, dtype=torch.float64, device=target.device)
    for fit, held in ((one, other), (other, one)):
        found = _predictions(activity[:, fit], target[:, fit], activity[:, held], ridges)
        for k, prediction in enumerate(found):
            error[k] += (prediction - target[:, held]).square().sum(-2)
    return error.argmin(0)


def _predict(activity: Tensor, target: Tensor, fresh: Tensor, ridges: Sequence[float], choice: Tensor) -> Tensor:
    """What the fit says of the fresh samples, each latent with its own ridge. (group, fresh samples, latents)."""
    used = choice.unique().tolist()
    found = _predictions(activity, target, fresh, [ridges[k] for k in used])
    prediction = target.new_zeros(())
    for k, one in zip(used, found, strict=True):
        prediction = torch.where((choice == k)[:, None], one, prediction)
    return prediction


def _predictions(activity: Tensor, target: Tensor, fresh: Tensor, ridges: Sequence[float]) -> Iterator[Tensor]:
    # The Gram matrix has trace 1 (0 if all neurons are constant), so its condition is at most 1 + 1 / ridge.
    neurons = standardise(activity)
    size = neurons.moves.sum(-1).clamp_min(1).double().sqrt()[:, None, None]
    x, new = neurons.unit / size, neurons.place(fresh) / size
    mean = target.mean(-2, keepdim=True)
    if x.shape[-2] <= x.shape[-1]:
        gram, right, reader = x @ x.mT, target - mean, new @ x.mT
    else:
        gram, right, reader = x.mT @ x, x.mT @ (target - mean), new
    for ridge in ridges:
        lifted = gram.clone()
        lifted.diagonal(dim1=-2, dim2=-1).add_(ridge)
        yield mean + reader @ torch.cholesky_solve(right, torch.linalg.cholesky(lifted))


def _groups(tensors: dict[str, Tensor], lead: tuple[int, ...]) -> Iterator[list[Tensor]]:
    """The tensors (group, samples, columns), as many leading indices at a time as fit into `TOGETHER`."""
    # One index at a time where the activity is large, as a view: no copy of all of it is made, whatever its strides.
    device = tensors["activity"].device
    wide = {name: tensor.expand(*lead, *tensor.shape[-2:]) for name, tensor in tensors.items()}
    size = max(1, TOGETHER // max(prod(tensor.shape[-2:]) for tensor in tensors.values()))
    places = list(product(*map(range, lead)))
    for start in range(0, len(places), size):
        some = places[start : start + size]
        group = []
        for name, tensor in wide.items():
            piece = tensor[some[0]][None] if len(some) == 1 else torch.stack([tensor[place] for place in some])
            finite = piece.isfinite().flatten(1).all(-1)
            if not finite.all():
                at = list(some[int(finite.int().argmin())])
                where = f" at leading index {at}" if at else ""
                raise ValueError(f"{name} must be finite, got NaN or infinity{where}")
            group.append(piece.to(device))
        yield group


def _joined(parts: Sequence[tuple[Tensor, ...]], lead: tuple[int, ...]) -> list[Tensor]:
    """Columns of the parts, (group, latents) each, as (*lead, latents)."""
    return [torch.cat(column).reshape(*lead, -1) for column in zip(*parts, strict=True)]


def _summary(value: Tensor, varies: Tensor, silent: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """score, per_latent, excluded, silent."""
    counted = varies.sum(-1)
    score = torch.where(varies, value, 0.0).sum(-1) / counted  # 0 / 0 is NaN, as it should be
    per_latent = torch.where(varies, value, torch.nan)
    return score.to(dtype), per_latent.to(dtype), (~varies).sum(-1), (varies & silent).sum(-1)


def _checked(**given: Number) -> tuple[dict[str, Tensor], tuple[int, ...]]:
    # Latents may be bool or whole numbers as well.
    tensors = {
        name: as_numbers(value, name) if name.endswith("activity") else as_tensor(value, name)
        for name, value in given.items()
    }
    for name, tensor in tensors.items():
        columns = "neurons" if name.endswith("activity") else "latents"
        if columns == "neurons" and not tensor.is_floating_point():
            raise ValueError(f"{name} must hold floating numbers, got {tensor.dtype}")
        if tensor.ndim < 2 or 0 in tensor.shape or tensor.shape[-2] < 2:
            shape = f"shape (..., samples, {columns}), two samples or more, nothing empty"
            raise ValueError(f"{name} must have {shape}, got {tuple(tensor.shape)}")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    for prefix in ("", "fresh_") if len(tensors) == 4 else ("",):
        if shapes[f"{prefix}activity"][-2] != shapes[f"{prefix}latents"][-2]:
            raise ValueError(f"{prefix}activity and {prefix}latents must have the same samples, got {listed}")
    if len(tensors) == 4:
        for name in ("activity", "latents"):
            if shapes[name][-1] != shapes[f"fresh_{name}"][-1]:
                raise ValueError(f"{name} and fresh_{name} must have the same columns, got {listed}")
    return tensors, tuple(common_shape(**{name: tensor.shape[:-2] for name, tensor in tensors.items()}))
