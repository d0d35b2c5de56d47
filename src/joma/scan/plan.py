"""What a sweep will read, settled by a look at a few checkpoints before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from joma.host.devices import lacking
from joma.host.errors import BadInput, asked_for
from joma.host.words import brief
from joma.measure.registry import WeightMeasure
from joma.probes.lengths import beyond_training, default_seq_len, must_take, unknown_training
from joma.scan.checkpoint import Place
from joma.scan.errors import CheckpointError
from joma.scan.looks import Wanted, agreed
from joma.scan.measures import Measure, ModelMeasure, PairMeasure, chosen
from joma.scan.names.architecture import EMBEDDING
from joma.scan.running import config_of
from joma.scan.sources.series import Series
from joma.scan.text import tokens_of, windows_said

_CONFIGS = 8  # checkpoints that are asked for a config, until one has it
GATED = 256
"""Tensors of a group that the integrity gate looks at: of more, as of experts, so many that lie evenly among them."""


@dataclass(frozen=True)
class Plan:
    """What is measured, and what every checkpoint of the series must therefore hold.

    - series: the checkpoints
    - measures: what is measured, by name
    - model_type: the architecture that config.json names; None without one
    - groups: the tensors of every group that is read, by layer
    - known: the same for all groups that were found, read or not
    - shapes: the shape of every tensor that is read
    - device: where it is measured
    - tokens: the text, for measures that run the model; None without one
    - refused: measures that were asked for and that this model cannot give, with the reason
    - coverage: how many layers each group covers, and how many there are
    - notes: what was done to read the checkpoints, and how the text is cut
    - warnings: why numbers may not describe the trained model
    - seq_len: tokens per window of the text; None without a text

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> from joma.scan.sources.series import open_series
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"h.0.mlp.c_fc.weight": torch.eye(4)}, f"{folder}/step0.safetensors")
    ...     settled = plan(open_series(folder, downloads=Path(folder)))
    >>> list(settled.wanted())
    ['stable_rank/mlp', 'sketch/mlp', 'checksum/mlp']
    """

    series: Series
    measures: Mapping[str, Measure]
    model_type: str | None
    groups: Mapping[str, tuple[str, ...]]
    known: Mapping[str, tuple[str, ...]]
    shapes: Mapping[str, tuple[int, ...]]
    device: torch.device
    tokens: Tensor | None
    refused: Mapping[str, str] = field(default_factory=dict)
    coverage: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seq_len: int | None = None

    def __repr__(self) -> str:
        return brief(self)

    def config(self) -> dict[str, Any]:
        """What the columns of a run stand for; it does not change when more steps or measures are asked for."""
        known = {group: list(names) for group, names in self.known.items()}
        return {"source": self.series.source, "model_type": self.model_type, "groups": known}

    def weight_names(self, group: str) -> dict[str, WeightMeasure]:
        """The curves of a group, by name."""
        return {
            f"{name}/{group}": measure
            for name, measure in self.measures.items()
            if isinstance(measure, WeightMeasure) and (measure.group == EMBEDDING) == (group == EMBEDDING)
        }

    def model_names(self) -> dict[str, str]:
        """The curves of the running model, each with the statistic that it shows."""
        running = [measure for measure in self.measures.values() if isinstance(measure, ModelMeasure)]
        return {name: statistic for measure in running for name, statistic in measure.curves.items()}

    def pair_measures(self) -> dict[str, PairMeasure]:
        """Measures of two neighbouring checkpoints, by name."""
        return {name: measure for name, measure in self.measures.items() if isinstance(measure, PairMeasure)}

    def curve_names(self) -> list[str]:
        """All curves that have a number at every step, in order; those of pairs are not among them."""
        return [*(name for group in self.groups for name in self.weight_names(group)), *self.model_names()]

    def gated(self, group: str) -> tuple[str, ...]:
        """The tensors of a group whose fingerprints are kept."""
        names = self.groups[group]
        stride = -(-len(names) // GATED)
        return names[::stride] if stride > 1 else names

    def wanted(self) -> dict[str, str | None]:
        """What a complete step has in the run: names, each with the group of tensors that it comes from."""
        names: dict[str, str | None] = {}
        for group in self.groups:
            names |= dict.fromkeys(self.weight_names(group), group)
        names |= dict.fromkeys(self.model_names(), None)
        for group in self.groups:
            names |= {f"sketch/{group}": group, f"checksum/{group}": group}
        return names


def plan(
    series: Series,
    *,
    measures: Iterable[str] = ("stable_rank",),
    patterns: Mapping[str, str] | None = None,
    groups: Sequence[str] | None = None,
    root: str | None = None,
    text: Path | None = None,
    tokenizer: Path | None = None,
    seq_len: int | None = None,
    device: str = "cpu",
) -> Plan:
    """Settle what a sweep of `series` reads: the measures by name, patterns for groups of matrices, text and device.

    groups: the groups of matrices to keep to; None: all that are found. root: which model of a checkpoint that holds
    several. tokenizer: a folder with one; None: that of the checkpoint or of the folder that it lies in.
    seq_len: tokens per window of the text; None: 512, or fewer where the text is shorter or the model was trained on
    fewer. More than its positions can take is refused; more than training had is warned of.

    A measure that the architecture cannot give is refused here, before its weights are read; the others stay.
    Raises CheckpointError where none is left, architectures are mixed or the matrices cannot be found, NoneUsable
    where no checkpoint can be opened.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> from joma.scan.sources.series import open_series
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"h.0.mlp.c_fc.weight": torch.eye(4)}, f"{folder}/step0.safetensors")
    ...     plan(open_series(folder, downloads=Path(folder))).groups
    {'mlp': ('h.0.mlp.c_fc.weight',)}
    """
    asked = chosen(measures)
    worker = usable_device(device)
    running = {name: measure for name, measure in asked.items() if isinstance(measure, ModelMeasure | PairMeasure)}
    _must_have_text(asked, running, text, tokenizer, seq_len)
    refused, read_by = _configs(series, running)
    kept = {name: measure for name, measure in asked.items() if name not in refused}
    if not kept:
        raise CheckpointError(next(iter(refused.values())))
    look = agreed(series, Wanted(kept, patterns or {}, None if groups is None else tuple(groups), root))
    refused |= look.refused
    kept = {name: measure for name, measure in kept.items() if name not in refused}
    notes = [*series.notes, *look.notes]
    read = None
    if read_by is not None and text is not None:
        read = _read(*read_by, text, tokenizer, seq_len)
        notes.append(windows_said([name for name in running if name in kept], text, read.seq_len, len(read.tokens)))
        notes += read.notes
    if not look.groups:
        notes.append("no matrices were found by name, so steps were not compared with each other: see --list")
    return Plan(
        series, kept, look.model_type, look.groups, look.known, look.shapes, worker, read and read.tokens, refused,
        look.coverage, tuple(notes), read.warnings if read else (), read and read.seq_len,
    )  # fmt: skip


class _Read(NamedTuple):
    """A text as it will be read, and what is to be said of its windows."""

    tokens: Tensor
    seq_len: int
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def _read(place: Place, config: Any, text: Path, tokenizer: Path | None, asked: int | None) -> _Read:
    if asked is not None:
        must_take(config, asked)
    tokens = tokens_of(place, config, text, tokenizer, seq_len=asked)
    seq_len = min(default_seq_len(config), len(tokens)) if asked is None else asked
    beyond, unknown = beyond_training(config, seq_len), unknown_training(config, seq_len)
    return _Read(tokens, seq_len, (beyond,) if beyond else (), (unknown,) if unknown else ())


def usable_device(name: str) -> torch.device:
    """The device of that name, or one sentence."""
    with asked_for():
        missing = lacking(name)
    if missing:
        raise BadInput(str(missing), argument="device")
    return torch.device(name)


def _must_have_text(
    asked: Mapping[str, Any], running: Mapping[str, Any], text: Path | None, tokenizer: Path | None, seq_len: int | None
) -> None:
    if running and text is None:
        raise BadInput(f"{next(iter(running))} runs the model on a text, and no text is given", argument="text")
    if text is not None and not running:
        raise BadInput(
            f"text is for measures that run the model, but measures {','.join(asked)} does not read a text",
            argument="text",
        )
    if tokenizer is not None and text is None:
        raise BadInput(
            f"tokenizer is for a text, but measures {','.join(asked)} does not read one", argument="tokenizer"
        )
    if seq_len is not None and text is None:
        raise BadInput(f"seq_len is for a text, but measures {','.join(asked)} does not read one", argument="seq_len")


def _configs(
    series: Series, running: Mapping[str, ModelMeasure | PairMeasure]
) -> tuple[dict[str, str], tuple[Place, Any] | None]:
    """Measures that run the model: those refused, with the reason, and for the others a place with its config.

    The first place whose config can be read speaks for all; one that differs is a fault of its step.
    """
    refused: dict[str, str] = {}
    read_by: tuple[Place, Any] | None = None
    for name, measure in running.items():
        try:
            if isinstance(measure, PairMeasure):
                _must_have_neighbours(series, name)
            place, config = _first_config(series)
            measure.must_suit(config, place.name)
            read_by = place, config
        except CheckpointError as error:
            refused[name] = str(error)
    return refused, read_by


def _must_have_neighbours(series: Series, name: str) -> None:
    if len(series.places) < 2:
        raise CheckpointError(f"{name} is of the change between two checkpoints, and {series.source} has one alone")


def _first_config(series: Series) -> tuple[Place, Any]:
    first: CheckpointError | None = None
    for place in series.places[:_CONFIGS]:
        try:
            return place, config_of(place)
        except CheckpointError as error:
            first = first or error
    raise first or CheckpointError(f"{series.source} has no checkpoint")
