"""What a sweep will read, settled by a look at a few checkpoints before anything is written.

What a measure is, and how one of weights is computed, stands in `joma.measure.registry`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joma.host.devices import lacking
from joma.host.errors import BadInput, as_bad_input
from joma.host.words import brief_repr, counted
from joma.measure.registry import Measure, WeightMeasure, full_spectra, full_spectrum, leading_spectrum, measures_of
from joma.probes.lengths import beyond_training, default_seq_len, must_take, unknown_training
from joma.runs import Dims
from joma.scan.errors import CheckpointError, Fault, NoneUsable, UnknownNames
from joma.scan.formats.tensor_file import check_matrix
from joma.scan.model.allocation import must_have_gradients
from joma.scan.model.running import config_of, must_attend, must_show_queries
from joma.scan.model.text import describe_windows, tokens_of
from joma.scan.names.architecture import EMBEDDING, MLP, coverage, find_groups, not_taken, not_taken_notes, pick_groups
from joma.scan.names.roles import Shape, check_roles, read_roles
from joma.scan.names.roots import root_notes
from joma.scan.sources.folder import LocalFolder
from joma.scan.sources.series import Place, Series, model_type
from joma.scan.sweep.integrity import checksum, sketch

Groups = dict[str, tuple[str, ...]]  # the tensors of every group, by layer
SCANNED = measures_of("scan")
_CONFIGS = 8  # checkpoints that are asked for a config, until one has it
_LOOKS = 3  # checkpoints that must agree on what the series holds; two of three outvote a damaged one
GATED = 256
"""Tensors of a group that the integrity gate looks at: of more, as of experts, so many that lie evenly among them."""


@dataclass(frozen=True)
class Fingerprint:
    """What a tensor is known again by."""

    compute: Callable[[Tensor], Any]
    by_entry: bool = False  # whether a tensor has several numbers


SKETCH, CHECKSUM = "sketch", "checksum"
_FINGERPRINTS = {SKETCH: Fingerprint(lambda w: sketch(w).cpu().numpy(), by_entry=True), CHECKSUM: Fingerprint(checksum)}


@dataclass(frozen=True)
class PlanRow:
    """A series to which every checkpoint adds.

    - curve: its name in the run: the measure, or the kind of fingerprint, and the group
    - group: the group that must be read for it; None: the model is run
    - tensors: those that it has a column for; none of a running model
    - measure: how its numbers are taken
    """

    curve: str
    group: str | None
    tensors: tuple[str, ...]
    measure: Measure | Fingerprint

    @property
    def dims(self) -> Dims:
        if self.group is None:
            return ("layer", "head")
        if isinstance(self.measure, Fingerprint):
            return {"tensor": self.tensors, **({"entry": None} if self.measure.by_entry else {})}
        several = len(self.measure.columns) > 1
        return {"tensor": self.tensors, **({"quantity": self.measure.columns} if several else {})}


@brief_repr
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
    - not_taken: matrices that no group takes and whose names are not known, by their names with a star for each number

    `rows` are the series that a complete checkpoint has in the run.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> from joma.scan import open_series
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"h.0.mlp.c_fc.weight": torch.eye(4)}, f"{folder}/step0.safetensors")
    ...     settled = plan(open_series(folder, downloads=Path(folder)))
    >>> [row.curve for row in settled.rows]
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
    not_taken: tuple[str, ...] = ()

    def config(self) -> dict[str, Any]:
        """What the columns of a run stand for; it does not change when more steps or measures are asked for."""
        known = {group: list(names) for group, names in self.known.items()}
        return {"source": self.series.source, "model_type": self.model_type, "groups": known}

    @cached_property
    def rows(self) -> tuple[PlanRow, ...]:
        """Curves of groups, curves of the running model, then the fingerprints of every group."""
        rows: list[PlanRow] = []
        for group, tensors in self.groups.items():
            needs = _needs(group)
            rows += [PlanRow(f"{n}/{group}", group, tensors, m) for n, m in self.measures.items() if m.needs == needs]
        for measure in self.measures.values():
            rows += [PlanRow(name, None, (), measure) for name in measure.curves if measure.needs == "attention"]
        for group, tensors in self.groups.items():
            gated = tensors[:: max(1, -(-len(tensors) // GATED))]
            rows += [PlanRow(f"{kind}/{group}", group, gated, one) for kind, one in _FINGERPRINTS.items()]
        return tuple(rows)

    @property
    def curves(self) -> list[PlanRow]:
        """The rows that are measured; those of pairs of checkpoints are none."""
        return [row for row in self.rows if isinstance(row.measure, Measure)]

    def fingerprints(self, kind: str) -> dict[str, PlanRow]:
        """The rows of one kind of fingerprint, by group."""
        return {row.group: row for row in self.rows if row.group and row.curve == f"{kind}/{row.group}"}

    @property
    def pairs(self) -> list[str]:
        """Measures of two neighbouring checkpoints."""
        return [name for name, measure in self.measures.items() if measure.needs == "text"]


def _needs(group: str) -> str:
    return "embeddings" if group == EMBEDDING else "matrices"


@brief_repr
@dataclass(frozen=True, kw_only=True)
class What:
    """What a scan measures.

    - measures: names from `joma.measure.registry.MEASURES`, also as one text with commas.
    - groups: groups of matrices to keep to, such as "mlp"; None: all that are found.
    - patterns: further groups by name, each a regular expression that fits full tensor names.
    - roles: what further names are for, as lines or as a file of them: the end of a name and its group, such as
      {"mixer.in_proj": "mixer_in"}.
    - root: which model, where a checkpoint holds several, such as "ema".
    - text: a file of text for measures that run the model, or its token ids as .npy.
    - tokenizer: a folder with one; None: that of the checkpoint, or of the folder that it lies in.
    - seq_len: tokens per window of the text. None: 512, or fewer where the text is shorter or the model was trained
      on fewer. More than the positions of the model can take is refused; more than training had is warned of.

    >>> What(measures="stable_rank, alpha", text="a.txt").measures
    ['stable_rank', 'alpha']
    """

    measures: str | Iterable[str] = ("stable_rank",)
    groups: str | Iterable[str] | None = None
    patterns: Mapping[str, str] | None = None
    roles: Mapping[str, str] | str | Path | None = None
    root: str | None = None
    text: str | Path | None = None
    tokenizer: str | Path | None = None
    seq_len: int | None = None

    def __post_init__(self) -> None:
        for name in ("measures", "groups"):
            given = getattr(self, name)
            words = (word.strip() for word in given.split(",")) if isinstance(given, str) else given
            object.__setattr__(self, name, None if given is None else [word for word in words if word])
        if self.roles is not None:
            object.__setattr__(self, "roles", self.lines)

    @property
    def lines(self) -> dict[str, str]:
        """The lines of `roles`."""
        return read_roles(self.roles) if isinstance(self.roles, str | Path) else check_roles(self.roles or {})


def chosen(names: Iterable[str]) -> dict[str, Measure]:
    """Measures by name, each once. With alpha, ranks and norms are read off its full spectrum: one pass for all."""
    wanted = dict.fromkeys(names)
    for name in wanted:
        if name not in SCANNED:
            raise BadInput(f"measures must be among {', '.join(SCANNED)}, got {name!r}", argument="measures")
    if not wanted:
        raise BadInput(f"measures must name at least one of {', '.join(SCANNED)}", argument="measures")
    found = {name: SCANNED[name] for name in wanted}
    for name, measure in found.items() if "alpha" in wanted else ():
        if isinstance(measure, WeightMeasure) and measure.compute is leading_spectrum:
            found[name] = replace(measure, compute=full_spectrum, stacked=full_spectra, side_by_side=True)
    return found


def plan(series: Series, what: What | None = None, *, device: str = "cpu", **options: Any) -> Plan:
    """Settle what a sweep of `series` reads.

    - what: what is measured
    - device: where
    - options: fields of `What`, in place of those of `what`

    A measure that the architecture cannot give is refused here, before its weights are read; the others stay.
    Raises CheckpointError where none is left, architectures are mixed or the matrices cannot be found, NoneUsable
    where no checkpoint can be opened.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> from joma.scan import open_series
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"h.0.mlp.c_fc.weight": torch.eye(4)}, f"{folder}/step0.safetensors")
    ...     plan(open_series(folder, downloads=Path(folder))).groups
    {'mlp': ('h.0.mlp.c_fc.weight',)}
    """
    what = replace(what or What(), **options)
    asked = chosen(what.measures)
    with as_bad_input():
        missing = lacking(device)
    if missing:
        raise BadInput(missing, argument="device")
    running = [name for name, measure in asked.items() if measure.needs in ("attention", "text")]
    text, tokenizer = (None if path is None else Path(path) for path in (what.text, what.tokenizer))
    if running and text is None:
        raise BadInput(f"{running[0]} runs the model on a text, and no text is given", argument="text")
    but = f"but measures {','.join(asked)} does not read"
    if text is not None and not running:
        raise BadInput(f"text is for measures that run the model, {but} a text", argument="text")
    for argument in ("tokenizer", "seq_len"):
        if getattr(what, argument) is not None and text is None:
            raise BadInput(f"{argument} is for a text, {but} one", argument=argument)
    if what.groups == []:
        raise BadInput("groups must name at least one group of matrices, such as mlp", argument="groups")
    refused, read_by = _configs(series, running)
    kept = {name: measure for name, measure in asked.items() if name not in refused}
    if not kept:
        raise CheckpointError(next(iter(refused.values())))
    look = _agreed(series, what, kept, torch.device(device))
    notes = [*series.notes, *look.notes]
    tokens, width, warnings = None, None, list[str]()
    if read_by is not None and text is not None:
        place, config = read_by
        if what.seq_len is not None:
            must_take(config, what.seq_len)
        tokens = tokens_of(place, config, text, tokenizer, seq_len=what.seq_len)
        width = min(default_seq_len(config), len(tokens)) if what.seq_len is None else what.seq_len
        notes.append(describe_windows([name for name in running if name in look.measures], text, width, len(tokens)))
        notes += filter(None, [unknown_training(config, width)])
        warnings += filter(None, [beyond_training(config, width)])
    if not look.groups:
        notes.append("no matrices were found by name, so steps were not compared with each other")
    refused |= look.refused
    return replace(
        look, refused=refused, notes=tuple(notes), warnings=tuple(warnings), tokens=tokens, seq_len=width
    )  # fmt: skip


_MUST_SUIT = {"spread": must_show_queries, "allocation": must_have_gradients}
"""What refuses a model by its config and its name, before its weights are read; for other measures `must_attend`."""


def _configs(series: Series, running: Iterable[str]) -> tuple[dict[str, str], tuple[Place, Any] | None]:
    """Measures that run the model: those refused, with the reason, and for the others a place with its config.

    The first place whose config can be read speaks for all; one that differs is a fault of its step.
    """
    refused: dict[str, str] = {}
    read_by: tuple[Place, Any] | None = None
    for name in running:
        try:
            if SCANNED[name].needs == "text" and len(series.places) < 2:
                one = f"{series.source} has one alone"
                raise CheckpointError(f"{name} is of the change between two checkpoints, and {one}")
            place, config = _first_config(series)
            _MUST_SUIT.get(name, must_attend)(config, place.name)
            read_by = place, config
        except CheckpointError as error:
            refused[name] = str(error)
    return refused, read_by


def _first_config(series: Series) -> tuple[Place, Any]:
    first: CheckpointError | None = None
    for place in series.places[:_CONFIGS]:
        try:
            return place, config_of(place)
        except CheckpointError as error:
            first = first or error
    raise first or CheckpointError(f"{series.source} has no checkpoint")


def _agreed(series: Series, what: What, measures: Mapping[str, Measure], device: torch.device) -> Plan:
    """What most of a few checkpoints hold; without a majority nobody can say which checkpoint is the odd one."""
    _must_be_one_model_type(series)
    looks = _looks(series, lambda place: _look(series, place, what, measures, device))
    kinds = Counter(look.model_type for _, look in looks if look.model_type is not None)
    kind = kinds.most_common(1)[0][0] if kinds else None  # a checkpoint without config.json is of no other kind
    signatures = [repr((look.model_type or kind, look.groups, look.shapes)) for _, look in looks]
    signature, count = Counter(signatures).most_common(1)[0]
    if len(looks) > 1 and count < 2:
        both = f"{_described(*looks[0])}, but {_described(*looks[1])}; scan them separately"
        raise CheckpointError(f"{series.source} mixes architectures: {both}")
    agreeing = [look for (_, look), each in zip(looks, signatures, strict=True) if each == signature]
    return min(agreeing, key=lambda look: look.model_type is None)  # one with a config can also be run


def fault_of(place: Place, error: CheckpointError, measure: str | None = None) -> Fault:
    """An error as what a report lists."""
    return Fault(place.step, place.name, error.file, error.tensor, str(error), measure)


def _must_be_one_model_type(series: Series) -> None:
    """Local configs are cheap to read, so a folder of different models is refused before any of them is measured."""
    first: dict[str, str] = {}
    for place in series.places:
        if not isinstance(place, LocalFolder):
            continue
        with suppress(CheckpointError):  # the sweep will report it with its step
            first.setdefault(model_type(place) or "", place.name)
    first.pop("", None)
    if len(first) > 1:
        (one, at), (other, there) = list(first.items())[:2]
        raise CheckpointError(f"{series.source} mixes architectures: {at} is {one}, {there} is {other}")


def _looks(series: Series, look: Callable[[Place], Plan]) -> list[tuple[Place, Plan]]:
    """The first, last and middle checkpoints, or others in place of those that cannot be opened."""
    places = series.places
    order = {place.step: place for place in (places[0], places[-1], places[len(places) // 2], *places)}
    looks: list[tuple[Place, Plan]] = []
    faults: list[Fault] = []
    unknown: list[UnknownNames] = []
    for place in order.values():
        if _LOOKS in (len(looks), len(unknown)):
            break
        try:
            looks.append((place, look(place)))
        except CheckpointError as error:
            faults.append(fault_of(place, error))
            unknown += [error] if isinstance(error, UnknownNames) else []
    if not looks and unknown:
        raise unknown[0]
    if not looks:
        raise NoneUsable(series.source, sorted(faults, key=lambda fault: fault.step))
    return looks


def _look(series: Series, place: Place, what: What, measures: Mapping[str, Measure], device: torch.device) -> Plan:
    """What one checkpoint holds of what is wanted: a plan without a text."""
    kind, refused, patterns = model_type(place), dict[str, str](), what.patterns or {}
    with place.open() as checkpoint:
        names = checkpoint.names()
        shape: Shape = lambda name: checkpoint.stored(name).shape
        known = find_groups(names, patterns, root=what.root, shape=shape, model_type=kind, roles=what.lines)
        groups = _chosen(known, what, measures, names, kind, refused)
        for group, name in [(group, name) for group, tensors in groups.items() for name in tensors]:
            try:
                check_matrix(checkpoint.stored(name), name, checkpoint.file_of(name))
            except CheckpointError as error:
                sentence = f"the pattern {group}: {error}" if group in patterns else str(error)
                raise UnknownNames(sentence, argument="patterns" if group in patterns else "") from None
        shapes = {name: shape(name) for tensors in groups.values() for name in tensors}
        # What is not known does not matter where no measure is of matrices.
        aside = not_taken(names, known, checkpoint.stored, what.root, what.lines) if _measures_of(MLP, measures) else {}
        notes = (*root_notes(names, what.root), *checkpoint.notes(), *not_taken_notes(aside, checkpoint.stored))
    kept = {name: measure for name, measure in measures.items() if name not in refused}
    return Plan(
        series,
        kept,
        kind,
        groups,
        known,
        shapes,
        device,
        None,
        refused,
        coverage(groups, names),
        notes,
        not_taken=tuple(aside),
    )


def _measures_of(group: str, measures: Mapping[str, Measure]) -> list[str]:
    """The measures of matrices (MLP), or of the embedding."""
    return [name for name, measure in measures.items() if measure.needs == _needs(group)]


def _chosen(
    known: Groups, what: What, measures: Mapping[str, Measure], names: list[str], kind: str | None,
    refused: dict[str, str],
) -> Groups:  # fmt: skip
    """The groups to read. A measure whose tensors are not there is refused; only if none is left that is an error."""
    groups: Groups = {}
    failed: UnknownNames | None = None
    for of in (MLP, EMBEDDING):
        if not (mine := _measures_of(of, measures)):
            continue
        try:
            embedding = of == EMBEDDING
            groups |= pick_groups(known, [of], names, kind) if embedding else _matrices(known, what, names, kind)
        except UnknownNames as error:
            failed = failed or error
            refused |= dict.fromkeys(mine, str(error))
    if failed and len(refused) == len(measures):
        raise failed
    if groups or not known:
        return groups
    # Where only the running model is measured, the integrity gate looks at one group, whichever there is.
    gated = MLP if MLP in known else next(iter(known))
    return {gated: known[gated]}


def _matrices(known: Groups, what: What, names: list[str], kind: str | None) -> Groups:
    """All groups of matrices, or those that were named: "attention" and "mlp" stand for several where there is none."""
    if what.groups is None:
        every = {group: known[group] for group in known if group != EMBEDDING}
        must = [*([] if every else [MLP]), *(each for each in what.patterns or () if each != EMBEDDING)]
        return every | pick_groups(known, must, names, kind)
    found: Groups = {}
    for group in what.groups:
        if group not in {*known, MLP, "attention"}:
            raise BadInput(f"{group} is none of the groups found here: {', '.join(known)}", argument="groups")
        found |= {group: known[group]} if group in known else pick_groups(known, [group], names, kind)
    return found


def _described(place: Place, look: Plan) -> str:
    names = [name for group in look.groups.values() for name in group]
    such = f" such as {names[0]} {look.shapes[names[0]]}" if names else ""
    return f"{place.name} has {counted(len(names), 'matrix', 'matrices')}{such}"
