"""What is fuzzed of texts: parquet, plain text, stored token ids."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from mutations import spoiled
from target import Target, written

from joma.data import _words
from joma.data.errors import CorpusError
from joma.host.errors import BadInput
from joma.scan.formats.tensor_file import Stored
from joma.scan.names.architecture import find_groups, not_taken
from joma.scan.names.roles import read_roles


def _parquet_seeds(_: Path) -> list[bytes]:
    import pyarrow
    import pyarrow.parquet

    found = []
    for options in ({}, {"compression": "none", "use_dictionary": False}):
        stream = io.BytesIO()
        table = pyarrow.table({"text": ["The cat ( and the dog ) sat .", "", None, "é漢"], "n": [1, 2, 3, 4]})
        pyarrow.parquet.write_table(table, stream, **options)
        found.append(stream.getvalue())
    return found


def _read_text(content: bytes, folder: Path, name: str) -> None:
    for block, _ in _words.blocks(written(content, folder, name)):
        _words.basic_english(block)


def _npy_seeds(_: Path) -> list[bytes]:
    found = []
    for array in (np.arange(9), np.ones((2, 3), np.float16), np.array([], np.uint16)):
        stream = io.BytesIO()
        np.save(stream, array)
        found.append(stream.getvalue())
    return found


def _read_npy(content: bytes, folder: Path) -> None:
    from joma.scan.model.text import _stored_ids

    _stored_ids(written(content, folder, "a.npy"))


_ROLES = [
    b'# mine\n[names]\n"mixer.in_proj" = "mixer_in"\n"layers.*.wild" = \'none\'\n',
    b'[names]\n"a.*" = "b"\n"\\u00e9.*.x" = """c"""\n"h.*.*.q" = "_d1"\n',
]


def _read_roles(content: bytes, folder: Path) -> None:
    lines = read_roles(written(content, folder, "roles.toml"))
    shapes = {"layers.0.wild.weight": (4, 3), "h.1.mixer.in_proj": (2, 4, 3), "x": (), "a.": (5, 5), "é.1.x": (2, 2)}
    groups = find_groups(shapes, {}, shape=shapes.__getitem__, roles=lines)
    not_taken(shapes, groups, lambda name: Stored(shapes[name], torch.float32), roles=lines)


TEXTS: dict[str, Target] = {
    "parquet": Target(_parquet_seeds, spoiled, lambda c, f: _read_text(c, f, "a.parquet"), (CorpusError,)),
    "text": Target(
        lambda _: [b"The cat ( and ) sat .\n" * 9, "é漢 Σ <br /> x".encode()],
        spoiled,
        lambda c, f: _read_text(c, f, "a.txt"),
        (CorpusError,),
    ),
    "roles": Target(lambda _: _ROLES, spoiled, _read_roles, (BadInput,)),
    "npy": Target(_npy_seeds, spoiled, _read_npy, (BadInput,)),
}
