"""Every measure that joma takes of a model, described once: its name, meaning, unit, columns, and what it needs.

A scan of checkpoints, a monitor of a training run, `joma view` and the pages all read this table. What a scan takes of
weight matrices is computed here, too. What needs a running model, its gradients or its last weights is only described:
`joma.probes`, `joma.scan` and `joma.monitor` compute it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from joma.host.arguments import shown
from joma.host.words import brief_repr
from joma.measure._gram import checked, unit_squares
from joma.measure._leading import fits, leading
from joma.measure.embedding import coherence
from joma.measure.power_law import LEAST, Exponent, exponent_of_squares
from joma.measure.spectrum import spectrum

TOLERANCE = 1e-3  #: Relative, of stable ranks and spectral norms: what is certified. What is found is 1e-4 or nearer.
FAILURE = 1e-6  #: The probability with which a certificate may be wrong.
KEPT = 16  #: Keys whose mass sparsity tells beside that of the top 10 %.
Needs = Literal["matrices", "embeddings", "gradients", "attention", "routers", "text"]
"""matrices, embeddings: the weights alone. gradients: those of the parameters. attention, routers: a running model, on
any tokens. text: two checkpoints on the same text."""
Whole = Literal["mean", "largest", "norm"]
"""What many numbers of a measure become where one number is wanted; norm: the root of the sum of their squares."""
Taker = Literal["scan", "monitor"]
_QUANTILES = (0.5, 0.9, 0.99)


@brief_repr
@dataclass(frozen=True)
class Threshold:
    """A number that a measure compares with.

    - value: the number
    - says: what it means to be beyond it
    - source: who chose it
    """

    value: float
    says: str
    source: str


@brief_repr
@dataclass(frozen=True, kw_only=True)
class Measure:
    """What one measure is.

    - name: as a user gives it and as files have it
    - title: as an axis calls it, without its unit
    - unit: of all columns; empty where they have none
    - meaning: one sentence, or a few, for a page
    - needs: what it is taken from
    - taken_by: whether a scan of checkpoints takes it, a monitor of a training run, or both
    - columns: the numbers that it gives; its name alone, unless said. Of weights they are columns of one curve, else
      each is a curve of its own
    - column_titles: of columns whose name does not say enough
    - statistics: of a running model, what `joma.probes` calls a column, where that is another name
    - whole: what becomes one number of a whole model
    - thresholds: numbers inside its definition, with their source

    >>> MEASURES["entropy"].axis, MEASURES["entropy"].needs
    ('attention entropy (nats)', 'attention')
    >>> list(MEASURES["sparsity"].curves)[:2]
    ['sparsity/top_tenth', 'sparsity/top_16']
    """

    name: str
    title: str
    unit: str = ""
    meaning: str
    needs: Needs
    taken_by: tuple[Taker, ...] = ("scan",)
    columns: tuple[str, ...] = ()
    column_titles: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, str] = field(default_factory=dict)
    whole: Whole = "mean"
    thresholds: tuple[Threshold, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", self.columns or (self.name,))

    @property
    def axis(self) -> str:
        """The title with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def curves(self) -> dict[str, str]:
        """Of a measure of running models: its curves by name, each with the statistic that it shows."""
        return {
            self.name if column == self.name else f"{self.name}/{column}": self.statistics.get(column, column)
            for column in self.columns
        }


@brief_repr
@dataclass(frozen=True, kw_only=True)
class WeightMeasure(Measure):
    """Numbers of weight matrices in a checkpoint. Measures with the same `compute` share its result.

    - name, title, unit, meaning, needs, taken_by, columns, column_titles, statistics, whole, thresholds: those of
      every `Measure`. One that needs "matrices" is taken of every group of them, those named by pattern included
    - compute: the result of one matrix; the generator is for what is estimated
    - pick: the numbers of such a result, one per column
    - stacked: the results of a stack of small matrices at once, where that saves time; None: one after the other
    - side_by_side: whether a CPU is faster with several large matrices at a time, one thread each, than with all
      threads on one

    >>> measure = MEASURES["stable_rank"]
    >>> measure.pick(measure.compute(torch.eye(3), torch.Generator()))
    [3.0]
    """

    compute: Callable[[Tensor, torch.Generator], Any]
    pick: Callable[[Any], list[float]]
    stacked: Callable[[Tensor], list[Any]] | None = None
    side_by_side: bool = False


def axis_of(name: str) -> str:
    """What an axis is called that shows a measure; a name that is not in the table stands for itself.

    >>> axis_of("alpha"), axis_of("my_measure")
    ('power-law exponent α', 'my measure')
    """
    if not isinstance(name, str):
        raise ValueError(f"name must be that of a measure, got {shown(name)}")
    return MEASURES[name].axis if name in MEASURES else name.replace("_", " ")


def leading_spectrum(w: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Stable rank and spectral norm of one matrix, to the tolerance."""
    return _leading_spectra(_of_dims(w, 2)[None], generator)[0]


def _leading_spectra(stack: Tensor, generator: torch.Generator | None = None) -> list[tuple[float, float]]:
    """Those of several matrices, where a generator that is not given is always the same one."""
    found: list[Any] = [None] * len(stack)
    if len(stack) and fits(stack):
        drawn = torch.Generator().manual_seed(0) if generator is None else generator
        found = leading(stack, TOLERANCE, FAILURE, drawn)
    others = [i for i, one in enumerate(found) if one is None]
    result = [one and (one.frobenius / one.spectral, sqrt(one.spectral)) for one in found]
    if others:
        slow = spectrum(stack if len(others) == len(stack) else stack[others], tolerance=TOLERANCE, generator=generator)
        for i, *numbers in zip(others, slow.stable_rank.tolist(), slow.spectral_norm.tolist(), strict=True):
            result[i] = tuple(numbers)
    return result


def full_spectrum(w: Tensor, generator: torch.Generator) -> tuple[float, float, Exponent | ValueError]:
    """Stable rank, spectral norm and alpha of one matrix from all of its singular values; nothing is drawn."""
    return full_spectra(_of_dims(w, 2)[None])[0]


def full_spectra(w: Tensor) -> list[tuple[float, float, Exponent | ValueError]]:
    """Stable rank, spectral norm and alpha of matrices (matrices, rows, columns), or why a matrix has no alpha."""
    squares, scale = unit_squares(_of_dims(w, 3))
    top = squares[:, -1]
    ranks = torch.where(top > 0, squares.sum(-1) / top, 0.0)
    exponents = [_exponent(each, max(w.shape[-2:])) for each in squares]
    return list(zip(ranks.tolist(), (top.sqrt() / scale).tolist(), exponents, strict=True))


def _of_dims(w: Tensor, dims: int) -> Tensor:
    if checked(w).ndim != dims:
        raise ValueError(f"w must have {dims} dimensions, the last two rows and columns, got {tuple(w.shape)}")
    return w


def _exponent(squares: Tensor, long: int) -> Exponent | ValueError:
    try:
        return exponent_of_squares(squares, long)
    except ValueError as error:  # the other numbers of the matrix stand
        return error


def _alpha(found: tuple[float, float, Exponent | ValueError]) -> list[float]:
    if isinstance(found[2], ValueError):
        raise found[2]
    return list(found[2])


def _coherence(vectors: Tensor, generator: torch.Generator) -> list[float]:
    found = coherence(vectors, quantiles=_QUANTILES, generator=generator)
    return [float(found.mean), *map(float, found.quantiles), float(found.random_mean)]


_LEADING: Any = {"needs": "matrices", "compute": leading_spectrum, "stacked": _leading_spectra}
_ALL = (
    WeightMeasure(
        name="stable_rank",
        title="stable rank",
        meaning="The squared Frobenius norm of a matrix over its squared spectral norm: 1 if one direction carries "
        "everything, at most the smaller side.",
        taken_by=("scan", "monitor"),
        columns=("stable rank",),
        pick=lambda found: [found[0]],
        **_LEADING,
    ),
    WeightMeasure(
        name="spectral_norm",
        title="spectral norm",
        meaning="The largest singular value of a matrix.",
        columns=("spectral norm",),
        pick=lambda found: [found[1]],
        **_LEADING,
    ),
    WeightMeasure(
        name="alpha",
        title="power-law exponent α",
        meaning="The exponent of a power law fitted to the largest squared singular values, as WeightWatcher defines "
        "it, with a 95 % bootstrap interval. Gaussian matrices of the same shape get exponents too: one says something "
        "where its interval lies below theirs.",
        columns=("exponent", "low", "high", "gaussian", "gaussian low", "gaussian high"),
        column_titles={
            "exponent": "power-law exponent α",
            "low": "α, lower end of the 95 % interval",
            "high": "α, upper end of the 95 % interval",
            "gaussian": "α of a Gaussian matrix, median",
            "gaussian low": "α of a Gaussian matrix, smallest of 19",
            "gaussian high": "α of a Gaussian matrix, largest of 19",
        },
        thresholds=(Threshold(LEAST, "a matrix with fewer singular values above zero is left out", "WeightWatcher"),),
        needs="matrices",
        compute=full_spectrum,
        pick=_alpha,
        stacked=full_spectra,
        side_by_side=True,
    ),
    WeightMeasure(
        name="coherence",
        title="coherence",
        meaning="The mean absolute cosine between two rows of the token embedding: 0 if all are orthogonal, 1 if all "
        "point one way.",
        columns=("mean", *(f"q{q}" for q in _QUANTILES), "random mean"),
        column_titles={
            "mean": "mean absolute cosine",
            **{f"q{q}": f"{q:.0%} quantile of the absolute cosine" for q in _QUANTILES},
            "random mean": "mean absolute cosine of random vectors",
        },
        needs="embeddings",
        compute=_coherence,
        pick=lambda found: list(found),
    ),
    Measure(
        name="entropy",
        title="attention entropy",
        unit="nats",
        meaning="The mean entropy of an attention row on the text, in nats: 0 if a token attends to one other alone.",
        needs="attention",
        taken_by=("scan", "monitor"),
    ),
    Measure(
        name="largest_logit",
        title="largest attention logit",
        unit="nats",
        meaning="The largest logit of all queries, per head.",
        needs="attention",
        taken_by=("monitor",),
        whole="largest",
    ),
    Measure(
        name="sink_mass",
        title="mass on the first key",
        meaning="The mean attention on the first key, per head.",
        needs="attention",
        taken_by=("monitor",),
    ),
    Measure(
        name="effective_keys",
        title="effective keys",
        meaning="The mean of e^entropy over queries, per head.",
        needs="attention",
        taken_by=("monitor",),
    ),
    Measure(
        name="sparsity",
        title="attention sparsity",
        meaning="Means over queries on the text. Mass: how much attention goes to the keys with the largest "
        "probability, or to the first keys. Keys below 1 % of the largest: their share of the keys seen, H2O's "
        "sparsity. Effective keys: e^entropy.",
        needs="attention",
        columns=("top_tenth", f"top_{KEPT}", "first_key", "first_4", "near_zero", "effective_share"),
        column_titles={
            "top_tenth": "mass on the top 10 % of keys",
            f"top_{KEPT}": f"mass on the top {KEPT} keys",
            "first_key": "mass on the first key",
            "first_4": "mass on the first 4 keys",
            "near_zero": "keys below 1 % of the largest",
            "effective_share": "effective keys / keys seen",
        },
        statistics={f"top_{KEPT}": "top_keys", "first_4": "first_keys"},
        thresholds=(
            Threshold(0.01, "a key with a smaller share of the row's largest probability is near zero", "H2O"),
        ),
    ),
    Measure(
        name="spread",
        title="spread of attention logits",
        unit="nats²",
        meaning="The variance of a query's logits over the keys that it sees, a mean over queries on the text, and its "
        "parts. Shared: the variance that the mean query of the head gives, one taste for keys that all queries have. "
        "Specific: that of what each query asks for beyond it. Cross: twice their covariance. The parts sum to the "
        "variance, but for what a bias or a soft cap of the logits adds.",
        needs="attention",
        taken_by=("scan", "monitor"),
        columns=("variance", "shared", "specific", "cross"),
        column_titles={
            "variance": "variance of a query's logits",
            "shared": "shared by all queries",
            "specific": "specific to a query",
            "cross": "twice their covariance",
        },
    ),
    Measure(
        name="norm",
        title="Frobenius norm",
        meaning="The root of the sum of the squared weights of a matrix.",
        needs="matrices",
        taken_by=("monitor",),
        whole="norm",
    ),
    Measure(
        name="update_ratio",
        title="relative update",
        meaning="The norm of the change of a matrix since the last measuring, over its norm.",
        needs="matrices",
        taken_by=("monitor",),
    ),
    Measure(
        name="gradient_norm",
        title="gradient norm",
        meaning="The root of the sum of the squared gradients of all parameters of a layer; 0 where there is none.",
        needs="gradients",
        taken_by=("monitor",),
        whole="norm",
    ),
    Measure(
        name="router_load",
        title="load of an expert",
        meaning="The share of a router's choices that goes to each expert: one over their number where all are used "
        "alike.",
        needs="routers",
        taken_by=("monitor",),
        whole="largest",
    ),
    Measure(
        name="gradient_stable_rank",
        title="stable rank of the gradient",
        meaning="The squared Frobenius norm of a matrix's gradient over its squared spectral norm; 0 where there is "
        "none.",
        needs="gradients",
        taken_by=("monitor",),
    ),
    Measure(
        name="embedding_coherence",
        title="coherence of the embedding",
        meaning="The mean absolute cosine between the vectors of two tokens, per embedding.",
        needs="embeddings",
        taken_by=("monitor",),
    ),
    Measure(
        name="allocation",
        title="change of attention entropy by parameters",
        unit="nats",
        meaning="Between neighbouring checkpoints, how much of the change of each layer's mean attention entropy, and "
        "of the loss, came through each group of parameters, along the straight way between the two. The parts sum to "
        "the change up to the closing error.",
        needs="text",
        columns=("entropy", "loss"),
        column_titles={"entropy": "change of entropy (nats)", "loss": "change of the loss (nats)"},
    ),
)
MEASURES: Mapping[str, Measure] = {measure.name: measure for measure in _ALL}  #: All measures by name.


def measures_of(taker: Taker) -> dict[str, Measure]:
    """The measures that a scan or a monitor takes, by name.

    >>> "norm" in measures_of("monitor"), "norm" in measures_of("scan")
    (True, False)
    """
    if not isinstance(taker, str) or taker not in get_args(Taker):
        raise ValueError(f"taker must be one of {', '.join(get_args(Taker))}, got {shown(taker)}")
    return {name: measure for name, measure in MEASURES.items() if taker in measure.taken_by}
