"""Many networks of one shape that are trained at once, as one batched program: what is trained, not how.

Members differ in seed, learning rate, data or labels and never see one another: each follows the path it would follow
alone, to rounding. What a step needs depends on its number alone, so a killed run goes on to the same numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from torch import Tensor

from joma.host.devices import lacking
from joma.host.words import brief_repr
from joma.training.optimizers import Optimizer

Precision = Literal["float32", "tf32", "half-logits", "half"]


@dataclass(frozen=True)
class Origin:
    """Where a branch begins: a state of another ensemble of the same run.

    - of: the name that it is recorded under
    - at: the step
    - renew: whether the optimizer's state begins anew there

    >>> Origin("base", at=600)
    Origin(of='base', at=600, renew=False)
    """

    of: str
    at: int
    renew: bool = False


@brief_repr
@dataclass(frozen=True)
class Ensemble:
    """What is trained: members, each with its data, its loss and its learning rate.

    The callables are given the numbers of the members they are asked for, because an ensemble that does not fit in
    memory is split into groups that take turns between measuring points. `train` has an example of a whole run.

    - members: number of networks
    - networks: networks(members) -> the networks of these members: an nn.Module such as `joma.models.Decoder`, whose
      parameters have the member first and whose buffer `seeds` has one int32 each. Each depends on its number alone.
    - batch: batch(step, members) -> the data of a step, counted from 0, for these members, on the device.
      `joma.data.Ahead` makes one of a function that draws many steps at once, so that a GPU is never waited for.
    - loss: loss(networks, batch, noise) -> (members,); `noise` is what `joma.models.dropout` takes as key. On a GPU
      what it calls of `joma.models` and `joma.training` is compiled; mark your own with `compiled_part`.
    - optimizer: what updates them, with their learning rates
    - steps: number of training steps
    - measures: measures[name](networks, members) -> (members, ...), called at every measuring point without gradients.
      What one pass finds can be given together, as a mapping: its parts are recorded as name/part.
    - between: between[name](networks, before, members) -> as a measure; `before` are the parameters at the measuring
      point before, by name. At the first point they are those that training began with.
    - tend: tend(networks, step) is called before every step, without gradients, and may write into buffers of the
      networks. A captured step goes on with what stands in them. What it writes must follow from the networks, which
      are saved with their buffers, and from the step.
    - measure_at: measure after so many steps; 0 is the untrained network. The last step always belongs to it.
    - keep_at: keep the whole state after so many steps beside the run, for branches (see `joma.training.branch`)
    - frozen: parameters that stay what they are, by name; ("qkv", index) freezes qkv[index], all members first
    - origin: where training begins; None is the beginning of `networks`. `joma.training.branch` gives it.
    - dims: names for the dimensions of what is recorded, by measure: those after the member, such as ("layer", "head")
    - device: where to train, such as cpu or cuda
    - precision: of matrix products on a GPU. tf32: factors are rounded to ten bits; half-logits: and logits are
      float16; half: all factors are float16, see `joma.models.products`.
    - together: how many members to train at once; as many as memory allows unless given

    >>> import torch
    >>> from joma.models import Decoder, DecoderConfig
    >>> from joma.training import next_token_loss
    >>> text = torch.zeros(4, 10, dtype=torch.long)
    >>> ensemble = Ensemble(
    ...     members=2,
    ...     networks=lambda members: Decoder(DecoderConfig(vocabulary=7), seeds=members),
    ...     batch=lambda step, members: (text[:, :-1], text[:, 1:]),
    ...     loss=next_token_loss,
    ...     optimizer=Optimizer("adam", rate=1e-3),
    ...     steps=10,
    ...     measure_at=(0, 5),
    ... )
    >>> ensemble.points
    [0, 5, 10]
    """

    members: int
    networks: Callable[[Sequence[int]], Any]
    batch: Callable[[int, Sequence[int]], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]
    optimizer: Optimizer
    steps: int
    measures: Mapping[str, Callable[[Any, Sequence[int]], Tensor | Mapping[str, Tensor]]] = field(default_factory=dict)
    between: Mapping[str, Callable[[Any, Mapping[str, Tensor], Sequence[int]], Tensor | Mapping[str, Tensor]]] = field(
        default_factory=dict
    )
    tend: Callable[[Any, int], None] | None = None
    measure_at: Sequence[int] = ()
    keep_at: Sequence[int] = ()
    frozen: Sequence[Any] = ()
    origin: Origin | None = None
    dims: Mapping[str, Sequence[str]] = field(default_factory=dict)
    device: str = "cpu"
    precision: Precision = "float32"
    together: int | None = None

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError(f"an ensemble needs at least one member, got {self.members}")
        if not self.steps >= 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.together is not None and self.together < 1:
            raise ValueError(f"together must be at least 1, got {self.together}")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}, got {self.precision!r}")
        if missing := lacking(self.device):
            raise ValueError(str(missing))
        if self.device == "cpu" and self.precision != "float32":
            raise ValueError(f"precision {self.precision!r} is a choice for a GPU; on a CPU it is float32")
        if both := sorted(set(self.measures) & set(self.between)):
            raise ValueError(f"between and measures both have {both[0]!r}: each is recorded under its name")
        if self.steps <= self.first:
            raise ValueError(f"steps must be above {self.first}, where the branch begins, got {self.steps}")
        for name in ("measure_at", "keep_at"):
            if any(not self.first <= step <= self.steps for step in getattr(self, name)):
                raise ValueError(f"{name} must lie from {self.first} to {self.steps}, got {list(getattr(self, name))}")
        self.optimizer.rates(self.members)
        self.optimizer.warm_ups(self.members)

    @property
    def points(self) -> list[int]:
        """The measuring points."""
        return sorted({*self.measure_at, self.steps})

    @property
    def first(self) -> int:
        """The step that training begins at: 0, or where a branch leaves its ensemble."""
        return 0 if self.origin is None else self.origin.at
