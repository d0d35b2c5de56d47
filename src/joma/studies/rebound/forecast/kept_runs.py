"""The runs of the benchmark: open ones to look at and to fit on, sealed ones to be judged by.

They are those of the kept record of `forecast`, without the words, in two small files. The sealed one has a hash that
is checked before it is read. `results/seal.py` writes them.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from joma.host.errors import FileError
from joma.host.file_kinds import OWN
from joma.host.files import atomically, make_folder, write_json
from joma.runs import Run
from joma.studies.rebound.forecast.history import OF_LAYERS, History, histories, open_and_sealed
from joma.studies.rebound.forecast.record import CONSTANTS

FOLDER = Path(__file__).parent / "kept_runs"
OPEN, SEALED, SEAL = "open.npz", "sealed.npz", "seal.json"
Networks = dict[str, list[History]]  # by the network's name, one history per seed


def open_runs(folder: Path = FOLDER) -> Networks:
    """Whole histories of the open seeds, by network, to look at and to fit constants on.

    >>> runs = open_runs()
    >>> list(runs)
    ['Adam, 1 layer', 'Adam, 2 layers', 'SGD, 1 layer']
    """
    return _read(folder / OPEN)


def sealed_runs(folder: Path = FOLDER) -> Networks:
    """Those that entries are judged on. Raises `FileError` where they are not the ones that were sealed."""
    if sha256((folder / SEALED).read_bytes()).hexdigest() != seal_of(folder)["sha256"]:
        raise FileError(f"{folder / SEALED} is not the file that was sealed: install joma again")
    return _read(folder / SEALED)


def seal_of(folder: Path = FOLDER) -> dict[str, Any]:
    """The hash of the sealed file, the first t, the constants that open runs gave, and where the runs come from."""
    content: dict[str, Any] = json.loads((folder / SEAL).read_text())
    return content


def seal(run: Run, folder: Path, origin: Mapping[str, Any]) -> None:
    """Write the files of the benchmark from a finished run of `forecast`; origin: where it comes from."""
    variants = [name.removesuffix("/at") for name in run.names() if name.endswith("/at")]
    seeds = [open_and_sealed(run, variant) for variant in variants]
    make_folder(folder)
    for place, name in enumerate((OPEN, SEALED)):
        common = sorted(set.intersection(*(set(pair[place]) for pair in seeds)))
        _write(folder / name, {variant: histories(run, variant, common) for variant in variants})
    digest = sha256((folder / SEALED).read_bytes()).hexdigest()
    fitted = run.value(CONSTANTS).tolist()
    write_json(folder / SEAL, {"sha256": digest, "first": run.config["first"], CONSTANTS: fitted, **origin})


def _write(path: Path, networks: Networks) -> None:
    """As float32, which is what runs record; NumPy's archive has no dates, so that the same runs give the same file."""
    arrays: dict[str, np.ndarray] = {}
    for name, runs in networks.items():
        arrays |= {f"{name}/steps": runs[0].steps, f"{name}/n_keys": np.array(runs[0].n_keys)}
        for field in ("loss", *OF_LAYERS):
            arrays[f"{name}/{field}"] = np.stack([getattr(one, field) for one in runs]).astype(np.float32)
    with atomically(path, OWN) as unfinished, unfinished.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


def _read(path: Path) -> Networks:
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    found: Networks = {}
    for name in dict.fromkeys(key.split("/")[0] for key in arrays):
        steps, n_keys = arrays[f"{name}/steps"], int(arrays[f"{name}/n_keys"])
        parts = {field: arrays[f"{name}/{field}"].astype(np.float64) for field in ("loss", *OF_LAYERS)}
        found[name] = [
            History(name.split(",")[0], n_keys, steps, **{field: part[seed] for field, part in parts.items()})
            for seed in range(len(parts["loss"]))
        ]
    return found
