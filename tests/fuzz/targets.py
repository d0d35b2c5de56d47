"""What is fuzzed: for each kind of input the honest seeds, how they are spoiled, who reads them, what may be raised."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import warnings
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from mutations import spoiled, spoiled_json
from safetensors.torch import save, save_file

from joma.data import _words
from joma.data.errors import CorpusError
from joma.host import hub as hub_client
from joma.host.errors import BadInput, JomaError
from joma.host.sealed import DamagedError, load_sealed, save_sealed
from joma.runs import Run, RunError, export
from joma.runs.values import checksum_of
from joma.scan.errors import CheckpointError

Spoil = Callable[[bytes, Random, list[bytes]], bytes]


@dataclass(frozen=True)
class Target:
    """seeds: of a folder to work in. read: feeds the bytes to joma. may_raise: the documented errors."""

    seeds: Callable[[Path], list[bytes]]
    spoil: Spoil
    read: Callable[[bytes, Path], None]
    may_raise: tuple[type[Exception], ...]


def _written(content: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


# safetensors


def _safetensors_seeds(_: Path) -> list[bytes]:
    plain = {"a": torch.arange(6.0).view(2, 3), "b.weight": torch.ones(2, dtype=torch.bfloat16)}
    return [save(plain), save({"x": torch.zeros(0), "y": torch.ones(1, dtype=torch.int64)}, {"format": "pt"}), save({})]


def spoiled_header(content: bytes, random: Random, pool: list[bytes]) -> bytes:
    """Mostly the JSON of the header, with a length that fits: what lies behind it is only reached so."""
    length = int.from_bytes(content[:8], "little")
    if random.random() < 0.3 or length > len(content):
        return spoiled(content, random, pool)
    others = [one[8:] for one in pool]
    header = spoiled_json(content[8 : 8 + length], random, others)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _read_safetensors(content: bytes, folder: Path) -> None:
    from safetensors import safe_open

    from joma.scan.formats.safetensors_file import SafetensorsFile
    from joma.scan.formats.tensor_file import LocalBytes

    path = _written(content, folder, "a.safetensors")
    with closing(SafetensorsFile(LocalBytes(path))) as file:
        with safe_open(path, "pt") as judge:  # what the format's own library refuses must not be accepted
            assert sorted(judge.keys()) == sorted(file.tensors)
        for name, stored in file.tensors.items():
            if stored.dtype is not None:
                assert file.read(name).shape == stored.shape


# torch.save


def _torch_seeds(_: Path) -> list[bytes]:
    base = torch.arange(12.0)
    values: list[Any] = [
        {"a": base, "part": base[2:4], "turned": base.view(3, 4).T, "half": torch.ones(3, dtype=torch.bfloat16)},
        {"model": {"w": torch.nn.Parameter(torch.eye(3))}, "step": 7, "names": ["x", (1, 2.5)], "none": None},
        {"optimizer": {"state": {0: {"exp_avg": torch.zeros(2, 2)}}}},
    ]
    found = []
    for value in values:
        stream = io.BytesIO()
        torch.save(value, stream)
        found.append(stream.getvalue())
    return found


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


def _read_torch(content: bytes, folder: Path) -> None:
    from joma.scan.formats.torch_file import TorchFile

    with closing(TorchFile(_written(content, folder, "a.pt"))) as file:
        for name, stored in file.tensors.items():
            assert file.read(name).shape == stored.shape


# runs


def _run_seeds(folder: Path) -> list[bytes]:
    path = folder / "seed.sqlite"
    with Run.create(path, study="thm2", config={"sizes": [1, 2], "rate": 0.1, "name": "x"}, seed=3) as run:
        for step in range(5):
            run.append("loss", step, 1.0 / (1 + step))
            run.append("rank", step, np.ones((2, 3), np.float32), dims={"layer": ["up", "down"], "head": None})
        run.keep("seconds", lambda: 1.5)
        run.finish()
    content = path.read_bytes()
    Run.delete(path)
    return [content]


def _spoiled_run(content: bytes, random: Random, pool: list[bytes]) -> bytes:
    """Half of the time its rows, with checksums that are right again."""
    if random.random() < 0.4:
        return spoiled(content, random, pool)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as file:
        try:
            file.deserialize(content)
            for _ in range(random.choice((1, 1, 2))):
                _change_a_row(file, random)
            return file.serialize()
        except (sqlite3.Error, ValueError, ArithmeticError, MemoryError, AttributeError, TypeError, IndexError):
            return spoiled(content, random, pool)


def _change_a_row(file: sqlite3.Connection, random: Random) -> None:
    if random.random() < 0.5:
        key, value = random.choice(file.execute("SELECT key, value FROM meta").fetchall())
        value = spoiled_json(value.encode(), random, [b"{}"]).decode("utf-8", "replace")
        file.execute("UPDATE meta SET value = ?, checksum = ? WHERE key = ?", (value, checksum_of(key, value), key))
        return
    if random.random() < 0.2:
        file.execute(random.choice(_STATEMENTS))
        return
    query = "SELECT name, series, step, dtype, shape, data FROM entries JOIN series ON id = series"
    name, series, step, dtype, shape, data = random.choice(file.execute(query).fetchall())
    place = random.randrange(3)
    if place == 0:
        dtype = random.choice(("object", "float128", "int8", "", "str", "complex128", "float64\0", ">f8"))
    elif place == 1:
        shape = random.choice(("", "-1", "0", "9" * 5000, ",".join("1" * 70), "1e3", "2,3", "3,2", "x", "99999999999"))
    else:
        data = spoiled(data, random, [data])
    total = checksum_of(name, step, dtype, shape, data=data)
    row = (dtype, shape, data, total, series, step)
    file.execute("UPDATE entries SET dtype = ?, shape = ?, data = ?, checksum = ? WHERE series = ? AND step = ?", row)


_STATEMENTS = (
    "UPDATE series SET name = '../../x' WHERE id = 1",
    "UPDATE series SET name = '=1+1' WHERE id = 1",
    "UPDATE series SET name = x'ff00' WHERE id = 2",
    "UPDATE series SET name = '' WHERE id = 1",
    "DELETE FROM series WHERE id = 1",
    "DELETE FROM entries WHERE step = 2",
    "DELETE FROM meta WHERE key = 'config'",
    "UPDATE entries SET step = -5 WHERE step = 1",
    "UPDATE entries SET data = 'text' WHERE step = 1",
    "UPDATE entries SET data = zeroblob(100000) WHERE step = 1",
    "UPDATE entries SET dtype = 7, shape = x'00' WHERE step = 3",
    "CREATE VIEW v AS SELECT 1",
    "CREATE TRIGGER t AFTER INSERT ON meta BEGIN SELECT 1; END",
    "ALTER TABLE entries RENAME TO others",
    "DROP TABLE meta",
    "PRAGMA user_version = 7",
)


def _read_run(content: bytes, folder: Path) -> None:
    from joma.claims.execute import provenance, seconds_of

    path = _written(content, folder, "a.sqlite")
    try:
        with Run.open(path) as run:
            repr(run), run.reason, run.trace, provenance(run)
            for name in run.names():
                run.dims(name), run.steps(name), run.array(name)
            seconds_of(run)
            for to in ("csv", "npz"):
                export(run, to, folder / f"a.{to}")
    finally:
        for ending in ("-wal", "-shm", "-journal"):
            path.with_name(path.name + ending).unlink(missing_ok=True)


# findings


def _finding_seeds(_: Path) -> list[bytes]:
    from joma.claims.execute import judge
    from joma.claims.ledger import findings_json
    from joma.studies import load

    found = []
    for name in ("lemma1", "norm", "thm1-coherence"):
        with Run.open(Path(__file__).parents[2] / "results" / name / f"{name}.sqlite") as run:
            findings = [finding.as_json() for finding in judge(load(name), run)[:4]]
        study = {"name": name, "title": name, "seconds": 1.0, "findings": findings}
        found.append(json.dumps({**findings_json([]), "studies": [study]}).encode())
    return found


def _read_findings(content: bytes, folder: Path) -> None:
    from joma.claims.ledger import read_findings
    from joma.cli.show import text

    for finding in read_findings(_written(content, folder, "findings.json")):
        text(finding), json.dumps(finding.as_json())


# models


@cache
def _model_folder(folder: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPTNeoXConfig, GPTNeoXModel, PreTrainedTokenizerFast

    place = folder / "model"
    shape: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 16}
    GPTNeoXModel(GPTNeoXConfig(**shape, num_hidden_layers=1, max_position_embeddings=8)).save_pretrained(place)
    words = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, " ": 3}, [("a", "b")]))
    words.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(place)
    return place


def _config_seeds(folder: Path) -> list[bytes]:
    neox = json.loads((_model_folder(folder) / "config.json").read_text())
    gpt2 = {"model_type": "gpt2", "n_positions": 8, "n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 16}
    llama = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
    nested = {"model_type": "clip", "text_config": {"num_hidden_layers": 1, "hidden_size": 8}, "vision_config": {}}
    return [json.dumps(one).encode() for one in (neox, neox, gpt2, llama, nested)]


def _read_config(content: bytes, folder: Path) -> None:
    from joma.probes.lengths import default_seq_len
    from joma.scan.model.loading import loaded_config, loaded_model
    from joma.scan.sources.folder import LocalFolder

    place = _model_folder(folder)
    (place / "config.json").write_bytes(content)
    LocalFolder(place, 0).config()
    default_seq_len(loaded_config(place, "it"))
    loaded_model(place, torch.device("cpu"))


def _tokenizer_seeds(folder: Path) -> list[bytes]:
    first = json.loads((_model_folder(folder) / "tokenizer.json").read_text())
    word = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<unk>": 2}, "unk_token": "<unk>"}
    split = {"type": "Split", "pattern": {"Regex": r"\s+|a+b"}, "behavior": "Removed", "invert": False}
    replaced = {"type": "Replace", "pattern": {"Regex": "a|b+"}, "content": "b"}
    others = [{**first, "model": word, "pre_tokenizer": split}, {**first, "normalizer": replaced}]
    return [json.dumps(one).encode() for one in (first, *others)]


def _read_tokenizer(content: bytes, folder: Path) -> None:
    from joma.scan.model.loading import tokenized

    place = _model_folder(folder)
    (place / "tokenizer.json").write_bytes(content)
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork beside threads; this child uses none of theirs, and is given up if it hangs.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        child = os.fork()  # as joma does, but without importing everything anew
    if child:
        os.close(writes)
        with os.fdopen(reads) as stream:
            told = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status != 3, "an error that is not documented"
        if status:
            raise CheckpointError(told or "it broke down")
        return
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a panic writes pages
        tokenized(place, "ab a b" * 50, "it")
        status = 0
    except CheckpointError as error:
        os.write(writes, str(error).encode()[:1000])
    except BaseException:
        status = 3
    finally:
        os._exit(status)


def _index_seeds(_: Path) -> list[bytes]:
    places = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    return [json.dumps({"metadata": {"total_size": 3}, "weight_map": places}).encode()]


def _read_index(content: bytes, folder: Path) -> None:
    from joma.scan.sources.places import find_places

    place = folder / "sharded"
    if not place.exists():
        place.mkdir()
        for number, name in enumerate("ab", 1):
            save_file({name: torch.eye(2)}, place / f"model-0000{number}-of-00002.safetensors")
    (place / "model.safetensors.index.json").write_bytes(content)
    for one in find_places(place).places:
        with one.open() as checkpoint:
            for name in checkpoint.names():
                checkpoint.stored(name), checkpoint.read(name)


# the hub


def _hub_seeds(_: Path) -> list[bytes]:
    branches = [{"name": name, "targetCommit": "a" * 40} for name in ("main", "step10", "step20")]
    file = {
        "type": "file",
        "oid": "b" * 40,
        "size": 12,
        "path": "model.safetensors",
        "lfs": {"oid": "c" * 64, "size": 12},
    }
    config = {"type": "file", "oid": "b" * 40, "size": 2, "path": "config.json"}
    pages = [{"branches": branches, "tags": [], "converts": []}, [file, config, {"type": "directory", "path": "x"}]]
    return [json.dumps(page).encode() for page in (pages[0], pages[1])]


class _Session:
    """The hub's client, with one strange answer: to the question for revisions if it is a mapping, else for files."""

    def __init__(self, content: bytes) -> None:
        refs, tree = _hub_seeds(Path())
        self.refs, self.tree = (content, tree) if content[:1] == b"{" else (refs, content)

    def __call__(self, method: str, url: str, **_: Any) -> Any:
        from contextlib import nullcontext
        from importlib import import_module

        library = import_module(type(hub_client.client().get_session()).__module__.partition(".")[0])
        content = self.refs if url.endswith("/refs") else self.tree
        return nullcontext(library.Response(200, content=content, request=library.Request(method, url)))


def _read_hub(content: bytes, folder: Path) -> None:
    from joma.scan import open_series

    client, pause = hub_client.client(), hub_client.PAUSE
    kept = client.http_stream_backoff
    client.http_stream_backoff, hub_client.PAUSE = _Session(content), 0.0
    try:
        for one in open_series("someone/model", downloads=folder).places:
            one.config(), one.weights(), one.identity()
            with one.open() as checkpoint:
                checkpoint.names()
    finally:
        client.http_stream_backoff, hub_client.PAUSE = kept, pause


# texts, tokens and caches


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
    for block, _ in _words.blocks(_written(content, folder, name)):
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

    _stored_ids(_written(content, folder, "a.npy"))


def _sealed_seeds(folder: Path) -> list[bytes]:
    save_sealed(folder / "seed", {"x": torch.arange(5), "y": torch.eye(2)}, {"step": "3"})
    return [(folder / "seed").read_bytes()]


def _read_sealed(content: bytes, folder: Path) -> None:
    tensors, about = load_sealed(_written(content, folder, "a.sealed"))
    assert torch.equal(tensors["x"], torch.arange(5))  # the same, or refused
    assert torch.equal(tensors["y"], torch.eye(2))
    assert about == {"step": "3"}


TARGETS: dict[str, Target] = {
    "safetensors": Target(_safetensors_seeds, spoiled_header, _read_safetensors, (CheckpointError,)),
    "torch": Target(_torch_seeds, spoiled_archive, _read_torch, (CheckpointError,)),
    "run": Target(_run_seeds, _spoiled_run, _read_run, (RunError,)),
    "findings": Target(_finding_seeds, spoiled_json, _read_findings, (BadInput,)),
    "config": Target(_config_seeds, spoiled_json, _read_config, (CheckpointError,)),
    "tokenizer": Target(_tokenizer_seeds, spoiled_json, _read_tokenizer, (CheckpointError,)),
    "index": Target(_index_seeds, spoiled_json, _read_index, (CheckpointError,)),
    "hub": Target(_hub_seeds, spoiled_json, _read_hub, (CheckpointError,)),
    "parquet": Target(_parquet_seeds, spoiled, lambda c, f: _read_text(c, f, "a.parquet"), (CorpusError,)),
    "text": Target(
        lambda _: [b"The cat ( and ) sat .\n" * 9, "é漢 Σ <br /> x".encode()],
        spoiled,
        lambda c, f: _read_text(c, f, "a.txt"),
        (CorpusError,),
    ),
    "npy": Target(_npy_seeds, spoiled, _read_npy, (BadInput,)),
    "sealed": Target(_sealed_seeds, spoiled, _read_sealed, (DamagedError,)),
}

from format_targets import FORMATS  # noqa: E402 (it needs what stands above)

TARGETS |= FORMATS
assert all(issubclass(kind, JomaError | DamagedError) for target in TARGETS.values() for kind in target.may_raise)
