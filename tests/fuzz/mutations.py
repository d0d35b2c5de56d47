"""How files and answers are spoiled: bytes turned, cut and spliced, and JSON with values that nobody expects."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from random import Random
from typing import Any

NUMBERS = (0, -1, 1, 2, 7, 255, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**12, 10**30, 10**400)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    None,
    True,
    False,
    "",
    "0",
    "nan",
    "\x1b[2J",
    "../../x",
    "\ud800",
    "a" * 10_000,
    "é漢\u202e",
    [],
    {},
    [[]],
    [None],
    {"": {}},
    1e308,
    -1e-320,
    0.5,
    float("inf"),
    float("nan"),
    list(range(1000)),
    [1] * 100_000,
)
WORDS = (
    b"\0",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
    b"{",
    b"[" * 2000,
    b'"',
    b"\\u0000",
    b"9" * 5000,
    b"-",
    b"e999",
)


def spoiled(content: bytes, random: Random, pool: list[bytes]) -> bytes:
    """One to four changes of the bytes."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 3, 4))):
        at = random.randrange(len(data) + 1)
        kind = random.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = random.randrange(256)
        elif kind == 2:
            data[at:at] = random.choice(WORDS)
        elif kind == 3:
            del data[at : at + random.choice((1, 2, 8, 64, len(data)))]
        elif kind == 4:
            other = random.choice(pool)
            data[at:] = other[random.randrange(len(other) + 1) :]
        elif kind == 5:
            data[at:at] = data[at : at + random.choice((1, 8, 100))] * random.choice((1, 2, 50))
        else:
            size = random.choice((1, 2, 4, 8))
            value = random.choice(NUMBERS) % 2 ** (8 * size)
            data[at : at + size] = value.to_bytes(size, random.choice(("little", "big")))  # type: ignore[arg-type]
    return bytes(data)


def spoiled_json(content: bytes, random: Random, pool: list[bytes]) -> bytes:
    if random.random() < 0.2:
        return spoiled(content, random, pool)
    try:
        value = json.loads(content)
        for _ in range(random.choice((1, 1, 2, 3))):
            value = _changed(value, random)
        return json.dumps(value).encode()
    except (ValueError, RecursionError):  # no JSON any more, or too deep to be changed
        return spoiled(content, random, pool)


def spoiled_header(content: bytes, random: Random, pool: list[bytes]) -> bytes:
    length = int.from_bytes(content[:8], "little")
    if random.random() < 0.3 or length > len(content):
        return spoiled(content, random, pool)
    others = [one[8:] for one in pool]
    header = spoiled_json(content[8 : 8 + length], random, others)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def spoiled_archive(content: bytes, random: Random, pool: list[bytes]) -> bytes:
    """Mostly one record, in an archive that is whole again: what lies behind the checksums is only reached so."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            records = {name: archive.read(name) for name in archive.namelist()}
    except Exception:
        return spoiled(content, random, pool)
    if random.random() < 0.25 or not records:
        return spoiled(content, random, pool)
    pickles = [name for name in records if name.endswith("data.pkl")]
    name = random.choice(pickles if pickles and random.random() < 0.8 else list(records))
    records[name] = spoiled(records[name], random, list(records.values()))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return stream.getvalue()


def _changed(value: Any, random: Random) -> Any:
    places = list(_places(value))[:20_000]
    if not places:
        return random.choice(VALUES)
    owner, key = random.choice(places)
    kind = random.randrange(6)
    if kind <= 2:
        owner[key] = copy.deepcopy(random.choice(VALUES))
    elif kind == 3:
        del owner[key]
    elif kind == 4:
        other, there = random.choice(places)
        owner[key] = copy.deepcopy(other[there])
    else:
        depth = random.choice((1, 3, 150, 900))
        for _ in range(depth):
            owner[key] = [owner[key]] if random.random() < 0.5 else {"x": owner[key]}
    return value


def _places(value: Any) -> Any:
    queue = [value]
    while queue:
        one = queue.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        for key in keys:
            yield one, key
            queue.append(one[key])
