"""Folders that DeepSpeed and programs on top of it wrote (Megatron-DeepSpeed, GPT-NeoX).

- `mp_rank_00_model_states.pt`, ...: the weights under "module", one file per part of tensor parallelism. ZeRO stages 1
  and 2 leave them whole, in 16 bits.
- `layer_03-model_00-model_states.pt`, ...: one file per layer of a pipeline, and per part of tensor parallelism.
- `consolidated.00.pth`, ...: not of DeepSpeed, but cut in the same way. So are `mp_rank_00/model_optim_rng.pt`, ... of
  Megatron-LM, which has the weights under "model".
- `zero_pp_rank_0_mp_rank_00_model_states.pt`, ...: ZeRO stage 3. The weights lie in 32 bits in the files of the
  optimizer: every rank holds one slice of each weight, one weight after the other. `param_shapes` says in which order.

What tensor parallelism has cut is joined along a dimension that depends on the layer. Megatron-LM, its DeepSpeed
version and GPT-NeoX share names, and for these the rule is known: layers that are cut by outputs are joined by rows,
those cut by inputs by columns, the rest is the same in every part. A matrix with another name is refused.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from joma.scan.errors import CheckpointError, Unmeasurable
from joma.scan.formats.checkpoint import TOGETHER
from joma.scan.formats.tensor_file import Stored, TensorFile, closed_on_error
from joma.scan.formats.torch_file import TorchFile

_BLOCK = re.compile(r"(.*\.)?(mlp|attention|self_attention|attn)\..*")
_CONVERTER = "convert it with zero_to_fp32.py, which DeepSpeed puts beside its checkpoints"

_BY_ROWS = re.compile(
    r"(.*\.)?(query_key_value|query|key|value|key_value|linear_qkv|q_proj|k_proj|v_proj|dense_h_to_4h|linear_fc1|gate_proj|up_proj|"
    r"w1|w3|wq|wk|wv|output|word_embeddings|embed_tokens|final_linear|lm_head|embed_out|output_layer)\.(weight|bias)"
)
_BY_COLUMNS = re.compile(
    r"(.*\.)?((self_)?attention\.dense|(self_)?attn\.dense|dense_4h_to_h|linear_proj|linear_fc2|o_proj|down_proj|w2|wo)\.weight"
)
# Llama was published with embeddings cut by columns, since Llama 3 by rows: the width of the last norm tells.
_BY_WIDTH = re.compile(r"tok_embeddings\.weight")
_UPPER = {"dense_h_to_4h": "dense_4h_to_h", "linear_fc1": "linear_fc2"}
_LOWER = re.compile(r"(.*?)(dense_h_to_4h|linear_fc1)\.(weight|bias)")
_EVERYWHERE = re.compile(r".*(norm|ln_|position|rotary|inv_freq|masked_bias).*|.*bias|.*_extra_state", re.I)

Open = Callable[[str], TorchFile]


@dataclass(frozen=True)
class Source:
    """A tensor of a file, under the name that it has there."""

    file: TensorFile
    name: str

    @property
    def stored(self) -> Stored:
        return self.file.tensors[self.name]


class JoinedFile(TensorFile):
    """Tensors that are each made of one part or several."""

    def __init__(
        self, name: str, files: Iterable[TensorFile], parts: Mapping[str, Sequence[Source]], notes: Sequence[str] = (),
        along: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self._along = along
        self.name = name
        self.notes = tuple(notes)
        self._files = list(files)
        self._parts = parts
        norm = parts["norm.weight"][0].stored.shape if "norm.weight" in parts else ()
        self._width = norm[0] if len(norm) == 1 else None  # of the states between layers
        self.tensors = {tensor: self._described(tensor, sources) for tensor, sources in parts.items()}

    def read(self, tensor: str) -> Tensor:
        sources = self._parts[tensor]
        dim = self._dimension(tensor) if len(sources) > 1 else -1
        if dim is None:
            how = "how they join is not known; convert the checkpoint with the tools of the program that wrote it"
            what = f"{tensor} lies in {len(sources)} parts in {self.name}, and {how}"
            raise Unmeasurable(what, file=self.name, tensor=tensor)  # the other tensors are as good as ever
        if dim < 0:
            return sources[0].file.read(sources[0].name)
        parts = [source.file.read(source.name) for source in sources]
        # Every part may be a piece of the gate above one of the up projection: two rows per column of the next.
        found = _LOWER.fullmatch(tensor) if self._along is None else None
        back = self.tensors.get(f"{found[1]}{_UPPER[found[2]]}.weight") if found else None
        if back and len(back.shape) == 2 and self.tensors[tensor].shape[0] == 2 * back.shape[1]:
            parts = [part.chunk(2)[at] for at in (0, 1) for part in parts]
        return torch.cat(parts, dim)

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        sources = self._parts[tensor]
        if len(sources) == 1:
            return sources[0].file.read_rows(sources[0].name, start, stop)
        return self.read(tensor)[start:stop]

    def prefetch(self, tensor: str) -> None:
        for source in self._parts[tensor]:
            source.file.prefetch(source.name)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _described(self, tensor: str, sources: Sequence[Source]) -> Stored:
        first = sources[0].stored
        dim = self._dimension(tensor) if len(sources) > 1 else None
        if dim is None or dim < 0:
            return first
        shapes = [source.stored.shape for source in sources]
        if len({(s.stored.shape[:dim], s.stored.shape[dim + 1 :], s.stored.dtype) for s in sources}) > 1:
            what = f"the parts of {tensor} in {self.name} do not fit together: {str(shapes)[:80]}"
            raise CheckpointError(what, tensor=tensor)
        length = sum(shape[dim] for shape in shapes)
        return Stored((*first.shape[:dim], length, *first.shape[dim + 1 :]), first.dtype)

    def _dimension(self, tensor: str) -> int | None:
        """Along which dimension parts are joined; -1: all are the same; None: not known."""
        if self._along is not None:
            return self._along[tensor]
        shape, count = self._parts[tensor][0].stored.shape, len(self._parts[tensor])
        if _BY_WIDTH.fullmatch(tensor) and len(shape) == 2 and self._width in (shape[1], count * shape[1]):
            return int(shape[1] != self._width)
        if _BY_ROWS.fullmatch(tensor) and shape:
            return 0
        if _BY_COLUMNS.fullmatch(tensor) and len(shape) == 2:
            return 1
        return -1 if _EVERYWHERE.fullmatch(tensor) or len(shape) == 0 else None


# Where the weights are in a file, and what such files are called.
_RANKS = {
    "ranks": ("module.", "mp_rank_*"),
    "megatron": ("model.", "mp_rank_*/"),
    "consolidated": ("", "consolidated.*"),
}


def rank_states(names: Sequence[str], open_file: Open, where: str) -> JoinedFile:
    """The weights of `mp_rank_*` files or folders, or of `consolidated.00.pth`, ..., as Llama was first published."""
    kind = next(kind for kind in _RANKS if TOGETHER[kind].fullmatch(names[0]))
    prefix, called = _RANKS[kind]
    ranks = {int(found[1]): name for name in names if (found := TOGETHER[kind].fullmatch(name))}
    files = opened(in_order(ranks, where), open_file)
    parts: dict[str, list[Source]] = {}
    with closed_on_error(*files):
        for file in files:
            inside = [name for name in file.tensors if name.startswith(prefix)]
            if not inside and kind == "ranks":
                raise file.wrong("holds no weights under 'module'; those of a pipeline are in layer_* files beside it")
            if not inside and prefix:
                raise file.wrong(f"holds no weights under {prefix[:-1]!r}")
            for name in inside:
                parts.setdefault(name.removeprefix(prefix), []).append(Source(file, name))
    return _joined(where, files, parts, f"tensor-parallel files ({called})")


def layer_states(names: Sequence[str], open_file: Open, where: str) -> JoinedFile:
    """The weights of `layer_*` files, with the names of blocks counted from 0: "layers.0.mlp.dense_h_to_4h.weight"."""
    by_layer: dict[int, dict[int, str]] = {}
    for name in names:
        if found := TOGETHER["layers"].fullmatch(name):
            by_layer.setdefault(int(found[1]), {})[int(found[2])] = name
    width = max(map(len, by_layer.values()))
    if any(len(ranks) != width for ranks in by_layer.values()):
        raise CheckpointError(f"{where} does not hold {width} parts of every layer; a file is missing", file=where)
    parts: dict[str, list[Source]] = {}
    blocks = 0
    files = opened([name for layer in sorted(by_layer) for name in in_order(by_layer[layer], where)], open_file)
    for at, layer in enumerate(sorted(by_layer)):
        mine = files[at * width : (at + 1) * width]
        block = any(_BLOCK.fullmatch(name) for name in mine[0].tensors)
        prefix = f"layers.{blocks}" if block else f"layer_{layer:02d}"
        blocks += block
        for source in (Source(file, name) for file in mine for name in file.tensors):
            parts.setdefault(f"{prefix}.{source.name}", []).append(source)
    return _joined(where, files, parts, "tensor-parallel files (layer_*)")


def _joined(where: str, files: list[TorchFile], parts: dict[str, list[Source]], what: str) -> JoinedFile:
    count = max(map(len, parts.values()), default=0)
    with closed_on_error(*files):
        uneven = next((name for name, sources in parts.items() if len(sources) not in (1, count)), None)
        if uneven is not None:
            raise CheckpointError(f"{uneven} is in only some of the {count} {what} of {where}", tensor=uneven)
        note = f"every weight was joined from {count} {what}"
        return JoinedFile(where, files, parts, [note] if count > 1 else [])


class ZeroFile(TensorFile):
    """The weights of ZeRO stage 3."""

    def __init__(self, names: Sequence[str], open_file: Open, where: str) -> None:
        """names: the `zero_pp_rank_*` files. open_file: opens one. where: the folder."""
        self.name = where
        self.notes = ("the weights are the 32-bit ones of the optimizer, joined from the slices of ZeRO stage 3",)
        self._files: list[TorchFile] = []
        model, optim = (self._ranks(names, kind) for kind in ("model", "optim"))
        if len(model) != len(optim):
            raise self.wrong(f"holds {len(model)} files of the model and {len(optim)} of the optimizer")
        with closed_on_error(self):
            self._files = opened(optim, self._explained(open_file))
            self._flat = [_flat(file) for file in self._files]
            models = opened(model, self._explained(open_file))
            self._files += models
            self._places = self._layout(_shapes(models[0], "param_shapes"))
            self._frozen = _frozen(models)
        shapes = {name: shape for name, (shape, _) in [*self._places.items(), *self._frozen.items()]}
        self.tensors = {name: Stored(shape, torch.float32) for name, shape in shapes.items()}

    def read(self, tensor: str) -> Tensor:
        """One weight, from its slices; the last slice ends in numbers that fill it up."""
        if tensor in self._frozen:
            shape, pieces = self._frozen[tensor]
            found = torch.cat([file.numbers(tensor, piece) for file, piece in pieces])
            return found[: prod(shape)].view(shape).float()
        shape, offset = self._places[tensor]
        slices = [self._slice(tensor, rank, offset, self._length(shape)) for rank in range(len(self._flat))]
        return torch.cat(slices)[: prod(shape)].view(shape).float()

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _slice(self, tensor: str, rank: int, offset: int, length: int) -> Tensor:
        found: list[Tensor] = []
        for group in self._flat[rank]:
            begin, end = max(offset, 0), min(offset + length, group.numel())
            if begin < end:
                found.append(self._files[rank].numbers(tensor, group[begin:end]))
            offset -= group.numel()
        return torch.cat(found)

    def _length(self, shape: tuple[int, ...]) -> int:
        return -(-prod(shape) // len(self._flat))

    def _layout(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[tuple[int, ...], int]]:
        found: dict[str, tuple[tuple[int, ...], int]] = {}
        offset = 0
        for name, shape in shapes.items():
            found[name] = shape, offset
            offset += self._length(shape)
        if (held := {sum(group.numel() for group in groups) for groups in self._flat}) != {offset}:
            counts = ", ".join(f"{n:,}" for n in sorted(held))
            what = f"hold {counts} numbers, and param_shapes describes {offset:,}; {_CONVERTER}"
            raise CheckpointError(f"the ranks in {self.name} {what}", file=self.name)
        return found

    def _ranks(self, names: Collection[str], kind: str) -> list[str]:
        matches = filter(None, map(TOGETHER["zero"].fullmatch, names))
        found = {int(m[1]): (int(m[2]), m[0]) for m in matches if m[3] == kind}
        if any(part for part, _ in found.values()):
            raise self.wrong(f"is cut by ZeRO stage 3 and tensor parallelism; {_CONVERTER}")
        if not found:
            raise self.wrong(f"has no zero_pp_rank_*_{kind}_states.pt, so its weights are not there")
        return in_order({rank: name for rank, (_, name) in found.items()}, self.name)

    def _explained(self, open_file: Open) -> Open:
        def opened(name: str) -> TorchFile:
            try:
                return open_file(name)
            except CheckpointError as error:
                raise CheckpointError(f"{error}; or {_CONVERTER}", file=error.file) from None

        return opened


def _flat(file: TorchFile) -> list[Tensor]:
    state = file.content.get("optimizer_state_dict")
    groups = state.get("fp32_flat_groups") if isinstance(state, dict) else None
    found = groups if isinstance(groups, list) else []
    if not found or not all(isinstance(group, Tensor) and group.ndim == 1 for group in found):
        raise file.wrong(f"has no fp32_flat_groups of ZeRO stage 3; {_CONVERTER}")
    return found


_Frozen = dict[str, tuple[tuple[int, ...], list[tuple[TorchFile, Tensor]]]]


def _frozen(models: Sequence[TorchFile]) -> _Frozen:
    """Weights that are not trained lie in the files of the model: their shapes, and the slice of every rank."""
    if not models[0].content.get("frozen_param_shapes"):
        return {}
    found: _Frozen = {}
    for name, shape in _shapes(models[0], "frozen_param_shapes").items():
        pieces: list[tuple[TorchFile, Tensor]] = []
        for file in models:
            held = file.content.get("frozen_param_fragments")
            piece = held.get(name) if isinstance(held, dict) else None
            if not isinstance(piece, Tensor) or piece.ndim != 1:
                what = f"{file.name} lacks its slice of {name}; {_CONVERTER}"
                raise CheckpointError(what, file=file.name, tensor=name)
            pieces.append((file, piece))
        if sum(piece.numel() for _, piece in pieces) < prod(shape):
            raise CheckpointError(f"the slices of {name} do not fill its shape {shape}; {_CONVERTER}", tensor=name)
        found[name] = shape, pieces
    return found


def _shapes(file: TorchFile, key: str) -> dict[str, tuple[int, ...]]:
    groups = file.content.get(key)
    found: dict[str, tuple[int, ...]] = {}
    for group in groups if isinstance(groups, list) else [groups]:
        for name, shape in group.items() if isinstance(group, dict) else [(None, None)]:
            sized = isinstance(shape, tuple) and all(isinstance(n, int) and 0 < n < 2**40 for n in shape)
            if not isinstance(name, str) or not sized or shape is None:
                raise file.wrong(f"has no {key} that say how its weights lie; {_CONVERTER}")
            found[name] = tuple(shape)
    return found


def in_order(ranks: Mapping[int, str], where: str) -> list[str]:
    """The files by rank, or a sentence on the first that is not there."""
    for rank in range(max(ranks) + 1):
        if rank not in ranks:
            raise CheckpointError(f"{where} lacks part {rank} beside {ranks[max(ranks)]}", file=where)
    return [ranks[rank] for rank in sorted(ranks)]


def opened(names: Sequence[str], open_file: Open) -> list[TorchFile]:
    """All of the files; none stays open if one cannot be opened."""
    with ExitStack() as stack:
        files = [stack.enter_context(closing(open_file(name))) for name in names]
        stack.pop_all()
    return files
