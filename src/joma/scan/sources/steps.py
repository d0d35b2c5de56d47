"""Which moment of training a name or a file speaks of: a step, an epoch, or both. What is ambiguous speaks of none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joma.scan.errors import CheckpointError
from joma.scan.formats.checkpoint import TORCH_ENDINGS
from joma.scan.formats.tensor_file import parsed_json, small_file
from joma.scan.formats.torch_file import TorchFile

# "700", "1k", "10M"; not the first part of a longer number, as in "step1.5" or "checkpoint_3_1000".
_NUMBER = r"(\d{1,15}|\d{1,9}(?:\.\d{1,6})?[kKmMbBgG])(?![0-9A-Za-z]|\.\d|[-_]\d)"
_STEP = re.compile(
    r"(?:checkpoint|ckpt|chkpt|global_?steps?|steps?|iter(?:ation)?s?|(?<![A-Za-z])(?:ba|batch|updates?))[-_=]?"
    + _NUMBER,
    re.I,
)
_EPOCH = re.compile(r"(?:epochs?|(?<![A-Za-z])ep)[-_=]?(\d{1,9})(?:(?=step|iter|ba\d)|(?![0-9A-Za-z]|\.\d))", re.I)
# "1000steps", "3epochs": the number first, and nothing in between.
_STEPS_AFTER = re.compile(r"(?<![0-9A-Za-z.=])(\d{1,15}[kKmMbBgG]?)(?:steps?|iter(?:ation)?s?)(?![0-9A-Za-z=])", re.I)
_EPOCHS_AFTER = re.compile(r"(?<![0-9A-Za-z.=])(\d{1,9})(?:epochs?|ep)(?![0-9A-Za-z=])", re.I)
_RUN = re.compile(r"(?<![a-z])((?:seed|run|fold|trial|version|rank|stage|ingredient)[-_=]?\d{1,9})(?![0-9a-z])")
_SCALE = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
_NUMBERED = re.compile(
    r"(?P<stem>(?:.*[-_.])?(?:model|weights?|net|network|params|parameters|state|snapshot|saved?)[-_.]?)(?P<number>\d{1,12})",
    re.I,
)
_ASIDE = re.compile(r"(.*[-_.= ])?(best|last|latest|final|ema|swa|averaged?|avg|merged)(\d*[-_.= ].*|\d*)", re.I)
# Where training programs write how far they are.
_STEP_KEYS = ("iter_num", "global_step", "step", "iteration", "global_steps", "iter", "num_updates", "train_steps")
_EPOCH_KEYS = ("epoch", "current_epoch")
_INSIDE = ("meta", "trainer_state", "train_state", "training_state", "extra_state")


@dataclass(frozen=True)
class Moment:
    """A moment of training, as far as it is known."""

    step: int | None = None
    epoch: int | None = None

    def __bool__(self) -> bool:
        return self.step is not None or self.epoch is not None


def moment_in(name: str) -> Moment:
    """The moment that a name speaks of.

    >>> moment_in("epoch=3-step=700"), moment_in("epoch_1"), moment_in("step10M-tokens4B").step
    (Moment(step=700, epoch=3), Moment(step=None, epoch=1), 10000000)
    >>> [moment_in(name).step for name in ("checkpoint-500", "step1k", "0020", "final", "tokens4B")]
    [500, 1000, 20, None, None]
    """
    steps = {_number(text) for text in (*_STEP.findall(name), *_STEPS_AFTER.findall(name))}
    epochs = {int(text) for text in (*_EPOCH.findall(name), *_EPOCHS_AFTER.findall(name))}
    if not steps and not epochs and re.fullmatch(r"\d{1,15}", name):
        return Moment(int(name))
    return Moment(*(next(iter(found)) if len(found) == 1 else None for found in (steps, epochs)))


def numbered(name: str) -> tuple[str, int] | None:
    """What stands before the number of a name that does not say what it counts, and the number.

    >>> numbered("model_0001"), numbered("phi-2"), numbered("model-00001-of-00002")
    (('model_', 1), None, None)
    """
    found = _NUMBERED.fullmatch(name)
    return (found["stem"], int(found["number"])) if found else None


def is_aside(name: str) -> bool:
    """Whether a name is one of those that stand next to steps: best, last, final, an average.

    >>> [is_aside(name) for name in ("best", "last-v1", "step10-ema", "step10", "lasting")]
    [True, True, True, False, False]
    """
    return _ASIDE.fullmatch(name) is not None


def run_in(name: str) -> str:
    """What a name says of the run that it belongs to, besides its moment; nothing in most names.

    >>> run_in("seed1-step20"), run_in("stage2-ingredient1-step1000-tokens5B"), run_in("step20")
    ('seed1', 'stage2 ingredient1', '')
    """
    return " ".join(_RUN.findall(name.lower()))


def moment_inside(path: Path) -> Moment:
    """The moment that a torch file tells by itself, or trainer_state.json in a folder or beside a file."""
    if path.suffix in TORCH_ENDINGS and path.is_file() and (found := _moment_of_torch_file(path)):
        return found
    state = (path if path.is_dir() else path.parent) / "trainer_state.json"
    try:
        return moment_of(parsed_json(small_file(state), str(state))) if state.is_file() else Moment()
    except CheckpointError:
        return Moment()


def moment_of(content: Mapping[Any, Any]) -> Moment:
    """The moment that the entries of a dictionary tell; none where they contradict one another.

    >>> moment_of({"model": {}, "iter_num": 700}), moment_of({"meta": {"epoch": 3, "iter": 9}})
    (Moment(step=700, epoch=None), Moment(step=9, epoch=3))
    """
    for entries in (content, *(content[key] for key in _INSIDE if isinstance(content.get(key), Mapping))):
        found = Moment(_only(entries, _STEP_KEYS), _only(entries, _EPOCH_KEYS))
        if found:
            return found
    return Moment()


def _moment_of_torch_file(path: Path) -> Moment:
    try:
        file = TorchFile(path)
    except CheckpointError:  # opening it as a checkpoint will say why
        return Moment()
    try:
        return moment_of(file.content)
    finally:
        file.close()


def _only(entries: Mapping[Any, Any], keys: Iterable[str]) -> int | None:
    there = {_integer(entries.get(key)) for key in keys} - {None}
    return there.pop() if len(there) == 1 else None


def _integer(value: Any) -> int | None:
    """None for truth values and fractions; trainers count epochs in fractions on their way."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value >= 0 and value < 10**15 and value == int(value) else None


def _number(text: str) -> int | None:
    scale = _SCALE.get(text[-1].lower(), 1)
    found = float(text.rstrip("kKmMbBgG")) * scale if scale > 1 else int(text)
    return int(found) if found == int(found) else None
