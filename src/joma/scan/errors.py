"""What can be wrong with a checkpoint, and what was found wrong with one of a series."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from joma.host.errors import JomaError
from joma.host.words import brief_repr


class CheckpointError(JomaError, ValueError):
    """A checkpoint, or a series of them, cannot be used; the message is one sentence that names it.

    file and tensor: the place of the damage, where it is known, so that a report can list it.
    """

    def __init__(
        self, sentence: str, *, file: str | None = None, tensor: str | None = None, argument: str = ""
    ) -> None:
        """argument: what would mend it, if there is such an argument: the command line adds the option that sets it."""
        super().__init__(sentence)
        self.file, self.tensor, self.argument = file, tensor, argument


class Changed(CheckpointError):
    """A checkpoint is not the one that was measured."""


@brief_repr
@dataclass(frozen=True)
class Fault:
    """Why something is left out of the curves: what is wrong, in which file, in which tensor of which checkpoint.

    measure: the one curve that lacks this step, such as "entropy" or "stable_rank/mlp"; None: all of them.

    >>> print(Fault(100, "step100", "model.safetensors", "h.0.mlp.c_fc.weight", "identical to step 10"))
    step 100 (step100): model.safetensors: h.0.mlp.c_fc.weight: identical to step 10
    >>> print(Fault(100, "step100", None, None, "it has no config.json", "entropy"))
    step 100 (step100): entropy: it has no config.json
    """

    step: int
    checkpoint: str
    file: str | None
    tensor: str | None
    what: str
    measure: str | None = None

    def __str__(self) -> str:
        """One line; a sentence that names its file itself does not get it twice."""
        place = [self.measure, *(word for word in (self.file, self.tensor) if word and word not in self.what)]
        return f"step {self.step} ({self.checkpoint}): " + "".join(f"{word}: " for word in place if word) + self.what

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """What `as_json` gave."""
        return cls(**{field.name: content[field.name] for field in fields(cls)})


class NoneUsable(CheckpointError):
    """No checkpoint of a series can be used; `faults` says why, step by step."""

    def __init__(self, source: str, faults: list[Fault]) -> None:
        """source: the series. faults: one per checkpoint."""
        super().__init__(f"{source} has no usable checkpoint")
        self.faults = faults


class UnknownNames(CheckpointError):
    """No tensor of a checkpoint has a name that is known, or that fits the user's pattern, or it is no matrix."""


class Unmeasurable(CheckpointError):
    """A measure cannot be taken of what was read, as of NaN; the rest of the checkpoint may be fine."""
