"""A series of checkpoints, ordered by step or by epoch: where each is, and which of them are one series.

Which moment of training a checkpoint is, its name or its file tells; what is ambiguous tells none.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

from joma.host.words import brief_repr, short
from joma.scan.errors import CheckpointError
from joma.scan.formats.checkpoint import TORCH_ENDINGS, Checkpoint, Weights, ends_in
from joma.scan.formats.tensor_file import parsed_json, small_file
from joma.scan.formats.torch_file import TorchFile

STEP, EPOCH, TOKENS, DATE = "step", "epoch", "tokens", "date"
PART_OF_EPOCH, PARTS = "milliepoch", 1000
"""What orders a series whose epochs have fractions, and how many of them an epoch has."""
AXES = (STEP, EPOCH, TOKENS, DATE)
_NAMES = 5
# "700", "1k", "10M"; not the first part of a longer number, as in "step1.5" or "checkpoint_3_1000".
_NUMBER = r"(\d{1,15}|\d{1,9}(?:\.\d{1,6})?[kKmMbBgG])(?![0-9A-Za-z]|\.\d|[-_]\d)"
_STEP = re.compile(
    r"(?:checkpoint|ckpt|chkpt|global_?steps?|steps?|iter(?:ation)?s?|(?<![A-Za-z])(?:ba|batch|updates?))[-_= ]?"
    + _NUMBER,
    re.I,
)
_EPOCH = re.compile(
    r"(?:epochs?|(?<![A-Za-z])ep)[-_= ]?(\d{1,9}(?:\.\d{1,3})?)(?:(?=step|iter|ba\d)|(?![0-9A-Za-z]|\.\d))", re.I
)
_TOKENS = re.compile(r"(?<![0-9A-Za-z])tok(?:en)?s?[-_=]?(\d{1,15}(?:\.\d{1,6})?[kmbgt]?)(?![0-9A-Za-z]|\.\d)", re.I)
_TOKENS_AFTER = re.compile(r"(?<![0-9A-Za-z.])(\d{1,15}(?:\.\d{1,6})?[kmbgt]?)[-_]?tok(?:en)?s?(?![0-9A-Za-z])", re.I)
_DATE = re.compile(r"(?<!\d)(\d{4})([-_.]?)(\d\d)\2(\d\d)(?:[-_T ]?(\d\d)[-_:.h]?(\d\d)(?:[-_:.m]?(\d\d))?)?(?!\d)")
# "1000steps", "3epochs": the number first, and nothing in between.
_STEPS_AFTER = re.compile(r"(?<![0-9A-Za-z.=])(\d{1,15}[kKmMbBgG]?)(?:steps?|iter(?:ation)?s?)(?![0-9A-Za-z=])", re.I)
_EPOCHS_AFTER = re.compile(r"(?<![0-9A-Za-z.=])(\d{1,9})(?:epochs?|ep)(?![0-9A-Za-z=])", re.I)
_RUN = re.compile(r"(?<![a-z])((?:seed|run|fold|trial|version|rank|stage|ingredient)[-_=]?\d{1,9})(?![0-9a-z])")
_SCALE = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_NUMBERED = re.compile(
    r"(?P<stem>(?:.*[-_.])?(?:model|weights?|net|network|params|parameters|state|snapshot|saved?)[-_.]?)(?P<number>\d{1,12})",
    re.I,
)
_ASIDE = re.compile(r"(.*[-_.= ])?(best|last|latest|final|ema|swa|averaged?|avg|merged)(\d*[-_.= ].*|\d*)", re.I)
# What programs call a checkpoint while they write it, before they give it its name.
_UNFINISHED = re.compile(
    r"(?:.*[-_. ])?(?:te?mp|incomplete|partial|unfinished)(?:[-_. ].*)?|.*\.(?:part|writing)", re.I
)
# Where training programs write how far they are.
_STEP_KEYS = ("iter_num", "global_step", "step", "iteration", "global_steps", "iter", "num_updates", "train_steps")
_EPOCH_KEYS = ("epoch", "current_epoch")
_INSIDE = ("meta", "trainer_state", "train_state", "training_state", "extra_state")


class Place(Protocol):
    """Where a checkpoint of a series is. Nothing is read before `open`."""

    @property
    def step(self) -> int: ...

    @property
    def epoch(self) -> int | None: ...

    @property
    def name(self) -> str: ...

    def config(self) -> dict[str, Any] | None:
        """What config.json holds; None without one."""

    def identity(self) -> str:
        """What the files that are read are known again by, as `known_by` writes it."""

    def weights(self) -> Weights:
        """The files with the tensors, without opening them."""

    def open(self) -> Checkpoint: ...

    def folder(self) -> AbstractContextManager[Path]:
        """All of the checkpoint as a local folder, for measures that run the model."""


def known_by(files: Iterable[tuple[str, str, str]]) -> str:
    """What files are known again by, as JSON: of each its name, what its content is, and its date; "" where none is.

    >>> known_by([("model.safetensors", "5 bytes", "")])
    '{"model.safetensors": ["5 bytes", ""]}'
    """
    return json.dumps({name: [content, date] for name, content, date in sorted(files)})


@dataclass(frozen=True)
class Closed:
    """A checkpoint that cannot be opened, and why. files: those of its weights, where they are known all the same."""

    step: int
    epoch: int | None
    name: str
    why: str
    files: Weights | None = None

    def weights(self) -> Weights:
        return self.files or self._refuse()

    def _refuse(self) -> NoReturn:
        raise CheckpointError(f"{self.name} {self.why}")

    config = identity = open = folder = _refuse


@brief_repr
@dataclass(frozen=True)
class Series:
    """Where the checkpoints of one training run are.

    - source: the user's word for it
    - places: one per step, in order
    - axis: what orders them, "step", or "epoch" where no step is known; the step of a place is then its epoch. Where
      epochs have fractions it is "milliepoch". "tokens" and "date", in seconds since 1970, are for those who ask
    - notes: sentences on what was left aside, or taken for what

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> from joma.scan import open_series
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (0, 10, 20):
    ...         save_file({}, f"{folder}/step{step}.safetensors")
    ...     series = open_series(folder, downloads=Path(folder))
    >>> series.select("10:").steps
    [10, 20]
    """

    source: str
    places: tuple[Place, ...]
    axis: str = STEP
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> list[int]:
        return [place.step for place in self.places]

    @property
    def epochs(self) -> list[int | None]:
        """The epoch of each checkpoint, as far as it is known."""
        return [place.epoch for place in self.places]

    def select(self, wanted: str | Sequence[int] | None) -> Self:
        """The steps that `wanted` names; see `steps_of` for how text names them. None: all."""
        if wanted is None:
            return self
        chosen = steps_of(wanted, self.steps) if isinstance(wanted, str) else list(wanted)
        unknown = sorted(set(chosen) - set(self.steps))
        shown = ", ".join(map(str, self.steps[:8]))
        there = shown if len(self.steps) <= 8 else f"{shown}, ... {self.steps[-1]} ({len(self.steps)} in all)"
        if unknown:
            raise CheckpointError(f"{self.source} has no {self.axis} {unknown[0]}; it has {there}", argument="steps")
        if not chosen:
            what = f"{wanted} names none of the {self.axis.removesuffix('s')}s of {self.source}: {there}"
            raise CheckpointError(what, argument="steps")
        return replace(self, places=tuple(place for place in self.places if place.step in set(chosen)))


def model_type(place: Place) -> str | None:
    """What config.json calls the architecture of a checkpoint; None without a config."""
    name = (place.config() or {}).get("model_type")
    return name if isinstance(name, str) else None


def steps_of(text: str, there: Sequence[int]) -> list[int]:
    """The steps that a text names: numbers and ranges A:B:C, separated by commas.

    A:B:C are the steps of the series from A to B, B included, whose distance from A is a multiple of C; an empty
    A or B is the first or last step, C may be left out. Single numbers are taken as they are.
    """
    found: set[int] = set()
    for part in text.split(","):
        if not re.fullmatch(r"\s*(\d{1,18}|\d{0,18}:\d{0,18}(:\d{0,18})?)\s*", part):
            what = f"steps takes numbers of at most 18 digits and ranges like 0,1,1000:3000:1000, got {short(part)}"
            raise CheckpointError(what, argument="steps")
        bounds = part.strip().split(":")
        if len(bounds) == 1:
            found.add(int(part))
            continue
        first = int(bounds[0]) if bounds[0] else min(there)
        last = int(bounds[1]) if bounds[1] else max(there)
        stride = int(bounds[2]) if len(bounds) == 3 and bounds[2] else 1
        if stride == 0:
            raise CheckpointError(f"steps {part} has a stride of 0; it must be at least 1", argument="steps")
        found |= {step for step in there if first <= step <= last and (step - first) % stride == 0}
    return sorted(found)


@dataclass(frozen=True)
class Moment:
    """A moment of training, as far as it is known."""

    step: int | None = None
    epoch: float | None = None

    def __bool__(self) -> bool:
        return self.step is not None or self.epoch is not None


def moment_in(name: str) -> Moment:
    """The moment that a name speaks of."""
    steps = {_number(text) for text in (*_STEP.findall(name), *_STEPS_AFTER.findall(name))}
    counted = (*_EPOCH.findall(name), *_EPOCHS_AFTER.findall(name))
    epochs: set[float] = {int(text) if text.isdecimal() else float(text) for text in counted}
    if not steps and not epochs and re.fullmatch(r"\d{1,15}", name):
        return Moment(int(name))
    step, epoch = (next(iter(found)) if len(found) == 1 else None for found in (steps, epochs))
    return Moment(None if step is None else int(step), epoch)


def mark_in(name: str, axis: str) -> int | None:
    """Where a name puts a checkpoint on an axis that only a user can choose: tokens, or seconds since 1970."""
    if axis == TOKENS:
        found = {_number(text) for text in (*_TOKENS.findall(name), *_TOKENS_AFTER.findall(name))}
    else:
        found = {_seconds(*match.group(1, 3, 4, 5, 6, 7)) for match in _DATE.finditer(name)}
    return next(iter(found)) if len(found) == 1 else None


def without_dates(name: str) -> str:
    """A name without the dates in it, whose numbers count no runs.

    >>> without_dates("run_2026-05-01")
    'run_'
    """
    return _DATE.sub("", name)


def _seconds(*numbers: str | None) -> int | None:
    """A date, and perhaps a time, as seconds since 1970; as if clocks showed UTC, which leaves the order as it is."""
    try:
        year, month, day, hour, minute, second = (int(one or 0) for one in numbers)
        return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())
    except ValueError:
        return None


def numbered(name: str) -> tuple[str, int] | None:
    """What stands before the number of a name that does not say what it counts, and the number."""
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
    found, state = Moment(), (path if path.is_dir() else path.parent) / "trainer_state.json"
    if ends_in(path.name, TORCH_ENDINGS) and path.is_file():
        with suppress(CheckpointError), closing(TorchFile(path)) as file:  # opening it as a checkpoint will say why
            found = moment_of(file.content)
    with suppress(CheckpointError):
        found = found or (moment_of(parsed_json(small_file(state), str(state))) if state.is_file() else found)
    return found


def moment_of(content: Mapping[Any, Any]) -> Moment:
    """The moment that the entries of a dictionary tell; none where they contradict one another.

    >>> moment_of({"model": {}, "iter_num": 700}), moment_of({"meta": {"epoch": 3, "iter": 9}})
    (Moment(step=700, epoch=None), Moment(step=9, epoch=3))
    """
    every = (content, *(content[key] for key in _INSIDE if isinstance(content.get(key), Mapping)))
    moments = (Moment(_only(entries, _STEP_KEYS), _only(entries, _EPOCH_KEYS)) for entries in every)
    return next(filter(None, moments), Moment())


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
    found = float(text.rstrip("kKmMbBgGtT")) * scale
    return int(text) if text.isdecimal() else int(found) if found == int(found) else None


@dataclass(frozen=True)
class Candidate:
    """Something that may be a checkpoint of a series: its name, its moment, and how it becomes a place."""

    name: str
    moment: Moment
    make: Callable[[int, int | None], Place]


def arrange(candidates: Sequence[Candidate], where: str, aside: Iterable[str] = ()) -> Series:
    """Candidates with a moment, by step or, where no step is known, by epoch. aside: names that have none."""
    whole = [each for each in candidates if not _UNFINISHED.fullmatch(each.name) or where.endswith(each.name)]
    left_out = [each.name for each in candidates if each not in whole]
    if candidates and not whole:
        how = f"which were not written to their end; name one to read it all the same, as in {where}/{left_out[0]}"
        raise CheckpointError(f"{where} holds {some(left_out)} alone, {how}")
    chosen = [each for each in whole if not is_aside(each.name)] or whole
    runs = list(dict.fromkeys(run_in(each.name) or "others" for each in chosen))
    if len(runs) > 1:
        raise CheckpointError(f"{where} mixes {some(runs)}, which are no one series; move each to a folder of its own")
    left = [*(each.name for each in whole if each not in chosen), *aside]
    notes = (f"left aside, because a series has one checkpoint per step: {some(left)}",) if left else ()
    if left_out:
        notes = (*notes, f"left out, because their names say that they were not written to their end: {some(left_out)}")
    stepped = [each for each in chosen if each.moment.step is not None]
    if stepped and len(stepped) < len(chosen):
        other = next(each for each in chosen if each not in stepped)
        both = f"steps ({stepped[0].name}) and epochs ({other.name}), which have no common order"
        raise CheckpointError(f"{where} mixes {both}; move one kind to a folder of its own")
    moments = [(each.moment.step if stepped else each.moment.epoch) or 0 for each in chosen]
    axis = STEP if stepped else EPOCH
    if any(at != int(at) for at in moments):
        axis, moments = PART_OF_EPOCH, [PARTS * at for at in moments]
        notes = (*notes, f"epochs have fractions here, so they are counted in parts of {PARTS:,}: {axis}s")
    places = [each.make(round(at), _whole(each.moment.epoch)) for each, at in zip(chosen, moments, strict=True)]
    return Series(where, tuple(_in_order(places)), axis, notes)


def _whole(epoch: float | None) -> int | None:
    return int(epoch) if epoch is not None and epoch == int(epoch) else None


def _in_order(places: Sequence[Place]) -> list[Place]:
    """Places by step. Several that claim the same step cannot all be right, and become one that cannot be used."""
    by_step: dict[int, Place] = {}
    for place in sorted(places, key=lambda place: place.step):
        one = by_step.get(place.step)
        if one:
            why = "claim the same step; keep one of them"
            place = Closed(one.step, one.epoch, f"{one.name} and {place.name}", why)
        by_step[place.step] = place
    return list(by_step.values())


def with_moments(revisions: Iterable[str]) -> list[str]:
    """The revisions of a model that are named by their step, or where there are none, by their epoch.

    Of several runs or stages it is the one with most revisions: nobody can move those of a hub apart.

    >>> with_moments(["main", "step10", "epoch1", "step20"])
    ['step10', 'step20']
    >>> with_moments(["stage1-step10", "stage1-step20", "stage2-step10"])
    ['stage1-step10', 'stage1-step20']
    """
    moments = {name: moment_in(name) for name in revisions}
    stepped = [name for name, moment in moments.items() if moment.step is not None]
    timed = stepped or [name for name, moment in moments.items() if moment]
    runs = Counter(map(run_in, timed))
    return [name for name in timed if run_in(name) == max(runs, key=runs.__getitem__)]


def some(names: Sequence[str]) -> str:
    """A few of many names, and how many more there are."""
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
