"""One model at one step: its tensors by name, whichever files they lie in, and which files of a folder these are."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from joma.host.words import counted
from joma.scan.errors import CheckpointError
from joma.scan.formats.adapter import CONFIG
from joma.scan.formats.recipes import recipes_of
from joma.scan.formats.tensor_file import Rows, Stored, TensorFile, Wanted, closed_on_error, parsed_json

TORCH_ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pth.tar")
ENDINGS = (".safetensors", *TORCH_ENDINGS, ".gguf", ".distcp")
_PART = re.compile(r"(?P<tensor>.+)\[(?P<index>[0-9:]{1,40}(?:,[0-9:]{1,40}){0,2})\]", re.S)
_ENTRY = re.compile(r"(?P<at>\d{1,15})|(?P<start>\d{0,15}):(?P<stop>\d{0,15})(?::(?P<stride>[1-9]\d{0,14}))?")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")
# Several files that are one checkpoint only together, and what such a folder is called here.
TOGETHER = {
    "layers": re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt"),
    "ranks": re.compile(r"mp_rank_(\d+)_model_states\.pt"),
    "megatron": re.compile(r"mp_rank_(\d+)/(?:(?:model_optim_rng|model_rng)\.pt|model_weights\.ckpt)"),
    "zero": re.compile(r"(?:\w+_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(model|optim)_states\.pt"),
    "consolidated": re.compile(r"consolidated\.(\d+)\.pth"),
    "fsdp": re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt"),
    "dcp": re.compile(r"[^/]+\.distcp"),
}
# As transformers and diffusers choose.
_STEMS = (
    ("model", ".safetensors"), ("pytorch_model", ".bin"), ("diffusion_pytorch_model", ".safetensors"),
    ("diffusion_pytorch_model", ".bin"),
)  # fmt: skip
# What training leaves next to the weights, in the same formats.
NO_WEIGHTS = re.compile(
    r"(optim|scheduler|scaler|training_args|rng_state|random_states|trainer_state|recipe_state|train\.|other\.|distrib_optim|"
    r"model_world_size|extra_state_world_size|common\.pt).*"
)

OF_TEXTS = frozenset({"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt",
                      "merges.txt", "spiece.model"})  # fmt: skip
"""What makes the tokens that a model reads."""
_DESCRIBES = OF_TEXTS | {CONFIG, "config.json", ".metadata"}


def ends_in(name: str, endings: tuple[str, ...] = ENDINGS) -> bool:
    """Whether a file has one of the endings, in small letters or capitals.

    >>> ends_in("Step_100.PT"), ends_in("notes.txt")
    (True, False)
    """
    return name.lower().endswith(endings)


@dataclass(frozen=True)
class Part:
    """A part of the tensor `base`: one index or slice per dimension, the first dimensions first.

    A part is named as numpy would write it: `experts.down_proj[3]` is one expert of a stack of them, the slice 3 along
    the first dimension; `gate_up_proj[0:24]` are the first 24 rows, `experts.gate_up_proj[3,:,0::2]` every other column
    of slice 3.
    """

    base: str
    index: tuple[int | slice, ...]

    def shape(self, full: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the part of a tensor of the shape `full`; ValueError where it has no such part."""
        if len(self.index) > len(full):
            raise ValueError(f"has {len(full)} dimensions")
        kept: list[int] = []
        for entry, length in zip(self.index, full, strict=False):
            if isinstance(entry, int):
                if entry >= length:
                    raise ValueError(f"has only {length} slices")
            elif max(entry.start or 0, entry.stop or 0) > length:
                raise ValueError(f"has only {length} entries along a dimension")
            else:
                kept.append(len(range(*entry.indices(length))))
        return (*kept, *full[len(self.index) :])

    def rows(self, length: int) -> tuple[int, int]:
        """From where to where the part lies along the first dimension of `length`: all of it that must be read."""
        first = self.index[0]
        return (first, first + 1) if isinstance(first, int) else first.indices(length)[:2]

    def of_rows(self, rows: Tensor) -> Tensor:
        """The part, from the rows that `rows(length)` named and nothing else."""
        first = self.index[0]
        start: int | slice = 0 if isinstance(first, int) else slice(None, None, first.step)
        return rows[(start, *self.index[1:])]


def part_of(name: str) -> Part | None:
    """What a name of a part means; None for the name of a full tensor."""
    found = _PART.fullmatch(name)
    entries = [_ENTRY.fullmatch(text) for text in found["index"].split(",")] if found else [None]
    index: list[int | slice] = []
    for entry in entries:
        if found is None or entry is None:
            return None
        start, stop, stride = (int(text) if text else None for text in entry.group("start", "stop", "stride"))
        index.append(slice(start, stop, stride) if entry["at"] is None else int(entry["at"]))
    return Part(found["tensor"], tuple(index)) if found else None


def tensor_of(name: str) -> str:
    """The tensor that a name speaks of, or of a part of which it speaks."""
    part = part_of(name)
    return name if part is None else part.base


class Checkpoint(AbstractContextManager["Checkpoint"]):
    """Tensors of one step. Files are opened when a tensor of theirs is first needed; use it in a `with` block.

    A name "NAME[3]" is a `Part` of the tensor NAME: little more than that is read. Such names are not listed. What is
    stored in parts that say nothing alone (integers and their scales, the two factors of an adapter) has one name, and
    `notes` says how it was read.
    """

    def __init__(
        self, files: Mapping[str, Callable[[], TensorFile]], index: Mapping[str, str] | None, *,
        config: Mapping[str, Any] | None = None, adapter: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._openers = files
        self._open: dict[str, TensorFile] = {}
        self._last: Callable[[], None] = lambda: None
        self._remarks: list[str] = []
        self._place: dict[str, str] = dict(index or {})
        with closed_on_error(self):
            held = ((file, tensor) for file in files for tensor in self._opened(file).tensors)
            for file, tensor in held if index is None else ():
                if tensor in self._place:  # two parts of it, or two models: nobody can say which is meant
                    both = f"{tensor} is both in {self._place[tensor]} and in {file}"
                    raise CheckpointError(both, file=file, tensor=tensor)
                self._place[tensor] = file
            self._recipes = recipes_of(self._place, lambda name: self.look(name).shape, config, adapter)
        self._used = {part for recipe in self._recipes.values() for part in recipe.parts}

    def names(self) -> list[str]:
        stored = [name for name in self._place if name in self._recipes or name not in self._used]
        return [*stored, *(name for name in self._recipes if name not in self._place)]

    def stored_names(self) -> list[str]:
        return list(self._place)

    def notes(self) -> tuple[str, ...]:
        """What was done to read it beyond reading it, one sentence each: dequantised, joined, merged."""
        done: Counter[str] = Counter()
        for recipe in self._recipes.values():
            try:
                done[recipe.note(self)] += 1
            except CheckpointError:  # reading it will say what is wrong
                continue
        done.pop("", None)
        counts = [f"{counted(n, 'tensor')} {'was' if n == 1 else 'were'} {note}" for note, n in done.items()]
        of_files = (note for file in self._open.values() for note in file.notes)
        return tuple(dict.fromkeys([*self._remarks, *of_files, *counts]))

    def remark(self, sentence: str) -> None:
        self._remarks.append(sentence)

    def file_of(self, tensor: str) -> str | None:
        """The file that holds the tensor; None if there is no such tensor."""
        return self._place.get(self._sources(self._split(tensor)[0])[0])

    def stored(self, tensor: str) -> Stored:
        name, part = self._split(tensor)
        full = self._recipes[name].stored(self) if name in self._recipes else self.look(name)
        if part is None:
            return full
        try:
            return Stored(part.shape(full.shape), full.dtype)
        except ValueError as error:
            what = f"{tensor} is not part of {name}, which {error}"
            raise CheckpointError(what, file=self.file_of(name), tensor=tensor) from None

    def read(self, tensor: str) -> Tensor:
        name, part = self._split(tensor)
        if part is None:
            return self._made(name, None)
        self.stored(tensor)  # or a sentence that says what is wrong with the part
        return part.of_rows(self._made(name, part.rows(self.stored(name).shape[0])))

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """Entries `start` to `stop` of the first dimension of a tensor."""
        return self._made(tensor, (start, stop))

    def prefetch(self, tensor: str) -> None:
        """Say that this tensor is read next; for one that is not there, reading it will say so."""
        name, part = self._split(tensor)
        for source in self._sources(name) if part is None else ():  # all of it would be too much for a part
            if source in self._place and source in self._opened(self._place[source]).tensors:
                self._opened(self._place[source]).prefetch(source)

    def expect(self, batches: Sequence[Sequence[str]]) -> None:
        by_file: dict[str, list[list[Wanted]]] = {}
        for at, tensor in ((at, tensor) for at, batch in enumerate(batches) for tensor in batch):
            name, part = self._split(tensor)
            for source in self._sources(name):
                file = self._place.get(source)
                if file is not None and source in self._opened(file).tensors:
                    rows = self._rows_of(name, part)
                    by_file.setdefault(file, [[] for _ in batches])[at].append((source, rows))
        for file, wanted in by_file.items():
            self._opened(file).expect(wanted)

    def _rows_of(self, name: str, part: Part | None) -> Rows | None:
        """The rows that a part takes from the tensor `name`; None: all of it, or nobody can say."""
        if part is None or name in self._recipes:
            return None
        first = self.look(name).shape[:1]
        return part.rows(first[0]) if first and part.rows(first[0])[1] <= first[0] else None

    def look(self, part: str) -> Stored:
        """Shape and number format of what a file holds under a name, without undoing anything."""
        return self._file_with(part).tensors[part]

    def take(self, part: str, rows: Rows | None = None) -> Tensor:
        """What a file holds under a name, or some rows of it, without undoing anything."""
        file = self._file_with(part)
        return file.read(part) if rows is None else file.read_rows(part, *rows)

    def open_all(self) -> None:
        """Open every file, so that a missing or truncated one is found even if no measure needs it."""
        for file in self._openers:
            self._opened(file)

    def after_close(self, call: Callable[[], None]) -> None:
        self._last = call

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
        last, self._last = self._last, lambda: None
        last()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _made(self, name: str, rows: Rows | None) -> Tensor:
        recipe = self._recipes.get(name)
        try:
            return recipe.read(self, rows) if recipe else self.take(name, rows)
        except CheckpointError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError) as error:  # parts that no program writes
            if recipe is None:
                raise
            why = " ".join(str(error).split())[:100]
            raise CheckpointError(f"{name} cannot be made from its parts: {why}", tensor=name) from None

    def _split(self, tensor: str) -> tuple[str, Part | None]:
        part = None if tensor in self._place or tensor in self._recipes else part_of(tensor)
        return (part.base, part) if part else (tensor, None)

    def _sources(self, name: str) -> tuple[str, ...]:
        return self._recipes[name].parts if name in self._recipes else (name,)

    def _file_with(self, tensor: str) -> TensorFile:
        place = self._place.get(tensor)
        if place is None:
            raise CheckpointError(f"{tensor} is in no file of the checkpoint", tensor=tensor)
        file = self._opened(place)
        if tensor not in file.tensors:
            raise CheckpointError(f"the index puts {tensor} in {place}, but it is not there", file=place, tensor=tensor)
        return file

    def _opened(self, file: str) -> TensorFile:
        if file not in self._open:
            self._open[file] = self._openers[file]()
        return self._open[file]


@dataclass(frozen=True)
class Weights:
    """The files of a checkpoint that hold its weights; index says which tensor is in which (None: ask the files).

    kind: "" where each file stands for itself; "layers", "ranks", "zero" (DeepSpeed), "megatron", "consolidated",
    "fsdp" and "dcp" where they make sense only together; "adapter" for one that changes the weights of a base.
    """

    files: tuple[str, ...]
    index: Mapping[str, str] | None = None
    kind: str = ""

    def file_of(self, tensor: str) -> str | None:
        """The file with a tensor; None if only opening them could tell."""
        return self.index.get(tensor) if self.index else self.files[0] if len(self.files) == 1 else None


def choose_weights(names: Collection[str], read: Callable[[str], bytes], where: str) -> Weights:
    """Which of a folder's files are its weights: safetensors before torch files, as transformers chooses."""
    for stem, ending in _STEMS:
        if stem + ending in names:
            return Weights((stem + ending,))
        index = f"{stem}{ending}.index.json"
        if index in names:
            return _by_index(index, names, read, where)
    for name in ("adapter_model.safetensors", "adapter_model.bin"):
        if name in names and CONFIG in names:
            return Weights((name,), kind="adapter")
    if together := parts_of_one(names):
        return Weights(tuple(together[1]), kind=together[0])
    for endings in ((".safetensors",), TORCH_ENDINGS, (".gguf",)):
        fitting = sorted(n for n in names if ends_in(n, endings) and not NO_WEIGHTS.fullmatch(n))
        if len(fitting) == 1 and not _SHARD.fullmatch(fitting[0]):
            return Weights((fitting[0],))
        if fitting:
            return _shards(fitting, where)
    raise CheckpointError(f"{where} holds no weights: no {', '.join('*' + ending for ending in ENDINGS)}", file=where)


def is_read(name: str, weights: Weights) -> bool:
    """Whether a file of a checkpoint's folder says anything about its numbers: logs and the state of training do not.

    >>> [is_read(name, Weights(("model.pt",))) for name in ("model.pt", "config.json", "README.md", "optimizer.pt")]
    [True, True, False, False]
    """
    if name in weights.files or name.endswith(".index.json") or name in _DESCRIBES:
        return True
    return weights.kind not in ("", "adapter") and ends_in(name) and not NO_WEIGHTS.fullmatch(name)


def parts_of_one(names: Collection[str]) -> tuple[str, list[str]] | None:
    """The files among `names` that are one checkpoint only together, and of which kind they are.

    >>> parts_of_one(["latest", "mp_rank_01_model_states.pt", "mp_rank_00_model_states.pt"])
    ('ranks', ['mp_rank_00_model_states.pt', 'mp_rank_01_model_states.pt'])
    """
    found = ((kind, sorted(filter(pattern.fullmatch, names))) for kind, pattern in TOGETHER.items())
    return next((each for each in found if each[1]), None)


def _by_index(index: str, names: Collection[str], read: Callable[[str], bytes], where: str) -> Weights:
    places = parsed_json(read(index), f"{where}/{index}").get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{where}/{index} has no weight_map from tensors to files", file=index)
    for tensor, file in places.items():
        # An index must not lead out of its folder.
        if not isinstance(file, str) or "/" in file or "\\" in file or not ends_in(file):
            what = f"puts {tensor} in {str(file)[:80]!r}, which is not a weights file beside it"
            raise CheckpointError(f"{where}/{index} {what}", file=index, tensor=tensor)
        if file not in names:
            raise CheckpointError(f"{file} is missing in {where}, and the index names it", file=file, tensor=tensor)
    return Weights(tuple(sorted(set(places.values()))), places)


def _shards(names: list[str], where: str) -> Weights:
    """Shards without an index: their names say how many there must be."""
    parts = [_SHARD.fullmatch(name) for name in names]
    families = {(part[1], part[3], part[4]) for part in parts if part}
    if None in parts or len(families) != 1:
        several = f"several weights files ({', '.join(names[:3])}, ...) and no index; name one of them"
        raise CheckpointError(f"{where} holds {several}", file=where)
    ((stem, total, ending),) = families
    wanted = [f"{stem}-{part:05d}-of-{total}{ending}" for part in range(1, int(total) + 1)]
    for file in wanted:
        if file not in names:
            raise CheckpointError(f"{file} is missing in {where}", file=file)
    return Weights(tuple(wanted))
