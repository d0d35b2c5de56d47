"""Objects in strange files, read without importing or calling anything that the files name.

Every class that may occur is on a list and is replaced by a stand-in, which keeps what was stored and can do nothing. A
file that names anything else is refused.

- `plain_unpickled` reads pickles of plain descriptions. The reader is Python's own, in Python: the one in C can be made
  to take all memory by a few bytes. Of its operations only those are left that build plain values.
- `with_stand_ins` lets torch's restricted unpickler read what lies next to the weights in torch files: options of a
  training script, numpy's numbers and random states, DeepSpeed's loss scale, tensors that lie in several processes.
"""

import io
import pickle
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import torch

_OPERATIONS = (
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "EMPTY_TUPLE",
    "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS",
    "GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "MEMOIZE",
)  # fmt: skip


class Refused(ValueError):
    """The pickle names something that is not on the list, or is no pickle of plain values."""


class Plain:
    """A stand-in for an object: what it was made from, its state, and nothing that it could do."""

    __slots__ = ("given", "state")
    given: tuple[Any, ...]
    state: Any

    def __new__(cls, *given: Any, **_: Any) -> Self:
        made = super().__new__(cls)
        made.given, made.state = given, None
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        """All is done before: an unpickler may leave this out."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def get(self, name: str) -> Any:
        """A field of the object; None if it has none of that name."""
        return self.state.get(name) if isinstance(self.state, dict) else None


_Python: Any = pickle._Unpickler  # type: ignore[attr-defined,unused-ignore]


class _Unpickler(_Python):  # type: ignore[misc]
    def __init__(self, content: bytes, allowed: Mapping[str, Any]) -> None:
        super().__init__(io.BytesIO(content))
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        found = f"{module}.{name}"
        if found not in self._allowed:
            raise Refused(f"it names {found[:80]!a}, which is not a plain description")
        return self._allowed[found]

    def load_build(self) -> None:
        """State is for stand-ins: what replaces a function or a number format is used by all, and stays as it is."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], Plain):
            raise Refused("it gives a state to what has none")
        self.stack[-1].__setstate__(state)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def load_setitems(self) -> None:
        self._set(self.pop_mark())

    def _set(self, entries: list[Any]) -> None:
        """Keys are words, numbers or stand-ins: to hash tuples in tuples in tuples can end the process."""
        into = self.stack[-1]
        for key, value in zip(entries[::2], entries[1::2], strict=True):
            if type(into) is not dict or not isinstance(key, str | int | Plain):
                raise Refused("it has a dictionary with keys that are no names")
            into[key] = value

    dispatch: ClassVar[dict[int, Any]] = {
        **{getattr(pickle, name)[0]: _Python.dispatch[getattr(pickle, name)[0]] for name in _OPERATIONS},
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
    }


def plain_unpickled(content: bytes, allowed: Mapping[str, Any]) -> Any:
    """What a pickle holds; allowed: a stand-in by the full name of each class. Refused where it holds more.

    >>> plain_unpickled(pickle.dumps({"a": [1, (2.5, "b")]}), {})
    {'a': [1, (2.5, 'b')]}
    >>> plain_unpickled(pickle.dumps(print), {})
    Traceback (most recent call last):
        ...
    joma.scan.formats.pickles.Refused: it names 'builtins.print', which is not a plain description
    """
    try:
        return _Unpickler(content, allowed).load()
    except Refused:
        raise
    except Exception as error:  # what breaks depends on what the pickle holds
        raise Refused(f"it is damaged ({type(error).__name__})") from None


_NUMBERS = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip
_one_at_a_time = threading.Lock()  # what torch allows, it allows in all threads


class _NumberType(Plain):
    """Stands for numpy.dtype."""


def _scalar(kind: Any = None, data: Any = None) -> Any:
    """One of numpy's numbers as one of Python's; a stand-in where it is no plain number."""
    name = kind.given[0] if isinstance(kind, _NumberType) and kind.given else None
    data = data.encode("latin-1") if isinstance(data, str) else data
    code = _NUMBERS.get(name) if isinstance(name, str) else None
    if code is None or not isinstance(data, bytes) or len(data) != struct.calcsize("<" + code):
        return Plain()
    big = isinstance(kind.state, tuple) and len(kind.state) > 1 and kind.state[1] == ">"
    return struct.unpack((">" if big else "<") + code, data)[0]


_DEEPSPEED = (
    "runtime.fp16.loss_scaler.LossScaler", "runtime.fp16.loss_scaler.DynamicLossScaler",
    "runtime.zero.config.ZeroStageEnum", "utils.tensor_fragment.fragment_address",
)  # fmt: skip
_MEGATRON = ("enums.ModelType", "transformer.enums.AttnBackend", "transformer.enums.AttnMaskType")


class Sharded(Plain):
    """Stands for torch's DTensor, a tensor that lies in several processes: this process's part and where it belongs."""

    @property
    def placed(self) -> tuple[tuple[int, ...], tuple[Plain, ...]]:
        """The shape of the whole, and how it is placed; ValueError where the file does not say so."""
        spec = self.get("_spec")
        meta, placements = (spec.get(of) if isinstance(spec, Plain) else None for of in ("tensor_meta", "placements"))
        whole = meta.given[0] if isinstance(meta, Plain) and meta.given else None
        plain = isinstance(placements, tuple) and all(isinstance(each, Plain) for each in placements)
        sized = isinstance(whole, tuple) and all(type(length) is int and length >= 0 for length in whole)
        if not plain or not sized:
            raise ValueError("it does not say how a tensor (DTensor) is cut")
        return tuple(whole or ()), tuple(placements or ())


class Shard(Plain):
    """Stands for the placement of a tensor that is cut along a dimension."""


class Replicate(Plain):
    """Stands for the placement of a tensor that every process has in full."""


_SPREAD = ("tensor", "_tensor", "_tensor.api")  # where torch has had these classes
_PLACEMENTS = ("tensor.placement_types", "_tensor.placement_types")
_MESH = ("device_mesh.DeviceMesh", "_mesh_layout._MeshLayout", "_mesh_layout._FlatLayout")
_SPEC = ("DTensorSpec", "TensorMeta", "ShardOrderEntry")
_DISTRIBUTED: list[Any] = [
    *((Sharded, f"{place}.DTensor") for place in _SPREAD),
    *((kind, f"{place}.{kind.__name__}") for place in _PLACEMENTS for kind in (Shard, Replicate)),
    *((Plain, f"{place}.{kind}") for place in _PLACEMENTS for kind in ("_StridedShard", "Partial", "_Partial")),
    *((Plain, name) for name in _MESH),
    *((Plain, f"{place}._dtensor_spec.{kind}") for place in _SPREAD[:2] for kind in _SPEC),
    *((Plain, f"_tensor.placement_types.{kind}") for kind in _SPEC),
]
_ALLOWED: list[Any] = [
    *((kind, f"torch.distributed.{name}") for kind, name in _DISTRIBUTED),
    (Plain, "argparse.Namespace"),
    (Plain, "signal.Signals"),
    (Plain, "_io.BytesIO"),
    *((Plain, f"megatron.core.{name}") for name in _MEGATRON),
    (Plain, "megatron.model.enums.ModelType"),
    (_NumberType, "numpy.dtype"),
    (Plain, "numpy.ndarray"),
    *((Plain, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *((Plain, f"deepspeed.{name}") for name in _DEEPSPEED),
]


@contextmanager
def with_stand_ins() -> Iterator[None]:
    """Within this block torch's restricted unpickler reads plain objects as stand-ins, and allows nothing else.

    Other libraries allow classes of their own for the whole process; these are set aside meanwhile.
    """
    with _one_at_a_time:
        others = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        try:
            with torch.serialization.safe_globals(_ALLOWED), _replaced(_REPLACED):
                yield
        finally:
            torch.serialization.add_safe_globals(others)


def _rebuilt(function: Any, kind: Any, given: Any, state: Any) -> Any:
    if kind is not Sharded:
        return torch._tensor._rebuild_from_type_v2(function, kind, given, state)
    found, fields = Sharded(), state if isinstance(state, tuple) else (state,)  # its dictionary, and its slots
    found.__setstate__({name: each for some in fields if isinstance(some, dict) for name, each in some.items()})
    return found


# torch lets a pickle call bytearray(3 * 10**9), which takes that much memory; a DTensor needs its processes.
_REPLACED = {"builtins.bytearray": Plain, "torch._tensor._rebuild_from_type_v2": _rebuilt}


@contextmanager
def _replaced(others: Mapping[str, Any]) -> Iterator[None]:
    """Within, torch's unpickler calls `others` by these names."""
    listed: dict[str, Any] = getattr(torch._weights_only_unpickler, "_get_allowed_globals", dict)()
    before = {name: listed[name] for name in others if name in listed}
    listed.update({name: others[name] for name in before})
    try:
        yield
    finally:
        listed.update(before)
