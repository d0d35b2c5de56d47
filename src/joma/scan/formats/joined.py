"""Tensors that lie in parts in several files: cut by tensor parallelism, and put together along the right dimension.

Which dimension that is depends on the layer. Megatron-LM, its DeepSpeed version and GPT-NeoX share names, and for these
the rule is known: layers that are cut by outputs are joined by rows, those cut by inputs by columns, the rest is the
same in every part. A matrix with another name is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from joma.scan.errors import CheckpointError
from joma.scan.formats.tensor_file import Stored, TensorFile

_BY_ROWS = re.compile(
    r"(.*\.)?(query_key_value|query|key|value|key_value|linear_qkv|q_proj|k_proj|v_proj|dense_h_to_4h|linear_fc1|gate_proj|up_proj|"
    r"w1|w3|wq|wk|wv|output|word_embeddings|embed_tokens|final_linear|lm_head|embed_out|output_layer)\.(weight|bias)"
)
_BY_COLUMNS = re.compile(
    r"(.*\.)?((self_)?attention\.dense|(self_)?attn\.dense|dense_4h_to_h|linear_proj|linear_fc2|o_proj|down_proj|w2|wo)\.weight"
)
_UPPER = {"dense_h_to_4h": "dense_4h_to_h", "linear_fc1": "linear_fc2"}
_LOWER = re.compile(r"(.*?)(dense_h_to_4h|linear_fc1)\.(weight|bias)")
_EVERYWHERE = re.compile(r".*(norm|ln_|position|rotary|inv_freq|masked_bias).*|.*bias|.*_extra_state", re.I)


@dataclass(frozen=True)
class Source:
    """A tensor of a file, under the name that it has there."""

    file: TensorFile
    name: str

    @property
    def stored(self) -> Stored:
        return self.file.tensors[self.name]


class JoinedFile:
    """Tensors that are each made of one part or several; files: all that are closed with this. name: for messages."""

    def __init__(
        self, name: str, files: Iterable[TensorFile], parts: Mapping[str, Sequence[Source]], notes: Sequence[str] = ()
    ) -> None:
        """name, files: as the class says. parts: of every tensor, in order. notes: what is said of the joining."""
        self.name = name
        self.notes = tuple(notes)
        self._files = tuple(files)
        self._parts = parts
        self._tensors = {tensor: self._described(tensor, sources) for tensor, sources in parts.items()}

    @property
    def tensors(self) -> Mapping[str, Stored]:
        return self._tensors

    def read(self, tensor: str) -> Tensor:
        """One tensor, joined."""
        sources = self._parts[tensor]
        if len(sources) == 1:
            return sources[0].file.read(sources[0].name)
        dim = _dimension(tensor, sources[0].stored)
        if dim is None:
            raise CheckpointError(
                f"{tensor} lies in {len(sources)} parts in {self.name}, and how they join is not known; convert the "
                "checkpoint with the tools of the program that wrote it",
                file=self.name,
                tensor=tensor,
            )
        if dim < 0:
            return sources[0].file.read(sources[0].name)
        parts = [source.file.read(source.name) for source in sources]
        if self._holds_two(tensor):
            halves = [part.chunk(2) for part in parts]
            parts = [half[at] for at in (0, 1) for half in halves]
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

    def _holds_two(self, tensor: str) -> bool:
        """Whether every part is a piece of the gate above one of the up projection: two rows per column of the next."""
        found = _LOWER.fullmatch(tensor)
        back = self._tensors.get(f"{found[1]}{_UPPER[found[2]]}.weight") if found else None
        rows = self._tensors[tensor].shape[0]
        return back is not None and len(back.shape) == 2 and rows == 2 * back.shape[1]

    def _described(self, tensor: str, sources: Sequence[Source]) -> Stored:
        first = sources[0].stored
        dim = _dimension(tensor, first) if len(sources) > 1 else None
        if dim is None or dim < 0:
            return first
        shapes = [source.stored.shape for source in sources]
        others = {
            (shape[:dim], shape[dim + 1 :], source.stored.dtype) for shape, source in zip(shapes, sources, strict=True)
        }
        if len(others) > 1:
            raise CheckpointError(
                f"the parts of {tensor} in {self.name} do not fit together: {str(shapes)[:80]}", tensor=tensor
            )
        length = sum(shape[dim] for shape in shapes)
        return Stored((*first.shape[:dim], length, *first.shape[dim + 1 :]), first.dtype)


def _dimension(tensor: str, stored: Stored) -> int | None:
    """Along which dimension parts are joined; -1: all are the same; None: not known."""
    if _BY_ROWS.fullmatch(tensor) and stored.shape:
        return 0
    if _BY_COLUMNS.fullmatch(tensor) and len(stored.shape) == 2:
        return 1
    return -1 if _EVERYWHERE.fullmatch(tensor) or len(stored.shape) == 0 else None
